"""Everything a node takes from the world outside: clock, chance, network, disk, threads.

The simulator is a second maker of these; nothing else in the package reaches for the real ones.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from kakeya.compute.device import LivingDevice, ThreadDevice
from kakeya.config.settings import Settings
from kakeya.embedded.proposers import PrefixChoice
from kakeya.fleet.discovery import Route, udp_route
from kakeya.fleet.store import FileStore, MemoryStore, Store
from kakeya.node.draft_models import LoadedProposer, load_proposer
from kakeya.node.drafters import LoadedDrafter, load_drafter_named
from kakeya.node.identity import tls_files
from kakeya.node.served import ServedModel, load_served
from kakeya.node.state import claim_state
from kakeya.rpc.channel import Dialer, TcpDialer
from kakeya.rpc.listener import Listen, open_listeners
from kakeya.rpc.security import dialling_tls

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Seams:
    wall: Callable[[], float]
    rng: Callable[[str], random.Random]
    dialer: Dialer
    listen: Listen
    route: Route
    store: Store
    make_device: Callable[[str], LivingDevice]
    load_model: Callable[[Settings, Callable[[str, float], None]], ServedModel]
    load_drafter: Callable[[Settings, str, Callable[[str, float], None]], LoadedDrafter] = (
        load_drafter_named
    )
    load_proposer: Callable[
        [Settings, PrefixChoice, Callable[[str, float], None]], LoadedProposer
    ] = load_proposer


def host_seams(settings: Settings, state_base: Path, env: Mapping[str, str]) -> Seams:
    """The real world, with an identity kept under `state_base`.  Raises Refused."""
    claim = claim_state(state_base, settings.node_id)
    if claim is None:
        log.error(
            "another node of this name runs on this host; this one keeps no state",
            node_id=settings.node_id,
        )
    # The lock is held until the process ends, however it ends.
    store = MemoryStore() if claim is None else FileStore(claim.folder / "state.json")
    return _real(settings, store)


def embedded_seams(settings: Settings) -> Seams:
    """The real world, without a kept identity: a node that lives as long as one command."""
    return _real(settings, MemoryStore())


def _real(settings: Settings, store: Store) -> Seams:
    return Seams(
        wall=time.time,  # noqa: TID251 - here is where the real clock comes in
        rng=lambda purpose: random.Random(os.urandom(16)),
        dialer=TcpDialer(settings.rpc, dialling_tls(tls_files(settings))),
        listen=open_listeners,
        route=udp_route,
        store=store,
        make_device=lambda name: ThreadDevice(
            name=name, max_waiting=settings.node.max_waiting_jobs
        ),
        load_model=load_served,
    )

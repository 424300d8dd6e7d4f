"""The DFlash sessions of a node: registry, service and the engine's thread, joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kakeya.compute.device import LivingDevice
from kakeya.config.settings import Settings
from kakeya.config.wire import WireLimits
from kakeya.drafting.dflash_service import DflashService
from kakeya.drafting.drafter import DflashDrafter
from kakeya.drafting.drafter_card import DrafterCard
from kakeya.drafting.sessions import Sessions


@dataclass(frozen=True, slots=True)
class Dflash:
    """`sessions.run` is for a nursery that ends before `device` does and after the connections.

    cards: what peers are told of the drafters.
    """

    device: LivingDevice
    sessions: Sessions
    service: DflashService
    cards: list[DrafterCard] = field(default_factory=list)

    def serve_drafter(self, drafter: DflashDrafter, card: DrafterCard) -> None:
        """Serve one that was loaded on `device`."""
        self.service.add(drafter)
        self.cards.append(card)


def build_dflash(
    drafters: Sequence[DflashDrafter], device: LivingDevice, settings: Settings
) -> Dflash:
    """Sessions of `drafters` (the first is the default; there may be none yet) on `device`."""
    limits = settings.sessions
    sessions = Sessions(device=device, limits=limits)
    service = DflashService(sessions, device=device, limits=limits, wire=WireLimits())
    for drafter in drafters:
        service.add(drafter)
    return Dflash(device, sessions, service)

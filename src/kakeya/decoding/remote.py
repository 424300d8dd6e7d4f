"""Drafts from another node's ProposerService."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import trio

from kakeya.decoding.source import DraftFailedError, Place
from kakeya.errors import Refused
from kakeya.rpc.status import RpcFailedError, status_name, status_text
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb

NUM_STEPS = 1  # single-pass drafters and n-gram ignore it; the contract wants it positive


class ProposerStub(Protocol):
    """ProposerServiceStub, or what stands in for it in tests."""

    async def ProposeBlock(  # noqa: N802 - the contract's name
        self, message: pb.ProposeBlockRequest
    ) -> pb.ProposeBlockResponse: ...


@contextmanager
def as_draft_failures(*, within_s: float = math.inf) -> Iterator[None]:
    """Turn whatever a call to a peer raises into DraftFailedError; "late" beyond `within_s`."""
    try:
        with trio.fail_after(within_s):
            yield
    except trio.TooSlowError:
        raise DraftFailedError("late", f"no answer within {within_s:g} s") from None
    except Refused as error:
        raise DraftFailedError(error.status.lower(), error.why) from None
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
        raise DraftFailedError("unavailable", type(error).__name__) from None
    except RpcFailedError as error:
        name = status_name(error)
        reason = "late" if name == "DEADLINE_EXCEEDED" else name.lower()
        raise DraftFailedError(reason, status_text(error)) from None


class RemoteSource:
    """One peer's proposer.  The caller's cancel scope is the call's deadline.

    num_steps: denoising steps to ask for; 0: those that suit the proposer.
    """

    def __init__(self, place: Place, stub: ProposerStub, num_steps: int = 0) -> None:
        self.place = place
        self._stub = stub
        own_steps = NUM_STEPS if place.prefix is None else place.prefix.num_steps
        self._num_steps = max(1, num_steps or own_steps)

    async def draft(self, committed_ids: Sequence[int], num_drafts: int) -> tuple[int, ...]:
        request = pb.ProposeBlockRequest(
            committed_token_ids=committed_ids,
            block_size=num_drafts,
            num_steps=self._num_steps,
            model_id=self.place.model_id,
        )
        with as_draft_failures():
            response = await self._stub.ProposeBlock(request)
        return tuple(response.token_ids)


def remote_sources(
    open_stub: Callable[[str], ProposerStub], num_steps: int = 0
) -> Callable[[Place], RemoteSource]:
    """Makes the source of a place; `open_stub` gives the stub for an address, without waiting."""
    return lambda place: RemoteSource(place, open_stub(place.address), num_steps)


__all__ = ["ProposerStub", "RemoteSource", "as_draft_failures", "remote_sources"]

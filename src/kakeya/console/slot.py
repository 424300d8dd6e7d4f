"""The place of the node's verifier: empty, loading, ready or failed."""

from __future__ import annotations

from dataclasses import dataclass

import trio

from kakeya.decoding import Engine, VerifierFacts
from kakeya.errors import Refused
from kakeya.verifying.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Ready:
    """A verifier with its device, and the tokenizer that goes with it.

    backend: the framework that computes it.  family: its model_type.
    """

    engine: Engine
    tokenizer: Tokenizer
    tokenizer_sha256: str = ""
    backend: str = ""
    family: str = ""

    @property
    def facts(self) -> VerifierFacts:
        """What decides which drafters fit."""
        return VerifierFacts(self.engine.verifier.geometry, self.tokenizer_sha256, self.family)


class ModelSlot:
    """Filled once by the task that loads; asked by everyone else."""

    def __init__(self, model_id: str = "") -> None:
        # What it will serve once it is filled; "" for a node without a verifier.
        self.model_id = model_id
        self._settled = trio.Event()
        self._ready: Ready | None = None
        self._refused = Refused("FAILED_PRECONDITION", "this node runs no verifier")

    def fill(self, ready: Ready) -> None:
        self._ready = ready
        self._settled.set()

    def refuse(self, refused: Refused) -> None:
        """No verifier here, for good; every generation is told why."""
        self._refused = refused
        self._settled.set()

    def leave_empty(self) -> None:
        self._settled.set()

    @property
    def ready(self) -> Ready | None:
        """The verifier, None while there is none."""
        return self._ready

    @property
    def state(self) -> str:
        """loading, ready or failed."""
        if not self.is_settled:
            return "loading"
        return "failed" if self._ready is None else "ready"

    @property
    def is_settled(self) -> bool:
        """Whether loading is over, whatever came of it."""
        return self._settled.is_set()

    async def get(self, *, within_s: float) -> Ready:
        """The verifier once it is there.  Raises Refused."""
        with trio.move_on_after(within_s) as patience:
            await self._settled.wait()
        if patience.cancelled_caught:
            raise Refused("UNAVAILABLE", f"the verifier is still loading after {within_s:.0f} s")
        if self._ready is None:
            # A new one each time: a raised exception collects its raisers' frames.
            raise Refused(self._refused.status, self._refused.why)
        return self._ready

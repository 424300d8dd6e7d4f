"""What a DFlash drafter is to the sessions that drive it (host B), whatever framework computes it.

Every call is one short job (about 50 ms) on the engine's own thread (compute/device); none waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from kakeya.drafting.proposer import Draft
from kakeya.wire.tensor import WireArray


@dataclass(frozen=True, slots=True)
class DrafterShape:
    """What a drafter asks of its verifier, and its bounds.

    vocab_size: ids given and drafted are below it.  num_aux: tapped verifier layers.
    hidden_size: the verifier's, the last axis of aux.  max_context_len: positions of a context
    together with the block behind it.  max_num_drafts: drafts of one block, the bonus not counted.
    max_extend_len: rows that one `extend` takes; longer aux is cut by the caller.
    """

    vocab_size: int
    num_aux: int
    hidden_size: int
    max_context_len: int
    max_num_drafts: int
    max_extend_len: int


class Context(Protocol):
    """The drafter's K/V of one session; owned by the engine's thread.

    It knows no length: rows at positions from the session's context_len on do not exist, whatever
    was written there.
    """

    @property
    def resident_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True, eq=False)
class LayerBank:
    """K and V of one verifier layer for evicted positions, in ascending order.

    k, v: [1, n, num_kv_heads, head_dim]; k is what goes into the verifier's k_norm, not rotated.
    They are sent from their own memory: nobody writes to it any more.
    """

    layer: int
    k: WireArray
    v: WireArray


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What Restore asks for: sink and window in tokens; full-attention layers left out or not."""

    prompt_ids: tuple[int, ...]
    sink: int
    window: int
    omits_full_layers: bool


@dataclass(frozen=True, slots=True, eq=False)
class BlockAsk:
    """A block to draft: exactly num_drafts ids behind the bonus, which stands at context_len."""

    context: Context
    context_len: int
    bonus_id: int
    num_drafts: int


class DflashDrafter(Protocol):
    @property
    def model_id(self) -> str: ...
    @property
    def shape(self) -> DrafterShape: ...

    def context_bytes(self, context_len: int) -> int:
        """Bytes a context of `context_len` positions takes; never falls with its length."""
        ...

    def restore(
        self, plan: RestorePlan, context: Context | None, context_len: int
    ) -> Iterator[LayerBank | None]:
        """The banks asked for; every step of the iterator is one job, None where it only worked.

        With a context (over [0, context_len)) the banks are made from it as well, else from the
        prompt alone.  Nothing at all where no position is evicted or none could be attended to.
        """
        ...

    def extend(
        self, context: Context | None, context_len: int, aux: Sequence[WireArray]
    ) -> Context:
        """The context with `aux` written at positions context_len …; None begins one.

        aux: num_aux arrays [rows, hidden_size] of float32, float16 or bfloat16, 1 ≤ rows ≤
        max_extend_len.  May write in place and return the same object: what is shorter than the
        old length stays as it was.
        """
        ...

    def draft(self, context: Context, context_len: int, bonus_id: int, num_drafts: int) -> Draft:
        """Exactly `num_drafts` ids for positions context_len + 1 …, the bonus at context_len."""
        ...

    def draft_together(self, asks: Sequence[BlockAsk]) -> list[Draft]:
        """A draft for each of `asks`, in one pass; their contexts are different ones.

        The ids are those of `draft`, as far as a product of many rows gives each of them what it
        gives it alone.  Raises what `draft` would raise for any of them.
        """
        ...

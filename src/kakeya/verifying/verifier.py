"""What a verifier is to the decoding loop, whatever framework computes it.

Every method runs on the engine's own thread (compute/device); none waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

KvMode = Literal["full", "window", "restored"]


@dataclass(frozen=True, slots=True)
class KvPlan:
    """How much K/V a generation keeps.

    full: every position.  window: [0, sink) and the last `window` positions; the row at position
    p attends to [0, sink) and (p - window, p], in prefill as in decoding, so results do not
    depend on how the prompt was cut into chunks.  Sliding layers keep their own window as well.
    restored: the prompt is read as in full; then `Verifier.restore` puts banks in the place of
    [sink, prompt_len - window), which stay, and later rows attend as in window besides.
    exact_full_layers: full-attention layers keep every position of their own all the same.
    """

    mode: KvMode
    sink: int
    window: int
    max_len: int  # positions this generation can reach; bounds what is allocated
    prompt_len: int = 0  # the prompt's length; mode restored only
    exact_full_layers: bool = False  # mode restored only


@dataclass(frozen=True, slots=True, eq=False)
class Bank:
    """K and V that take the place of one layer's own at evicted positions, ascending.

    k, v: [n, num_kv_heads, head_dim] of `dtype` (float32, float16, or bfloat16 as its uint16
    bits); k goes into k_norm and is rotated here.
    """

    layer: int
    dtype: str
    k: NDArray[np.generic]
    v: NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Geometry:
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    max_context_len: int
    layer_types: tuple[str, ...]  # "full_attention" | "sliding_attention", one per layer
    sliding_window: int | None
    # (num_kv_heads, head_dim) layer by layer where they differ, None for a layer that reads
    # another one's K and V; empty: all are alike.
    kv_shapes: tuple[tuple[int, int] | None, ...] = ()

    def kv_shape(self, layer: int) -> tuple[int, int] | None:
        """(num_kv_heads, head_dim) of a layer's own K and V; None without any."""
        return self.kv_shapes[layer] if self.kv_shapes else (self.num_kv_heads, self.head_dim)


@dataclass(frozen=True, slots=True)
class Rows:
    """What one forward pass says: row i is about the position after input token i.

    ids: the argmax, the lowest id on a tie.  margins: top-1 minus top-2 logit.
    logits: [rows, vocab_size] float32, only when asked for.
    aux: one [rows, hidden_size] array per tapped layer (that decoder layer's output), in the
    order of the layers asked for; empty when none was.
    has_nan: some logit is not finite; the request must fail, the node lives.
    """

    ids: tuple[int, ...]
    margins: tuple[float, ...]
    logits: NDArray[np.float32] | None = None
    aux: tuple[NDArray[np.generic], ...] = ()
    has_nan: bool = False


class Kv(Protocol):
    """The K/V of one generation; owned by the verifier's thread."""

    @property
    def length(self) -> int:
        """Positions committed or written so far: the next token's position."""
        ...

    @property
    def resident_bytes(self) -> int: ...

    @property
    def plan(self) -> KvPlan: ...

    @property
    def rewindable_len(self) -> int:
        """Positions [0, n) that `Verifier.rewind` can go back to: as their own passes wrote them.

        All of them until a ring's second round, or until banks take the place of some.
        """
        ...


class Verifier(Protocol):
    @property
    def model_id(self) -> str: ...
    @property
    def geometry(self) -> Geometry: ...
    @property
    def dtype(self) -> str: ...
    @property
    def margin_bound(self) -> float:
        """Gaps below it are decided again by a one-token pass.

        0 where the block path was measured bitwise equal to the one-token path on this machine.
        """
        ...

    @property
    def prefill_chunk_len(self) -> int:
        """Tokens of one prefill job, chosen so that a job stays short."""
        ...

    def open(self, plan: KvPlan) -> Kv:
        """An empty K/V.  Raises Refused(RESOURCE_EXHAUSTED) beyond the memory limit."""
        ...

    def forward(
        self,
        kv: Kv,
        ids: Sequence[int],
        *,
        want_logits: bool = False,
        aux_layers: Sequence[int] = (),
    ) -> Rows:
        """Append `ids` at positions kv.length … and say what follows each."""
        ...

    def prefill(
        self, kv: Kv, ids: Sequence[int], *, aux_layers: Sequence[int] = ()
    ) -> tuple[NDArray[np.generic], ...]:
        """Append one chunk of the prompt without asking what follows it; its aux, as in Rows."""
        ...

    def read(self, kv: Kv, ids: Sequence[int], *, aux_layers: Sequence[int] = ()) -> Rows:
        """As prefill, with the same K/V to the bit, and what follows each: logits are there."""
        ...

    def restore(self, kv: Kv, banks: Sequence[Bank]) -> None:
        """Evict [sink, prompt_len - window) of a K/V in mode restored; `banks` take its place.

        Raises Refused(INVALID_ARGUMENT) for banks that do not fit or are missing, before anything
        is changed.  Spec: V-13.
        """
        ...

    def rewind(self, kv: Kv, plan: KvPlan, length: int, *, keep: bool) -> Kv:
        """A K/V of `plan` that begins with the first `length` positions of `kv`.

        It is to the bit what it would be had it read them itself, by the same passes.  keep: `kv`
        stays as it is and its rows are copied; else it is used up.  Raises Refused before anything
        is changed: as `open` does, OUT_OF_RANGE beyond kv.rewindable_len, INVALID_ARGUMENT for
        a plan that reads otherwise.  Spec: V-17.
        """
        ...

    def trim(self, kv: Kv, length: int) -> None:
        """Forget positions ≥ `length`: at least the last pass's rows can be forgotten.

        All can where no layer slides and nothing is evicted; else as many as one pass may write.
        """
        ...

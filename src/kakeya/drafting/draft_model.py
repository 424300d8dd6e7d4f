"""What a language model is to the proposers that draft with it, whatever framework computes it.

Every method runs on the engine's own thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class DraftKv(Protocol):
    """The K/V of one prefix; owned by the model's thread."""

    @property
    def length(self) -> int:
        """Positions written so far."""
        ...

    @property
    def forgettable_from(self) -> int:
        """The least length that it can be trimmed to."""
        ...


class DraftModel(Protocol):
    """A decoder with the ids of the verifier's tokenizer."""

    @property
    def model_id(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_context_len(self) -> int: ...
    @property
    def piece_len(self) -> int:
        """Ids that one job may read."""
        ...

    def kv_bytes(self, max_len: int) -> int:
        """What a K/V for `max_len` positions takes."""
        ...

    def open(self, max_len: int) -> DraftKv:
        """An empty K/V.  Raises Refused(RESOURCE_EXHAUSTED)."""
        ...

    def read(self, kv: DraftKv, ids: Sequence[int]) -> None:
        """Append `ids` without asking what follows."""
        ...

    def next_id(self, kv: DraftKv, ids: Sequence[int]) -> int:
        """Append `ids` and say what follows the last of them: the likeliest id."""
        ...

    def denoise(self, kv: DraftKv, ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits [rows, vocab_size] of a block whose rows see one another; appends nothing."""
        ...

    def trim(self, kv: DraftKv, length: int) -> None:
        """Forget positions ≥ `length`."""
        ...

    def activation_bytes(self, num_rows: int, num_positions: int) -> int:
        """What a pass of `num_rows` rows over `num_positions` holds at its widest, in bytes."""
        ...


__all__ = ["DraftKv", "DraftModel"]

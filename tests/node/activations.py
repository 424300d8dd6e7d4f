"""What torch allocates during a piece of work, counted tensor by tensor."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocations(TorchDispatchMode):
    """peak_bytes: the most that lived at once of what was made inside."""

    def __init__(self) -> None:
        super().__init__()
        self._live: dict[int, int] = {}
        self._now_bytes = 0
        self.peak_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {key for key, _ in _storages((args, kwargs))}
        out = func(*args, **(kwargs or {}))
        for key, storage in _storages(out):
            if key not in known and key not in self._live:  # not a view of something older
                self._live[key] = storage.nbytes()
                self._now_bytes += storage.nbytes()
                weakref.finalize(storage, self._gone, key)
        self.peak_bytes = max(self.peak_bytes, self._now_bytes)
        return out

    def _gone(self, key: int) -> None:
        self._now_bytes -= self._live.pop(key)


def _storages(tree: Any) -> list[tuple[int, torch.UntypedStorage]]:
    tensors = [t for t in tree_leaves(tree) if isinstance(t, torch.Tensor)]
    storages = [t.untyped_storage() for t in tensors if t.layout is torch.strided]
    return [(storage._cdata, storage) for storage in storages]

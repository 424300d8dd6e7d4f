"""The K/V that generations leave behind: what the next one's prompt begins with is not read again.

Only what whole prefill passes wrote, from position 0 on: decoding steps leave other bits behind,
and those would be another text's ids sooner or later.  A few prefixes, least recently used out
first.  Knows ids and lengths; what touches K/V runs as a job of the device.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from kakeya.compute.device import Device
from kakeya.decoding.aux_log import AuxLog
from kakeya.drafting.prefix_cache import num_alike
from kakeya.errors import Refused
from kakeya.verifying.demands import KvFull
from kakeya.verifying.verifier import Kv, KvPlan, Verifier
from kakeya.verifying.window import evicted_by, reading_of


@dataclass(frozen=True, slots=True, eq=False)
class KeptPrefix:
    """ids: whole chunks, whose K and V a prefill wrote.  aux: their rows, where all were kept."""

    ids: array[int]
    kv: Kv
    aux: AuxLog | None


@dataclass(frozen=True, slots=True)
class Begun:
    """A K/V that a generation begins with.  cached_len: positions it holds already."""

    kv: Kv
    cached_len: int = 0
    aux: AuxLog | None = None


@dataclass(frozen=True, slots=True)
class _Found:
    """stays: others may use the prefix as well, its rows are copied; else it is taken."""

    prefix: KeptPrefix
    length: int
    stays: bool


class KeptPrefixes:
    """The prefixes of one verifier, on the loop's thread.  max_kept: 0 keeps none."""

    def __init__(self, *, max_kept: int) -> None:
        self._max_kept = max_kept
        self._kept: list[KeptPrefix] = []  # the last one was used last

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    @property
    def num_bytes(self) -> int:
        """Of K/V."""
        return sum(prefix.kv.resident_bytes for prefix in self._kept)

    async def begin(
        self, verifier: Verifier, device: Device, ids: Sequence[int], plan: KvPlan
    ) -> Begun:
        """A K/V of `plan` for a prompt, with as much of it as is known; opened in one job.

        Kept prefixes make room for it before it is refused.  Raises Refused as Verifier.open does.
        """
        wanted, takes = array("I", ids), False
        while True:
            found = self._find(wanted, plan, verifier.prefill_chunk_len, takes=takes)
            try:
                return await self._opened(verifier, device, plan, found)
            except KvFull:
                if found is not None and found.stays:
                    takes = True  # no room for a copy
                elif self._drop_oldest(but=found):
                    pass
                elif found is not None:
                    self._kept.clear()
                else:
                    raise

    def keep(
        self,
        ids: Sequence[int],
        kv: Kv,
        aux: AuxLog | None,
        *,
        read_len: int,
        chunk_len: int,
    ) -> None:
        """Keep the K/V of a generation that is over.  read_len: positions that prefills wrote.

        No job may be at work on it.
        """
        length = min(read_len, kv.rewindable_len) // chunk_len * chunk_len
        if not length or not may_share(kv.plan):
            return
        kept = KeptPrefix(array("I", ids[:length]), kv, None if aux is None else aux.head(length))
        alike = [p for p in self._kept if reading_of(p.kv.plan) == reading_of(kv.plan)]
        longer = [each for each in alike if num_alike(each.ids, kept.ids) == length]
        covered = [each for each in alike if num_alike(each.ids, kept.ids) == len(each.ids)]
        self._kept = [each for each in self._kept if each not in (*longer[:1], *covered)]
        self._give_back(longer[0] if longer else kept)

    async def _opened(
        self, verifier: Verifier, device: Device, plan: KvPlan, found: _Found | None
    ) -> Begun:
        if found is None:
            return Begun(await device.run(verifier.open, plan))
        try:
            kv = await device.run(_rewound, verifier, found, plan)
        except (Refused, trio.Cancelled):
            # Nothing was changed.
            if not found.stays:
                self._give_back(found.prefix)
            raise
        return Begun(kv, found.length, found.prefix.aux)

    def _find(
        self, wanted: array[int], plan: KvPlan, chunk_len: int, *, takes: bool
    ) -> _Found | None:
        """The prefix that saves most, now the one used last; the caller's alone where it is taken.

        A prompt's last id is always fed.  Of prefixes that save as much, the shortest.
        """
        found, most = None, 0
        for prefix in sorted(self._kept, key=lambda each: len(each.ids)):
            length = min(num_alike(prefix.ids, wanted), len(wanted) - 1) // chunk_len * chunk_len
            if length > most and reading_of(prefix.kv.plan) == reading_of(plan):
                found, most = prefix, length
        if found is None or not may_share(plan):
            return None
        # The same text gone on loses a chunk at most; one that only begins alike leaves the
        # other's in its place, because that may go on as well.
        stays = not takes and len(found.ids) - most > chunk_len
        self._kept.remove(found)
        if stays:
            self._kept.append(found)
        return _Found(found, most, stays)

    def _give_back(self, prefix: KeptPrefix) -> None:
        self._kept.append(prefix)
        while len(self._kept) > self._max_kept:
            self._kept.pop(0)

    def _drop_oldest(self, *, but: _Found | None) -> bool:
        """Whether there was one to let go of, `but` apart."""
        for prefix in self._kept:
            if but is None or prefix is not but.prefix:
                self._kept.remove(prefix)
                return True
        return False


def _rewound(verifier: Verifier, found: _Found, plan: KvPlan) -> Kv:
    return verifier.rewind(found.prefix.kv, plan, found.length, keep=found.stays)


def may_share(plan: KvPlan) -> bool:
    """Whether a text of this plan may begin with another's K/V.

    Not where banks are wanted: the drafter that makes them is fed from position 0 on.
    """
    return plan.mode != "restored" or not evicted_by(plan)


__all__ = ["Begun", "KeptPrefix", "KeptPrefixes"]

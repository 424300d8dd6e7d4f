"""How many drafts pay, and whether drafting pays at all: never slower than plain decoding.

Everything is measured: what a block of each length costs in one-token steps (Pace, one per
verifier), how often a draft at each position is accepted (Acceptance, one per kind of draft), and
what speculation really brought (Ledger, one per generation).  Pure; times are handed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median, median_low

from kakeya.config.decoding import DecodingLimits

# Block lengths that are tried: doubling, so that each is measured often enough.
BLOCK_LENS = (2, 4, 8, 16, 32, 64)
# Medians over so few samples shrug off a step that another process interrupted, and follow a
# change of load within a sentence.
NUM_SAMPLES = 9
# Rounds over which the company of other generations is judged: two of each of eight.
NUM_ROUNDS = 16
FRESH_SAMPLES = 3
# How many blocks a prior counts for, and what is kept of the past with each new block.
PRIOR_BLOCKS = 4.0
PRIOR_RATIOS = 1
# Plain blocks in a row after which the oldest measured ratio of each length is dropped, so that
# one bad measurement is not held against drafting for ever.
FORGET_RATIO_BLOCKS = 64
KEEP_PER_BLOCK = 0.95
KEEP_PER_SKIP = 0.98
# Chance that a copied draft holds, by the length of the suffix that matched: on the careful side
# of what chat and edit prompts showed, so that a chat pays for few trials.  A match of one token
# alone is not worth a row.  None: a drafter that does not say.
PRIOR_RATES = {0: 0.05, 1: 0.1, 2: 0.3, 3: 0.45, 4: 0.65, None: 0.4}


@dataclass(frozen=True, slots=True)
class Round:
    """Where the time of one round went (s).

    elapsed_s: all of it.  job_s: the device's work for this generation.  others_s: its work for
    others meanwhile, whether this one queued behind them or waited for its draft.
    """

    elapsed_s: float
    job_s: float
    others_s: float

    @property
    def own_s(self) -> float:
        """What the round cost: a device that works for others meanwhile has lost nothing."""
        return max(self.job_s, self.elapsed_s - self.others_s)


@dataclass(slots=True)
class Pace:
    """What a block costs by its length, and how much others use the device.

    For one verifier on one device, shared by its generations.
    """

    limits: DecodingLimits
    _ones_s: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_SAMPLES))
    _ratios: dict[int, deque[float]] = field(default_factory=dict)
    _blocks_since_one: int = 0
    _ones_in_a_row: int = 0
    _num_wanted: int = 0
    # Of the latest rounds: what the device did for others, and what it was not needed here (s).
    _shared: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=NUM_ROUNDS))

    def add_round(self, round_: Round) -> None:
        """One round of any generation.  Spec: D-29."""
        self._shared.append((round_.others_s, max(0.0, round_.elapsed_s - round_.job_s)))

    @property
    def company(self) -> float:
        """The share of a generation's pauses in which the device works for others: 0 to 1."""
        free_s = sum(free for _, free in self._shared)
        others_s = sum(min(others, free) for others, free in self._shared)
        return others_s / free_s if free_s else 0.0

    def add(self, block_len: int, elapsed_s: float) -> None:
        """One verify step of `block_len` rows took `elapsed_s` (s), without work for others."""
        if block_len == 1:
            self._ones_s.append(elapsed_s)
            self._blocks_since_one = 0
            self._num_wanted = max(0, self._num_wanted - 1)
            self._ones_in_a_row += 1
            if self._ones_in_a_row % FORGET_RATIO_BLOCKS == 0:
                self._forget_one_ratio()
            return
        self._ones_in_a_row = 0
        self._blocks_since_one += 1
        if self._ones_s and not self.is_stale:
            # Only steps close to one another compare: the load of the host changes.
            base_s = self.recent_one_s or 0.0
            kept = self._ratios.setdefault(block_len, deque(maxlen=NUM_SAMPLES))
            kept.append(elapsed_s / max(base_s, 1e-9))

    @property
    def one_s(self) -> float | None:
        """The time of a one-token step, or None while there was none."""
        return median(self._ones_s) if self._ones_s else None

    @property
    def recent_one_s(self) -> float | None:
        """The same from the last few steps only: noisier, but of the present load."""
        return median(list(self._ones_s)[-FRESH_SAMPLES:]) if self._ones_s else None

    def measure_again(self) -> None:
        """Ask for as many one-token steps as a fresh median needs."""
        self._num_wanted = FRESH_SAMPLES - 1

    @property
    def wants_one(self) -> bool:
        return self._num_wanted > 0

    @property
    def is_stale(self) -> bool:
        return self._blocks_since_one > self.limits.stale_blocks

    def ratio(self, block_len: int) -> float:
        """The time of a block in one-token steps; the prior where nothing was measured."""
        prior = self._prior(block_len)
        measured = sorted(self._ratios, key=lambda each: abs(each - block_len))
        if not measured:
            return prior
        nearest = measured[0]
        near_prior = self._prior(nearest)
        seen = [*self._ratios[nearest], *([near_prior] * PRIOR_RATIOS)]
        return max(0.5, prior * median_low(seen) / near_prior)

    def _prior(self, block_len: int) -> float:
        return 1 + self.limits.prior_row_ratio * (block_len - 1)

    def _forget_one_ratio(self) -> None:
        for block_len in list(self._ratios):
            self._ratios[block_len].popleft()
            if not self._ratios[block_len]:
                del self._ratios[block_len]


@dataclass(slots=True)
class Acceptance:
    """How often the draft at a position holds when all before it held."""

    prior_rate: float
    _offered: list[float] = field(default_factory=list)
    _accepted: list[float] = field(default_factory=list)

    def add(self, num_decided: int, num_accepted: int) -> None:
        """One block: of `num_decided` drafts the first `num_accepted` held."""
        self._fade(KEEP_PER_BLOCK)
        for i in range(min(num_decided, num_accepted + 1)):
            if i == len(self._offered):
                self._offered.append(0.0)
                self._accepted.append(0.0)
            self._offered[i] += 1
            self._accepted[i] += i < num_accepted

    def skip(self) -> None:
        """One block in which nothing was asked: the past counts for less, so it is tried again."""
        self._fade(KEEP_PER_SKIP)

    def expected_ids(self, num_drafts: int) -> float:
        """Ids a block with so many drafts commits on average; at least 1."""
        total, chance, rate = 1.0, 1.0, self.prior_rate
        for i in range(num_drafts):
            if i < len(self._offered):
                accepted = self._accepted[i] + PRIOR_BLOCKS * rate
                rate = accepted / (self._offered[i] + PRIOR_BLOCKS)
            chance *= rate
            total += chance
        return total

    def _fade(self, keep: float) -> None:
        self._offered = [each * keep for each in self._offered]
        self._accepted = [each * keep for each in self._accepted]


@dataclass(frozen=True, slots=True)
class Choice:
    """num_drafts 0: the verifier goes alone.  gain: promised rate over plain decoding's."""

    num_drafts: int
    gain: float


ALONE = Choice(0, 1.0)


def best_choice(
    pace: Pace, acceptance: Acceptance, *, draft_s: float, max_num_drafts: int
) -> Choice:
    """The number of drafts that commits most ids a second; 0 unless it clearly beats 1 a step.

    draft_s: how long this proposer is waited for (s); it costs as far as the device is idle
    meanwhile.  Spec: D-09, D-29.
    """
    exposed_s = draft_s * (1.0 - pace.company)
    one_s = pace.one_s
    if one_s is None or max_num_drafts < 1:
        return ALONE
    best = ALONE
    for num_drafts in _counts(max_num_drafts):
        steps = pace.ratio(num_drafts + 1) + exposed_s / max(one_s, 1e-9)
        gain = acceptance.expected_ids(num_drafts) / steps
        if gain >= pace.limits.min_gain and gain > best.gain:
            best = Choice(num_drafts, gain)
    return best


def _counts(max_num_drafts: int) -> Iterable[int]:
    counts = [block_len - 1 for block_len in BLOCK_LENS if block_len - 1 <= max_num_drafts]
    return counts or [max_num_drafts]


def first_worthwhile(choices: Sequence[Choice], limits: DecodingLimits) -> int | None:
    """Index of the choice to go by: the earliest that is not clearly worse than the best."""
    best = max((choice.gain for choice in choices if choice.num_drafts), default=0.0)
    for i, choice in enumerate(choices):
        if choice.num_drafts and choice.gain >= best * limits.prefer_earlier_ratio:
            return i
    return None


@dataclass(slots=True)
class Ledger:
    """What drafted blocks of this generation really brought, and the switch that follows."""

    limits: DecodingLimits
    _ids: deque[int] = field(default_factory=deque)
    _elapsed_s: deque[float] = field(default_factory=deque)
    _is_doubted: bool = False
    _off_blocks: int = 0
    _next_off_blocks: int = 0

    @property
    def is_on(self) -> bool:
        return self._off_blocks == 0

    def add_drafted(self, num_ids: int, elapsed_s: float, pace: Pace) -> float | None:
        """Count a block in which a draft was waited for.

        When the last blocks say that speculation loses, plain steps are measured again first: it
        may be the host that became slower.  If it still loses, it is switched off and the realised
        gain is returned; else None.
        """
        one_s = pace.recent_one_s
        self._ids.append(num_ids)
        self._elapsed_s.append(elapsed_s)
        if one_s is None or len(self._ids) < self.limits.window_blocks:
            return None
        gain = sum(self._ids) * one_s / max(sum(self._elapsed_s), 1e-9)
        self._ids.popleft()
        self._elapsed_s.popleft()
        if gain >= self.limits.min_realised_gain:
            self._is_doubted = False
            self._next_off_blocks = 0
            return None
        if not self._is_doubted:
            self._is_doubted = True
            pace.measure_again()
            return None
        self._switch_off()
        return gain

    def _switch_off(self) -> None:
        doubled = max(self.limits.off_blocks, 2 * self._next_off_blocks)
        self._off_blocks = self._next_off_blocks = min(doubled, self.limits.max_off_blocks)
        self._is_doubted = False
        self._ids.clear()
        self._elapsed_s.clear()

    def add_alone(self) -> None:
        """Count a block without drafts; after enough of them speculation is tried again."""
        self._off_blocks = max(0, self._off_blocks - 1)


__all__ = [
    "ALONE",
    "PRIOR_RATES",
    "Acceptance",
    "Choice",
    "Ledger",
    "Pace",
    "Round",
    "best_choice",
    "first_worthwhile",
]

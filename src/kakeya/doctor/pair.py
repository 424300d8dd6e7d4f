"""Whether a drafter was made for a verifier, point by point.  Pure."""

from __future__ import annotations

from dataclasses import dataclass

from kakeya.doctor.finding import Finding, failed, ok, skipped, warning

OTHER_PAIR = "choose a drafter made for this verifier, or name its own: FOLDER@VERIFIER"


@dataclass(frozen=True, slots=True)
class VerifierSide:
    """The verifier as its folder describes it.  tokenizer_sha256: "" when it has none."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    max_context_len: int
    tokenizer_sha256: str


@dataclass(frozen=True, slots=True)
class DrafterSide:
    """The drafter, and the verifier it says it was made for.

    num_layers, mask_id, block_len, sliding_window: None where it does not say.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int | None
    aux_layers: tuple[int, ...]
    max_context_len: int
    tokenizer_sha256: str
    mask_id: int | None = None
    block_len: int | None = None
    sliding_window: int | None = None


def pair_findings(name: str, drafter: DrafterSide, verifier: VerifierSide) -> list[Finding]:
    """A line for each point on which the two must agree."""
    return [
        _tokenizer(f"pair {name}, tokenizer", drafter.tokenizer_sha256, verifier.tokenizer_sha256),
        _equal(f"pair {name}, vocabulary", drafter.vocab_size, verifier.vocab_size),
        _equal(f"pair {name}, hidden size", drafter.hidden_size, verifier.hidden_size),
        _equal(f"pair {name}, layers", drafter.num_layers, verifier.num_layers),
        _below(f"pair {name}, mask id", drafter.mask_id, verifier.vocab_size),
        _below(f"pair {name}, aux layers", max(drafter.aux_layers), verifier.num_layers),
        _window(f"pair {name}, window", drafter),
        _context(f"pair {name}, context", drafter.max_context_len, verifier.max_context_len),
    ]


def _tokenizer(check: str, drafters: str, verifiers: str) -> Finding:
    if not drafters or not verifiers:
        return skipped(check, "no tokenizer.json to compare")
    if drafters == verifiers:
        return ok(check, f"both {verifiers[:12]}")
    return failed(
        check, f"the drafter's is {drafters[:12]}, the verifier's {verifiers[:12]}", do=OTHER_PAIR
    )


def _equal(check: str, drafters: int | None, verifiers: int) -> Finding:
    if drafters is None:
        return skipped(check, "the drafter does not say")
    if drafters == verifiers:
        return ok(check, f"both {verifiers}")
    return failed(
        check, f"the drafter was made for {drafters}, the verifier has {verifiers}", do=OTHER_PAIR
    )


def _below(check: str, value: int | None, limit: int) -> Finding:
    if value is None:
        return skipped(check, "the drafter does not say")
    if 0 <= value < limit:
        return ok(check, f"{value}, of 0 to {limit - 1}")
    return failed(check, f"{value}, it must be 0 to {limit - 1}", do=OTHER_PAIR)


def _window(check: str, drafter: DrafterSide) -> Finding:
    window, block_len = drafter.sliding_window, drafter.block_len
    if window is None:
        return ok(check, "none, it attends to the whole context")
    if block_len is None or window >= block_len:
        return ok(check, f"its sliding layers attend to {window} positions")
    told = f"its sliding layers attend to {window} positions, less than its block of {block_len}"
    return failed(check, told, do="this drafter's config.json is damaged, fetch it again")


def _context(check: str, drafters: int, verifiers: int) -> Finding:
    if drafters >= verifiers:
        return ok(check, f"{drafters}, the verifier's is {verifiers}")
    return warning(
        check,
        f"the drafter's ends at {drafters}, the verifier's at {verifiers}",
        do=f"texts beyond {drafters} positions go on without this drafter; no id changes",
    )


__all__ = ["DrafterSide", "VerifierSide", "pair_findings"]

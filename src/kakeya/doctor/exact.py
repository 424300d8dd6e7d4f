"""Whether a verifier's blocks keep the promise on this machine: measured anew, and judged.  Pure.

At load the bound of the margin guard was set by a measurement; here other tokens are measured, and
the bound must hold for them too.
"""

from __future__ import annotations

from collections.abc import Sequence

from kakeya.doctor.finding import Finding, failed, ok
from kakeya.verifying.exactness import Exactness

STRICT = "run with --exact strict until this is understood; ids may depend on the drafts else"


def exactness_findings(name: str, found: Exactness, margin_bound: float) -> list[Finding]:
    """A line for each block length.  name: backend and dtype; margin_bound: the guard's, in force.

    Of two logits that are each off by no more than d, a gap of 2·d or more keeps its sign: the
    guard is enough where its bound is at least that.
    """
    findings = []
    for each in found.by_length:
        check, off = f"exactness {name}, block of {each.block_len}", each.max_difference
        if each.is_exact:
            findings.append(ok(check, "equal to one-token steps in every bit"))
        elif 2 * off <= margin_bound:
            told = f"off by up to {off:.3g}; gaps below {margin_bound:.3g} are decided again"
            findings.append(ok(check, told))
        else:  # NaN too
            told = f"off by up to {off:.3g}, more than half the guard's bound of {margin_bound:.3g}"
            findings.append(failed(check, told, do=STRICT))
    return findings


def same_ids_finding(name: str, plain: Sequence[int], speculated: Sequence[int]) -> Finding:
    """Whether one text came out the same with drafts and without."""
    check = f"same ids {name}"
    if list(plain) == list(speculated):
        return ok(check, f"{len(plain)} ids with drafts are those without")
    at = next(
        (i for i, (a, b) in enumerate(zip(plain, speculated, strict=False)) if a != b),
        min(len(plain), len(speculated)),
    )
    return failed(check, f"with drafts another id from position {at} on", do=STRICT)


__all__ = ["exactness_findings", "same_ids_finding"]

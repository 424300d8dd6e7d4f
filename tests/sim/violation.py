"""What a run fails with."""

from __future__ import annotations


class Violation(AssertionError):
    """An invariant did not hold.  `rule` is its short name: S1 … S11, L1 … L6."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule
        self.what = what


def first_of(error: BaseException) -> BaseException:
    """The first error inside a group, or the error itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

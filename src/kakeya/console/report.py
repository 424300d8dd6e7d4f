"""What one request was: told to the metrics as it goes, and to the log when it is over."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
import trio

from kakeya.console.scoreboard import Scoreboard
from kakeya.decoding import Block, Tally
from kakeya.errors import Refused
from kakeya.metrics import FALLBACKS, Metrics

log = structlog.get_logger(__name__)

# Refusals that are our own failure.
FAILURES = frozenset({"INTERNAL", "UNKNOWN", "DATA_LOSS"})


@dataclass(slots=True)
class Report:
    """One request while it runs.  outcome: a request whose caller leaves was cancelled."""

    metrics: Metrics
    scoreboard: Scoreboard
    note_tally: Callable[[Tally], None]
    started_s: float
    model_id: str = ""
    prompt_len: int = 0
    outcome: str = "cancelled"
    num_ids: int = 0
    tally: Tally | None = None
    _spoke_at_s: float | None = None

    async def of(self, blocks: AsyncGenerator[Block, None]) -> AsyncGenerator[Block, None]:
        """The same blocks, counted on their way."""
        async for block in blocks:
            self._add(block)
            yield block

    def _add(self, block: Block) -> None:
        metrics = self.metrics
        metrics.observe("verify_seconds", block.verify_s)
        metrics.observe("round_overhead_seconds", block.overhead_s)
        metrics.set("speculation_enabled", float(block.may_draft))
        if block.draft_s:
            metrics.observe("draft_seconds", block.draft_s)
        if block.num_drafts:
            metrics.add_drafts(block.num_drafts, block.num_accepted)
        self.scoreboard.add(block)
        if block.ids:
            self._spoke(len(block.ids))
        if block.tally is not None:
            self._ended(block, block.tally)

    def _spoke(self, num_ids: int) -> None:
        now_s = trio.current_time()
        if self._spoke_at_s is None:
            self.metrics.observe("time_to_first_token_seconds", now_s - self.started_s)
            self.metrics.count("prompt_tokens_total", self.prompt_len)
        else:
            each_s = (now_s - self._spoke_at_s) / num_ids
            self.metrics.observe("inter_token_seconds", each_s, times=num_ids)
        self._spoke_at_s = now_s
        self.num_ids += num_ids
        self.metrics.count("generation_tokens_total", num_ids)

    def _ended(self, block: Block, tally: Tally) -> None:
        self.outcome, self.tally = block.finish_reason, tally
        self.note_tally(tally)
        self.metrics.count("prompt_tokens_cached_total", tally.cached_len)
        self.metrics.count("margin_rechecks_total", tally.margin_rechecks)
        for reason, count in tally.fallbacks.items():
            known = reason if reason in FALLBACKS else "unknown"
            self.metrics.count("draft_fallbacks_total", count, known)


@asynccontextmanager
async def reported(
    metrics: Metrics, scoreboard: Scoreboard, note_tally: Callable[[Tally], None]
) -> AsyncIterator[Report]:
    """A request, from now to its end however that comes; `note_tally` gets its account."""
    report = Report(metrics, scoreboard, note_tally, trio.current_time())
    why = ""
    try:
        yield report
    except Refused as refused:
        report.outcome = "failed" if refused.status in FAILURES else "refused"
        why = refused.why
        raise
    except OSError:
        raise  # the caller has gone
    except Exception:
        report.outcome = "failed"
        raise
    finally:
        elapsed_s = trio.current_time() - report.started_s
        metrics.observe("request_seconds", elapsed_s, report.outcome)
        log.info("a generation ended", **_summary(report, elapsed_s, why))


def _summary(report: Report, elapsed_s: float, why: str) -> dict[str, object]:
    """What an operator wants to know of it; no text and no ids."""
    said: dict[str, object] = {
        "outcome": report.outcome,
        "model": report.model_id,
        "prompt_len": report.prompt_len,
        "num_ids": report.num_ids,
        "seconds": round(elapsed_s, 3),
    }
    if why:
        said["why"] = why
    tally = report.tally
    if tally is not None:
        said |= {
            "cached_len": tally.cached_len,
            "num_drafts": tally.num_drafts,
            "num_accepted": tally.num_accepted,
            "mean_acceptance_length": round(tally.mean_acceptance_length, 2),
            "fallbacks": dict(tally.fallbacks),
        }
    return said


__all__ = ["Report", "reported"]

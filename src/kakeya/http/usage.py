"""The account of a request in the answer: usage as OpenAI counts it, and timings.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kakeya.decoding import Tally
from kakeya.decoding.block import mean_acceptance_length


def usage_of(tallies: Sequence[Tally]) -> dict[str, Any]:
    """cached_tokens: ids of the prompt whose K/V was kept from an earlier request."""
    prompt, answer = sum(t.prompt_len for t in tallies), sum(t.num_ids for t in tallies)
    accepted = sum(t.num_accepted for t in tallies)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": _cached(tallies)},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": sum(t.num_drafts for t in tallies) - accepted,
        },
    }


def timings_of(tallies: Sequence[Tally]) -> dict[str, Any]:
    """Names as llama.cpp's server has them; times of one request's prompts are added up.

    prompt_n: ids of the prompts that were read, without those of cache_n.
    """
    cached, answer = _cached(tallies), sum(t.num_ids for t in tallies)
    prompt = sum(t.prompt_len for t in tallies) - cached
    prefill_s, decode_s = sum(t.prefill_s for t in tallies), sum(t.decode_s for t in tallies)
    drafted = sum(t.num_drafted_blocks for t in tallies)
    accepted = sum(t.num_accepted for t in tallies)
    return {
        "cache_n": cached,
        "prompt_n": prompt,
        "prompt_ms": round(1000 * prefill_s, 3),
        "prompt_per_second": _rate(prompt, prefill_s),
        "predicted_n": answer,
        "predicted_ms": round(1000 * decode_s, 3),
        "predicted_per_second": _rate(answer, decode_s),
        "draft_n": sum(t.num_drafts for t in tallies),
        "draft_n_accepted": accepted,
        "mean_acceptance_length": round(mean_acceptance_length(accepted, drafted), 3),
    }


def _cached(tallies: Sequence[Tally]) -> int:
    return sum(t.cached_len for t in tallies)


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 3) if seconds else 0.0


__all__ = ["timings_of", "usage_of"]

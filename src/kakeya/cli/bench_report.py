"""What `kakeya bench` found, as a table for people."""

from __future__ import annotations

from typing import Any

from rich.table import Table

COLUMNS = (
    "prompts", "way", "drafted by", "prefill s", "plain tokens/s", "tokens/s", "ratio",
    "tokens a round", "acceptance length", "accepted by position", "ids equal",
)  # fmt: skip


def drafted_by(row: dict[str, Any]) -> str:
    """Whom a row's drafts came from."""
    return f"{row['proposer'] or '-'} on {', '.join(row['drafted_on'])}" if row["proposer"] else "-"


def as_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None)
    for column in COLUMNS:
        table.add_column(column)
    for row in rows:
        table.add_row(
            f"{row['kind']} ({row['prompts']})",
            row["way"],
            drafted_by(row),
            f"{row['prefill_s']:.2f}",
            f"{row['plain_tokens_per_second']:.1f}",
            f"{row['tokens_per_second']:.1f}",
            f"{row['ratio']:.2f}",
            f"{row['tokens_per_round']:.2f}",
            f"{row['mean_acceptance_length']:.2f}",
            " ".join(f"{share:.2f}" for share in row["acceptance_by_position"][:6]) or "-",
            _equal(row["num_equal"], row["prompts"]),
        )
    return table


SCALING_COLUMNS = (
    "at once", "plain tokens/s", "drafter apart", "drafter beside", "apart to plain",
    "apart to beside", "1 + γ·t_d/t_v", "γ", "t_d ms", "t_v ms",
    "plain ms", "tokens a round", "ids equal",
)  # fmt: skip


def scaling_table(rows: list[dict[str, Any]]) -> Table:
    """Drafter apart: on a core of its own; beside: on the verifier's.

    Times are of processors: t_d of an id drafted, t_v of a round, plain of a token without drafts.
    """
    table = Table(box=None)
    for column in SCALING_COLUMNS:
        table.add_column(column)
    for row in rows:
        table.add_row(
            str(row["concurrency"]),
            _number(row["plain_tokens_per_second"], 1),
            _number(row["apart_tokens_per_second"], 1),
            _number(row["sharing_tokens_per_second"], 1),
            _number(row["ratio_to_plain"], 2),
            _number(row["ratio_to_sharing"], 2),
            _number(row["bound"], 2),
            _number(row["drafts_per_round"], 2),
            _number(1e3 * row["t_d_s"], 3),
            _number(1e3 * row["t_v_s"], 3),
            _number(1e3 * row["plain_token_s"], 3),
            _number(row["tokens_per_round"], 2),
            _equal(row["num_equal"], row["num_compared"]),
        )
    return table


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _equal(num_equal: int, num_compared: int) -> str:
    return f"{num_equal} of {num_compared}" + ("" if num_equal == num_compared else " DIFFERENT")

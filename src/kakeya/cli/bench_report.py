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
            f"{row['num_equal']} of {row['prompts']}" + ("" if row["ids_equal"] else " DIFFERENT"),
        )
    return table

"""What `kakeya bench` found, as a table for people."""

from __future__ import annotations

from typing import Any

from rich.table import Table


def drafted_by(row: dict[str, Any]) -> str:
    """Whom a row's drafts came from, behind the proposer that was named."""
    asked = f"{row['asked']}: " if row["asked"] else ""
    return f"{asked}{row['proposer'] or '-'} on {', '.join(row['drafted_on']) or '-'}"


def as_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None)
    columns = (
        "prompts", "drafted by", "prefill s", "plain tokens/s", "tokens/s", "ratio",
        "acceptance length", "accepted by position", "ids",
    )  # fmt: skip
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(
            f"{row['kind']} ({row['prompts']})",
            drafted_by(row),
            f"{row['prefill_s']:.2f}",
            f"{row['plain_tokens_per_second']:.1f}",
            f"{row['tokens_per_second']:.1f}",
            f"{row['ratio']:.2f}",
            f"{row['mean_acceptance_length']:.2f}",
            " ".join(f"{share:.2f}" for share in row["acceptance_by_position"][:6]) or "-",
            "equal" if row["ids_equal"] else "DIFFERENT",
        )
    return table

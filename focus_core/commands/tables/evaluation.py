"""Evaluations as tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from focus_core.commands.tables.plain import plain_table
from focus_core.evaluation import Evaluation, Leak, LengthRow


def evaluation_table(rows: Sequence[Evaluation], title: str) -> Table:
    """One line per setting: retention first where it was measured; perplexity always with kept share, largest group."""
    retained = any(row.kl is not None for row in rows)
    first = ("KL", "KL, last quarter", "top-1 same") if retained else ()
    beside = ("distant kept",) if retained else ("distant kept", "all removed")  # as many as fit
    table = plain_table(
        title, "routing", "k", "balance", *first, "perplexity", *beside, "largest group", left=("routing", "balance")
    )
    for row in rows:
        retention = (_number(row.kl, ".4f"), _number(row.kl_last_quarter, ".4f"), _number(row.top1_agreement, ".1%"))
        table.add_row(
            row.routing,
            _number(row.top_k, "d"),
            row.balance,
            *(retention if retained else ()),
            f"{row.perplexity:.2f}",
            f"{row.kept_share:.1%}",
            *(() if retained else (f"{1 - row.causal_kept_share:.1%}",)),
            _number(row.largest_group_share, ".1%"),
        )
    return table


def _number(value: float | None, form: str) -> str:
    """A value in a format, empty where there is none."""
    return "" if value is None else format(value, form)


def leak_lines(leaks: Sequence[Leak]) -> list[str]:
    """One sentence per k on the gain of sequence Sinkhorn from seeing the future."""
    lines = []
    for leak in leaks:
        interval = "" if leak.low is None else f" (95%: {leak.low:+.2f} to {leak.high:+.2f})"
        lines.append(
            f"Leak at k={leak.top_k}: perplexity {leak.perplexity_difference:+.2f}{interval} from calibrated to "
            f"sequence, at {leak.kept_share_difference:+.1%} kept: {leak.reading}."
        )
    return lines


def length_table(rows: Sequence[LengthRow], title: str) -> Table:
    """One line per length and setting, beside the difference from the untouched model at that length."""
    names = ("T", "routing", "k", "balance", "perplexity", "above untouched", "95%", "distant kept", "last bin, nats")
    few = next((row.above_untouched.mark for row in rows if row.above_untouched and row.above_untouched.mark), "")
    title += f" ({few})" if few else ""
    table = plain_table(title, *names, left=("routing", "balance"))
    for row in rows:
        result, gap, last = row.evaluation, row.above_untouched, row.positions[-1]
        table.add_row(
            f"{row.length:,}",
            result.routing,
            "" if result.top_k is None else str(result.top_k),
            result.balance,
            f"{result.perplexity:.2f}",
            "" if gap is None else f"{gap.difference:+.2f}",
            "" if gap is None or gap.low is None else f"{gap.low:+.2f} to\n{gap.high:+.2f}",
            f"{result.kept_share:.1%}",
            f"{last.nll:.3f}",
        )
    return table

"""The report as tables: groups, token types, examples, parts of speech and persistence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from focus_core.analysis.tables import stamped
from focus_core.report.model import Card, Interval, Report


def report_frames(report: Report) -> dict[str, pd.DataFrame]:
    """Tables by name, each with the report's origin in its last columns; text is exactly that of the corpus."""
    tables = {"cards": _cards(report)}
    if "tokens" in report.sections:
        tables["tokens"] = pd.DataFrame(list(_tokens(report)), columns=_TOKENS)
    if "examples" in report.sections:
        tables["examples"] = pd.DataFrame(list(_examples(report)), columns=_EXAMPLES)
    if "tags" in report.sections and report.num_words:
        tables["tags"] = pd.DataFrame(list(_tags(report)), columns=_TAGS)
    if "persistence" in report.sections:
        tables["persistence"] = pd.DataFrame(list(_persistence(report)), columns=_PERSISTENCE)
    if len({card.head for card in report.cards}) < 2:  # the origin names the one head
        tables = {name: table.drop(columns="head") for name, table in tables.items()}
    made_from = {**report.origin, "seed": report.seed, "block_length": report.block_length, "date": report.made["date"]}
    return {name: stamped(table, made_from) for name, table in tables.items()}


_TOKENS = ["layer", "head", "group", "ranked_by", "rank", "token", "token_id", "count", "total", "pmi_bits"]
_EXAMPLES = ["layer", "head", "group", "kind", "document", "start", "before", "token", "after", "weight"]
_TAGS = ["layer", "head", "group", "tag", "words", "share", "share_low", "share_high", "share_overall"]
_PERSISTENCE = ["layer", "head", "group", "other_layer", "pairs_together", "pairs_together_by_chance"]


def _cards(report: Report) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for card in report.cards:
        row = {
            "layer": card.layer,
            "head": card.head,
            "group": card.group,
            "tokens": card.count,
            **_interval("share", card.share),
            "members": card.members,
            "confidence": card.confidence,
        }
        if "tokens" in report.sections:
            row["frequent"] = " ".join(token.text.strip() for token in card.frequent)
            row["typical"] = " ".join(token.text.strip() for token in card.typical)
        if "notes" in report.sections:
            row["note"] = card.note
        rows.append(row)
    return pd.DataFrame(rows)


def _tokens(report: Report) -> Iterator[tuple[Any, ...]]:
    for card in report.cards:
        for kind, tokens in (("count", card.frequent), ("pmi", card.typical)):
            for rank, token in enumerate(tokens, 1):
                yield (*_place(card), kind, rank, token.text, token.token_id, token.count, token.total, token.pmi)


def _examples(report: Report) -> Iterator[tuple[Any, ...]]:
    for card in report.cards:
        for kind, examples in (("random", card.random), ("strongest", card.strongest)):
            for example in examples:
                text = (example.before, example.token, example.after)
                yield (*_place(card), kind, example.document, example.start, *text, example.weight)


def _tags(report: Report) -> Iterator[tuple[Any, ...]]:
    for card in report.cards:
        for tag in card.tags:
            share = tag.share
            yield (*_place(card), tag.tag, tag.count, share.value, share.low, share.high, tag.overall)


def _persistence(report: Report) -> Iterator[tuple[Any, ...]]:
    for card in report.cards:
        for other in card.persistence:
            yield (*_place(card), other.layer, other.observed, other.chance)


def _place(card: Card) -> tuple[int, int | None, int]:
    return card.layer, card.head, card.group


def _interval(name: str, share: Interval) -> dict[str, Any]:
    return {name: share.value, f"{name}_low": share.low, f"{name}_high": share.high}

"""The report as one HTML file: one script of its own, nothing fetched, all text escaped."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from focus_core.analysis.routed_text import how_made
from focus_core.report.folds import address, card_title, folds, search_index
from focus_core.report.labels import guess, named
from focus_core.report.model import Card, Interval, Report
from focus_core.report.visible import visible, visible_token

Theme = Literal["auto", "light", "dark"]

_TAGS_SHOWN = 6
_MANY_GROUPS = 16
_MOST_OPEN = 64
"""Of more cards the folds are closed."""
_MOST_IN_PAGE = 600
"""Of more cards each fold's wait as text, so that the page opens at once."""
_PLOT_WIDTH, _PLOT_HEIGHT = 240, 44


def to_html(report: Report, theme: Theme = "auto", *, cards_only: bool = False) -> str:
    """A page that opens without a network, prints well, and runs its own script alone.

    The script searches, folds and copies links. The content security policy names it by its hash and forbids all others
    and all requests, in case an escape is missing.

    Args:
        report: the cards.
        theme: "light", "dark", or "auto" for the reader's own setting.
        cards_only: leave out head, search and script, for a page that already shows model, text and settings.
    """
    script = _own_file("page.js")
    found = folds(report, _MANY_GROUPS)
    return _template().render(
        report=report,
        theme=theme,
        cards_only=cards_only,
        origin=_origin(report),
        folds=found,
        with_heads=len({card.head for card in report.cards}) > 1,
        opened=len(found) == 1 or len(report.cards) <= _MOST_OPEN,
        waiting=len(report.cards) > _MOST_IN_PAGE,
        index={} if cards_only else search_index(report),
        even=1 / max(1, report.origin["num_groups"]),
        tags_shown=_TAGS_SHOWN,
        many=report.origin["num_groups"] > _MANY_GROUPS,
        style=_own_file("style.css"),
        script=script,
        script_hash=f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
    )


def summary(report: Report) -> str:
    """The report in a few short sentences."""
    filled = [card for card in report.cards if card.count]
    if not filled:
        return "No group of the chosen layers has a token."
    large = max(card.share.value for card in report.cards)
    small = min(card.share.value for card in report.cards)
    even = 1 / max(1, report.origin["num_groups"])
    layers = f"{len(report.layers)} {'layer' if len(report.layers) == 1 else 'layers'}"
    heads = len({card.head for card in report.cards})
    layers = f"{heads} heads of {layers}" if heads > 1 else layers
    start = (
        f"{len(report.cards):,} groups in {layers} hold {small:.1%} to {large:.1%} of {report.num_tokens:,} "
        f"{'token' if report.num_tokens == 1 else 'tokens'} each. An even split is {even:.1%}."
    )
    enough = max(20, report.num_tokens // 100)  # a few tokens share a group easily
    known = [card for card in filled if card.persistence and card.count >= enough]
    if not known:
        return start
    persistent = max(known, key=lambda card: _next(card).observed - _next(card).chance)
    other = _next(persistent)
    return (
        f"{start} {card_title(persistent)} is the most persistent: {other.observed:.0%} of its token pairs share a "
        f"group in layer {other.layer} too, and {other.chance:.0%} of all pairs do."
    )


def _next(card: Card) -> Any:
    """The entry for the following layer, the preceding one for the last."""
    later = [other for other in card.persistence if other.layer > card.layer]
    return later[0] if later else card.persistence[-1]


def _origin(report: Report) -> list[tuple[str, str]]:
    origin, made = report.origin, report.made
    trained = how_made(origin.get("router", "layer"), trained=origin["routers_trained"])
    trained += "" if origin["routers_trained"] else ": their groups mean nothing"
    names = ", ".join(document.name for document in report.documents[:5])
    more = len(report.documents) - 5
    characters = sum(document.characters for document in report.documents)
    return [
        ("Text", f"{names}{f' and {more:,} more' if more > 0 else ''}: {characters:,} characters"),
        *([("Failed", f"{len(report.failed):,} documents, which are in no number here")] if report.failed else []),
        ("Tokens", f"{report.num_tokens:,}, routed in blocks of up to {report.block_length:,}"),
        ("Text SHA-256", origin["text_sha256"]),
        ("Model", f"{origin['model']} @ {origin['model_revision']}"),
        ("Routers", f"{origin['routers']} @ {origin['routers_hash']}, {trained}"),
        (
            "Settings",
            f"K {origin['num_groups']}, {_budget(origin['top_k'])}, window {origin['window']}, "
            f"sinks {origin['sink_tokens']}, balance {origin['balance']}, hidden states of the {origin['states']}",
        ),
        ("Intervals", report.intervals),
        ("Parts of speech", report.tagger),
        ("Seed", str(report.seed)),
        ("Made", f"{made['date']} on {made['device']}"),
        ("Versions", ", ".join(f"{name} {version}" for name, version in made["versions"].items())),
    ]


def _budget(top_k: int | str) -> str:
    """k in words; a share of the pairs says so itself."""
    share, percent, _ = str(top_k).removeprefix("budget ").partition("%")
    return f"{share}% of distant pairs read" if percent else f"k {top_k}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _interval(share: Interval) -> str:
    return "" if share.low is None or share.high is None else f"{share.low:.1%}–{share.high:.1%}"


def _lines(text: str) -> str:
    """A note with its line breaks; all other invisible characters are marked."""
    return "\n".join(visible(line) for line in text.replace("\r\n", "\n").split("\n"))


def _css(value: float | None, largest: float = 1.0) -> str:
    """A share as a CSS length, always digits alone."""
    return f"{100 * min(max((value or 0.0) / max(largest, 1e-9), 0.0), 1.0):.2f}%"


def _points(card: Card, kind: str) -> str:
    """A polyline of one curve of the persistence plot; the x axis is the layer."""
    first, last = card.persistence[0].layer, card.persistence[-1].layer
    return " ".join(
        f"{(other.layer - first) / max(1, last - first) * _PLOT_WIDTH:.1f},"
        f"{(1 - getattr(other, kind)) * _PLOT_HEIGHT:.1f}"
        for other in card.persistence
    )


def to_json(report: Report) -> bytes:
    """The whole report as JSON in ASCII: exact values, every unusual character escaped."""
    return (json.dumps(dataclasses.asdict(report), indent=1, allow_nan=False) + "\n").encode("ascii")


@cache
def _own_file(name: str) -> Markup:
    """A file of this folder, as it is."""
    return Markup(files("focus_core.report").joinpath(name).read_text(encoding="utf-8"))


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("focus_core.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "visible": visible,
        "token": visible_token,
        "lines": _lines,
        "percent": _percent,
        "interval": _interval,
        "css": _css,
    }
    environment.globals |= {
        "address": address,
        "card_title": card_title,
        "guess": guess,
        "name_of": lambda card: named(card.note)[0],
        "note_of": lambda card: named(card.note)[1],
        "summary": summary,
        "points": _points,
        "next_layer": _next,
    }
    return environment.get_template("template.html")

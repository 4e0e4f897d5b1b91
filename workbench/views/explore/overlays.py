"""Values that tint the strip in place of groups: loss, its change by routing, and attention that is not read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from focus_core.analysis import Trace
from focus_core.analysis.token_values import BothLosses
from focus_core.analysis.tokens import token_text
from focus_core.evaluation.compare import mean_difference
from workbench.charts.tints import BETTER, WORSE, round_end, tint

OVERLAYS = {"groups": "Groups", "loss": "Loss", "change": "Cost of routing", "unread": "Not read"}
"""What tints the strip, by its name in links."""
LOSS, UNREAD = ("#009E73", "#2BBF94"), ("#AA4499", "#D77FC6")
"""Tones on light and on dark pages."""
BLOCK = 16
"""Tokens of a stretch of the text, of which intervals are made."""
_QUANTILE = 0.98
_LEAST = {"loss": 1.0, "change": 0.05, "unread": 0.02}
"""The strongest tint stands at least for this much, so that rounding alone looks like nothing."""
_FIRST = "the first token is not predicted"
_STEPS = (0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Overlay:
    """A value of every token, with what it means.

    Attributes:
        kind: a key of `OVERLAYS`.
        values: (T,), NaN where a token has none.
        said: (T,) what the card of each token says.
        end: the value that has the strongest tint.
        sentences: the meaning, first in plain words.
        table: every token with its values, for downloads.
    """

    kind: str
    values: np.ndarray
    said: list[str]
    end: float
    sentences: str
    table: pd.DataFrame

    def label(self, token: int) -> str:
        """What stands under a token; empty where it has no tint, since thousands of zeros say nothing."""
        return short(self.kind, float(self.values[token]), self.end) if self.colors(token)[0] else ""

    def colors(self, token: int, *, dark: bool = False) -> tuple[str, str]:
        """Fill and ink of a token."""
        return _colors(self.kind, float(self.values[token]) / self.end, dark)

    def tint(self, data: dict[str, Any], *, dark: bool = False) -> dict[str, Any]:
        """The strip's data with values in place of groups; cells show their last token's, as they do its group."""
        cells = [cell | self._drawn(cell["k"][-1][0], dark) if cell["k"] else cell for cell in data["cells"]]
        return data | {"cells": cells, "scale": self.legend(dark=dark)}

    def _drawn(self, token: int, dark: bool) -> dict[str, Any]:
        return {"l": self.label(token), "c": list(self.colors(token, dark=dark)), "v": self.said[token]}

    def legend(self, *, dark: bool = False) -> dict[str, Any]:
        """Title and steps of the scale, for the strip's script."""
        steps = [-part for part in reversed(_STEPS)] + [0.0] if self.kind == "change" else [0.0]
        steps += _STEPS
        drawn = []
        for part in steps:
            fill, ink = _colors(self.kind, part, dark)
            drawn.append({"fill": fill, "ink": ink, "text": short(self.kind, part * self.end, self.end)})
        titles = {
            "loss": "Nats of loss, more is more surprising:",
            "change": "Nats of loss that routing adds:",
            "unread": "Percent of attention not read:",
        }
        return {"title": titles[self.kind], "steps": drawn}


def short(kind: str, value: float, end: float) -> str:
    """A value in as few characters as tell it from others on a scale: percent without its sign, or nats."""
    if kind == "unread":
        return f"{100 * value:.0f}" if end > 0.1 else f"{100 * value:.1f}"
    text = f"{abs(value):.{1 if end >= 2 else 2 if end >= 0.2 else 3}f}"
    text = text.rstrip("0").rstrip(".") or "0"
    if float(text) == 0:
        return "0"
    sign = "" if kind == "loss" else "+" if value > 0 else "−"
    return sign + text.removeprefix("0")


def loss_overlay(trace: Trace, untouched: np.ndarray) -> Overlay:
    """How hard each token is to predict for the untouched model.

    Args:
        trace: the routing.
        untouched: (T,) losses.
    """
    mean = float(np.nanmean(untouched))
    sentences = (
        f"**How surprising is each token to the untouched model?** Its loss is {mean:.2f} nats per token on average: "
        f"like a choice among {np.exp(mean):,.0f} equally likely tokens. The stronger the colour, the harder. "
        "The whole model is meant, so every layer shows the same."
    )
    said = [_FIRST if np.isnan(loss) else f"loss {loss:.3f} nats untouched" for loss in untouched.tolist()]
    return Overlay(
        "loss", untouched, said, _end("loss", untouched), sentences, _table(trace, {"loss_untouched": untouched})
    )


def change_overlay(trace: Trace, losses: BothLosses) -> Overlay:
    """How much harder routing in all layers makes each token."""
    known = losses.change[~np.isnan(losses.change)]
    blocks = np.array_split(known, max(1, len(known) // BLOCK))
    found = mean_difference([float(block.mean()) for block in blocks])
    interval = ""
    if found.low is not None and found.high is not None:
        interval = (
            f" (95% {found.low:+.4f} to {found.high:+.4f}, Student's t over {found.blocks} stretches of this text)"
        )
    verdict = "" if found.established else ", which establishes no difference"
    sentences = (
        "**What does routing cost at each token?** Orange tokens are harder to predict with it, blue ones easier. "
        f"The loss changes by {known.mean():+.4f} nats per token on average{interval}{verdict}. "
        "Routing is in all layers here, so every layer shows the same."
    )
    said = [
        _FIRST
        if np.isnan(before)
        else f"loss {before:.3f} nats untouched, {after:.3f} with routing ({after - before:+.3f})"
        for before, after in zip(losses.untouched.tolist(), losses.routed.tolist())
    ]
    columns = {"loss_untouched": losses.untouched, "loss_routed": losses.routed, "change": losses.change}
    return Overlay("change", losses.change, said, _end("change", losses.change), sentences, _table(trace, columns))


def unread_overlay(trace: Trace, row: int, shares: np.ndarray) -> Overlay:
    """How much of its attention each token would spend on what it does not read in a layer.

    Args:
        trace: the routing.
        row: row of its layers.
        shares: (T,) of the layer, from `focus_core.analysis.token_values.unread_attention`.
    """
    narrow = trace.parts is not None
    fate = "are known through summaries alone" if narrow else "are dropped"
    heads = f"Of {trace.reader}." if narrow else "Mean over the query heads."
    sentences = (
        f"**How much does each token miss in layer {trace.layers[row]}?** With full attention it would spend "
        f"{shares.mean():.1%} of its attention on tokens that {fate}, on average, and {shares.max():.0%} at most. "
        f"The stronger the colour, the more. {heads}"
    )
    said = [f"{share:.1%} of its full attention is on tokens that it does not read" for share in shares.tolist()]
    table = _table(trace, {f"layer_{trace.layers[row]}_attention_not_read": shares})
    return Overlay("unread", shares, said, _end("unread", shares), sentences, table)


def _table(trace: Trace, columns: dict[str, np.ndarray]) -> pd.DataFrame:
    tokens = np.arange(len(trace.tokens))
    return pd.DataFrame({"token": tokens, "text": [token_text(trace, int(i)) for i in tokens], **columns})


def _end(kind: str, values: np.ndarray) -> float:
    sizes = np.abs(values[~np.isnan(values)])
    high = float(np.quantile(sizes, _QUANTILE)) if sizes.size else 0.0
    end = round_end(max(high, _LEAST[kind]))
    return min(end, 1.0) if kind == "unread" else end


def _colors(kind: str, weight: float, dark: bool) -> tuple[str, str]:
    if kind == "change":
        return tint(abs(weight), (WORSE if weight > 0 else BETTER)[dark], dark=dark)
    return tint(weight, (LOSS if kind == "loss" else UNREAD)[dark], dark=dark)

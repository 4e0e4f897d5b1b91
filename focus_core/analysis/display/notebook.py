"""A trace in a notebook: the text with every token coloured by its group, a card on hover, a slider for the layer.

The HTML holds its own script, style and data. It fetches nothing and runs without a server.
"""

from __future__ import annotations

import hashlib
import html
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from focus_core.analysis.display.cells import Cell, build_cells, page_of, paginate
from focus_core.analysis.display.strip import asset, drawn_groups, legend, token_facts, token_groups
from focus_core.analysis.tokens import margin_of
from focus_core.errors import FocusError
from focus_core.io.files import write_atomic

if TYPE_CHECKING:
    from focus_core.analysis.routed_text import RoutedText

MAX_TOKENS = 1000
"""Tokens drawn in one strip, about; a longer text is shown in parts."""

_SCRIPT = """<div data-focus-strip="{mark}">The token strip is drawn by a script: trust this notebook to see it.</div>
<script>(() => {{
const DATA = {data};
const STYLE = {style};
{code}
for (const host of document.querySelectorAll('[data-focus-strip="{mark}"]')) drawTrace(host, DATA, STYLE);
}})();</script>"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>:root {{ color-scheme: light dark; }} body {{ max-width: 75rem; margin: 1.5rem auto; padding: 0 1rem; }}</style>
</head>
<body>
{strip}
</body>
</html>
"""


@dataclass(frozen=True)
class TokenStrip:
    """The token strip of a trace. A notebook displays it; `save` writes it as a page.

    Attributes:
        trace: the routing.
        row: the row of the trace that is shown first; the slider reaches the others.
        first: a token of the part that is shown, where the text is longer than `MAX_TOKENS`.
    """

    trace: RoutedText
    row: int
    first: int = 0

    def _repr_html_(self) -> str:
        data = _ascii(self.data())
        mark = hashlib.sha256(data.encode("ascii")).hexdigest()[:16]
        code = asset("strip.js") + asset("notebook.js")
        style = _ascii(asset("strip.css") + asset("notebook.css"))
        return _SCRIPT.format(mark=mark, data=data, style=style, code=code)

    def save(self, path: str | Path) -> Path:
        """Write the strip atomically as one HTML file that opens without a network.

        Args:
            path: file to write.

        Returns:
            The path.

        Raises:
            OSError: the file cannot be written.
        """
        title = f"Groups of every token: {self.trace.provenance.routers}"
        return write_atomic(Path(path), _PAGE.format(title=html.escape(title), strip=self._repr_html_()))

    def data(self) -> dict[str, Any]:
        """The data that the script draws, JSON-ready: cells of the part shown, and its tokens' groups in every layer.

        Weights and margins are whole thousandths.
        """
        trace = self.trace
        cells = self._cells()
        tokens = [token for cell in cells for token in cell.tokens]
        raw = trace.token_bytes
        return {
            "about": _about(trace),
            "untrained": not trace.provenance.trained,
            "part": self._part(tokens),
            "cells": [
                {"t": trace.text[cell.start : cell.end], "k": [token_facts(trace, raw, token) for token in cell.tokens]}
                for cell in cells
            ],
            "layers": [_layer(trace, row, tokens) for row in range(len(trace.layers))],
            "row": self.row,
            "by": margin_of(trace),
            "sinks": trace.config.sink_tokens,
        }

    def _cells(self) -> list[Cell]:
        cells = build_cells(self.trace.text, self.trace.offsets)
        pages = paginate(cells, MAX_TOKENS)
        first, last = pages[page_of(cells, pages, self.first)]
        return cells[first:last]

    def _part(self, tokens: list[int]) -> str:
        count = len(self.trace.tokens)
        if len(tokens) == count:
            return ""
        start, end = tokens[0], tokens[-1]
        more = f"first={end + 1}) shows the next part" if end + 1 < count else ") shows the first part"
        return f"Tokens {start:,} to {end:,} of {count:,}; trace.show({more}. Shares are of the whole text."


def token_strip(trace: RoutedText, layer: int | None = None, first: int = 0) -> TokenStrip:
    """The token strip of a trace.

    Args:
        trace: the routing.
        layer: the model's layer that is shown first; by default the middle one of `trace.layers`.
        first: a token of the part that is shown, where the text is longer than `MAX_TOKENS`.

    Raises:
        FocusError: the layer has no router, or there is no such token.
    """
    if layer is not None and layer not in trace.layers:
        known = ", ".join(map(str, trace.layers))
        raise FocusError(f"Layer {layer} is not in this trace: choose one of {known}.")
    if not 0 <= first < len(trace.tokens):
        raise FocusError(f"Token {first} is not in this trace: choose 0 to {len(trace.tokens) - 1}.")
    row = len(trace.layers) // 2 if layer is None else trace.layers.index(layer)
    return TokenStrip(trace, row, first)


def _layer(trace: RoutedText, row: int, tokens: list[int]) -> dict[str, Any]:
    """Flat lists of one layer, which keep a notebook small; each follows the order of `tokens`."""
    said = token_groups(trace, row, np.asarray(tokens, dtype=np.int64))
    found: dict[str, Any] = {
        "layer": trace.layers[row],
        "legend": legend(trace, row),
        "drawn": drawn_groups(trace.config, row),
        "groups": [group for listed, _, _ in said for group, _ in listed],
        "weights": [round(1000 * weight) for listed, _, _ in said for _, weight in listed],
        "margins": [None if margin is None else round(1000 * margin) for _, margin, _ in said],
    }
    if trace.head is not None:
        found["reads"] = [read for _, _, read in said]
    return found


def _about(trace: RoutedText) -> str:
    config, provenance = trace.config, trace.provenance
    k = "k planned for each layer" if config.layer_top_k is not None else f"k {config.top_k}"
    k = config.budget if config.read_share is not None else k
    head = "" if trace.head is None else f" · {trace.reader or f'key/value head {trace.head}'}"
    return (
        f"{len(trace.tokens):,} tokens · {provenance.model} @ {provenance.model_revision} · "
        f"routers {provenance.routers}{head} · "
        f"K {config.num_groups}, {k}, window {config.window}, sinks {config.sink_tokens}"
    )


def _ascii(value: object) -> str:
    """JSON that is safe inside a script element: ASCII, without characters that an HTML parser would read."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")

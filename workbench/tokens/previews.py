"""Groups of the samples as they ship, shown until the model has been loaded and has routed the text.

`tools/previews.py` writes them. They hold for one set of routers and one text, known by their hashes; anything else has
no preview.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from focus_core.analysis.display.cells import Cell, build_cells, paginate
from focus_core.analysis.display.palette import group_color, ink
from focus_core.analysis.tables import text_hash
from focus_core.analysis.trace import RoutedLayer
from focus_core.errors import FocusError
from focus_core.io.reading import read_bytes, read_json
from focus_core.io.schema import table
from focus_core.resources import data_dir
from focus_core.routing.storage import CONFIG, WEIGHTS
from workbench.engine.service import Settings, router_folder

INDEX, FIGURE = "index.json", "figure.json"
FORMAT = 1


@dataclass(frozen=True, eq=False)
class Preview:
    """The groups of one sample.

    Attributes:
        text: the text.
        offsets: (T, 2) int, characters of each token.
        layers: numbers of the layers.
        groups: (L, T) uint8, group of each token.
        families: (L, K) uint8, the colour of each group.
    """

    text: str
    offsets: np.ndarray
    layers: tuple[int, ...]
    groups: np.ndarray
    families: np.ndarray


def folder() -> Path:
    """Where previews are kept."""
    return data_dir() / "previews"


def fingerprint(routers: str) -> str:
    """Identifies the files of shipped routers: SHA-256 of settings and weights."""
    place = router_folder(routers)
    return hashlib.sha256(b"".join(read_bytes(place / name) for name in (CONFIG, WEIGHTS))).hexdigest()


def index() -> dict[str, Any]:
    """What the previews were made of; empty where there are none, or where the routers are others by now."""
    try:
        found = read_json(folder() / INDEX, table())
        if found["format"] == FORMAT and found["fingerprint"] == fingerprint(found["routers"]):
            return found
    except (OSError, FocusError, KeyError, TypeError):
        pass
    return {}


def find(settings: Settings, text: str) -> Preview | None:
    """The preview of a text at some settings; None if there is none, or if it is stale.

    Groups of keys depend on the routers, the head and the untouched model alone, so window and share do not matter.
    """
    if settings.model != "default" or settings.states != "untouched":
        return None
    found = index()
    if not found or (found["routers"], found["head"]) != (settings.routers, settings.head):
        return None
    name = found["texts"].get(text_hash(text))
    if not isinstance(name, str) or Path(name).name != name:
        return None
    try:
        with np.load(folder() / name, allow_pickle=False) as arrays:
            offsets, groups = arrays["offsets"], arrays["groups"]
            layers, families = tuple(arrays["layers"].tolist()), arrays["families"]
    except (OSError, ValueError, KeyError):
        return None
    if groups.shape != (len(layers), len(offsets)) or len(families) != len(layers) or offsets[-1, 1] != len(text):
        return None
    return Preview(text, offsets, layers, groups, families)


def of_layer(text: str, offsets: np.ndarray, part: RoutedLayer) -> Preview:
    """A layer of a text that is being routed, as a preview of that layer alone.

    Args:
        text: the text.
        offsets: (T, 2) int, characters of each token.
        part: the groups of the layer.
    """
    return Preview(text, offsets, (part.layer,), part.groups[None], part.families[None])


def preview_strip(preview: Preview, layer: int, selected: int | None = None) -> dict[str, Any]:
    """The first page of a preview as the data of a token strip; its tokens have an index and a group, nothing else.

    Args:
        preview: of the text.
        layer: number of a layer; the middle one if it has no groups.
        selected: token drawn with a frame.
    """
    row = preview.layers.index(layer) if layer in preview.layers else len(preview.layers) // 2
    groups, colors = preview.groups[row], [group_color(int(family)) for family in preview.families[row]]
    cells: list[Cell] = build_cells(preview.text, preview.offsets)
    first, last = paginate(cells)[0]
    share = np.bincount(groups, minlength=len(colors)) / len(groups)
    drawn = []
    for cell in cells[first:last]:
        item: dict[str, Any] = {"t": preview.text[cell.start : cell.end], "k": [[token] for token in cell.tokens]}
        if cell.tokens:
            group = int(groups[cell.tokens[-1]])
            item |= {"g": [group], "l": str(group)}
        drawn.append(item)
    legend = [
        {"number": group, "fill": color, "ink": ink(color), "share": float(share[group])}
        for group, color in enumerate(colors)
    ]
    named = {"groups": legend, "selected": selected, "sinks": 0, "by": "score", "layer": preview.layers[row]}
    return {"cells": drawn, **named}

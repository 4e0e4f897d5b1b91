"""What the model cards of shipped routers share: their files, and tables of settings and of texts."""

from __future__ import annotations

import json
from typing import Any

from cards import ROOT, table

ROUTERS = ROOT / "data" / "routers"
Row = tuple[str, ...]


def beside(name: str, file: str) -> dict[str, Any]:
    """A JSON file of shipped routers."""
    return json.loads((ROUTERS / name / file).read_text(encoding="utf-8"))


def facts(*pairs: Row) -> str:
    """A table of settings, one line each."""
    return table(("setting", "value"), pairs)


def base(name: str, training: dict[str, Any]) -> list[Row]:
    """The model by both of its names: of the file it came from, and of the weights in memory, which the app shows."""
    model = training["model"]
    return [
        ("base model", f"{model['name']}, revision {model['revision']}, unchanged"),
        ("weights", beside(name, "focus_config.json")["base"]["fingerprint"]),
    ]


def book_table(training: dict[str, Any]) -> str:
    """The training texts with their sizes and checksums, as Markdown."""
    rows = [(item["name"], f"{item['bytes']:,}", f"`{item['sha256']}`") for item in training["data"]]
    return table(("file", "bytes", "SHA-256"), rows)

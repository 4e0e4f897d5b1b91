"""The record of the protocol: its texts and routers, and how a file grows by repeated calls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from focus_core.errors import FocusError
from focus_core.frontier.measure import POINT, Point
from focus_core.frontier.texts import Cut, Kind
from focus_core.io.reading import read_json
from focus_core.io.schema import Wrong, array, table, text, whole
from focus_core.results import plain, resume_record, text_records

SCHEMA = "focus-frontier-kinds/1"
GROWING = ("lengths", "blocks", "shares", "top_k")
"""Settings that may differ when a record is resumed: they decide which cells there are, not their results."""
OLDER = {"learned_tokens": 300 * 1024, "tuned": False}
"""Settings that older records lack."""


_BLOCKS = table({"used": whole(0)})
_KIND = table({"documents": array(table({"sha256": text()})), "blocks": table(values=_BLOCKS)})
_GROWING = table(
    {
        "routers": table(values=table({"hash": text()})),
        "kinds": table(values=_KIND),
        "ours": table({"method": text()}),
    },
    {"learned": table(), "tuning": array(table())},
)


def described(texts: Sequence[Kind], cuts: dict[tuple[str, int], Cut]) -> dict[str, Any]:
    """Documents of each kind, and how many blocks of which documents are used at each length."""
    found: dict[str, Any] = {text.name: {"documents": text_records(text.files), "blocks": {}} for text in texts}
    for (name, length), part in cuts.items():
        found[name]["blocks"][str(length)] = {
            "used": len(part.blocks),
            "available": part.available,
            "documents": part.documents,
        }
    return found


def contained(settings: dict[str, Any], points: Sequence[Point]) -> dict[str, Any]:
    """Settings of a record with the lengths, blocks, shares and k that its points have, in place of one call's.

    Args:
        settings: those of the last call.
        points: all points of the record.

    Returns:
        The settings; ``blocks`` is the largest number of blocks of a kind at each length, by length.
    """
    blocks: dict[str, int] = {}
    for point in sorted(points, key=lambda point: point.length or 0):
        blocks[str(point.length)] = max(blocks.get(str(point.length), 0), len(point.block_nll))
    found = {
        "lengths": {point.length for point in points},
        "shares": {point.wanted_share for point in points},
        "top_k": {point.top_k for point in points},
    }
    return {**settings, "blocks": blocks} | {name: sorted(each - {None}) for name, each in found.items()}


def resumed(out: Path, report: dict[str, Any], growing: dict[str, Any]) -> dict[str, Any]:
    """The record of the file with what this call adds to it, or a new one.

    Raises:
        FocusError: the file holds other text of a kind, other routers of a name, or more blocks.
    """
    record, growing = resume_record(out, report, free=GROWING, older=OLDER, point=POINT), plain(growing)
    if not out.exists():
        return record | growing | {"learned": {}, "tuning": []}
    stored = read_json(out)
    try:
        _GROWING(stored, "")
    except Wrong as error:
        raise FocusError(f"{out} is not a record of this command ({error}): name another file with --out.") from error
    elsewhere = "name another file with --out."
    for name, entry in growing["routers"].items():
        if stored["routers"].get(name, entry)["hash"] != entry["hash"]:
            raise FocusError(f"{out} holds other routers of the name {name}: {elsewhere}")
    kinds = dict(stored["kinds"])
    for name, entry in growing["kinds"].items():
        before = kinds.get(name, entry)
        if before["documents"] != entry["documents"]:
            raise FocusError(f"{out} holds other text of the kind {name!r}: {elsewhere}")
        for length, blocks in entry["blocks"].items():
            more = before["blocks"].get(length, blocks)["used"]
            if more > blocks["used"]:
                raise FocusError(f"{out} holds {more} blocks of {name} at {length}: repeat with as many --blocks.")
        kinds[name] = entry | {"blocks": before["blocks"] | entry["blocks"]}
    same = {"ours": stored["ours"], "learned": stored.get("learned", {}), "tuning": stored.get("tuning", [])}
    return record | {"kinds": kinds, "routers": stored["routers"] | growing["routers"]} | same

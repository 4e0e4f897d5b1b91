"""Experiments that other commands already run: speed curves (`focus bench attention`) and groups (`focus align`)."""

from __future__ import annotations

from typing import Any

from focus_core.bench.attention import run_bench
from focus_core.bench.settings import BenchSettings
from focus_core.errors import FocusError
from focus_core.reproduce.context import Context
from focus_core.reproduce.runner import CELLS

SPEED_COLUMNS = ("tokens", "num_groups", "top_k", "dtype", "speedup", "bound", "kept_share", "error_output")
GROUP_COLUMNS = (
    *("category", "layer", "group", "purity", "recall", "base_rate", "group_share", "attainable"),
    *("words", "words_chosen_on"),
)
ROUTINGS = ((4, 1), (8, 1), (8, 2))


def speed_cells(context: Context) -> dict[str, dict[str, Any]]:
    """One cell per number of tokens, doubling from 1,024 to the scale's length."""
    sizes, size = [], 1024
    while size <= max(1024, context.scale.length):
        sizes.append(size)
        size *= 2
    return {f"{tokens}": {"tokens": tokens, "routings": ROUTINGS} for tokens in sizes}


def run_speed(context: Context, cell: str, values: dict[str, Any]) -> dict[str, Any]:
    """Time full and sparse attention alternately; nothing else should run on the machine."""
    settings = BenchSettings(
        sizes=(values["tokens"],),
        routings=tuple(values["routings"]),
        dtypes=("bfloat16",),
        device=context.device,
        seed=context.seed,
    )
    record = run_bench(settings, context.folder / CELLS / cell / "bench.json")
    return {
        "rows": [{key: point[key] for key in (*SPEED_COLUMNS, "failure") if key in point} for point in record["points"]]
    }


def group_cells(context: Context) -> dict[str, dict[str, Any]]:
    """One cell: all layers are searched for the published categories.

    Raises:
        FocusError: a treebank of another form, or a device that groups are not measured on.
    """
    if context.treebank is not None and context.treebank.is_file() and context.treebank.suffix.lower() != ".conllu":
        raise FocusError(f"{context.treebank} is no treebank: give a .conllu file, or texts with --held-out.")
    if context.device != "cpu":
        raise FocusError("Groups are measured on the CPU: leave --device out.")
    return {"groups": {"repeats": 200}}


def run_groups(context: Context, cell: str, values: dict[str, Any]) -> dict[str, Any]:
    """The purest group for each published category, with its references, as `focus align` measures them."""
    from focus_core.analysis.linguistics.run import AlignSettings, align_texts

    scale = context.scale
    texts = {"length": scale.length, "passages": scale.blocks}
    parts: dict[str, Any] = texts if context.treebank is None else {"documents": 8 * scale.blocks}
    settings = AlignSettings(**parts, repeats=values["repeats"], seed=context.seed)
    found = align_texts(
        [context.treebank] if context.treebank is not None else context.held_files,
        model=context.models[0],
        routers=context.routers,
        settings=settings,
        out=context.folder / CELLS / cell / "alignment.json",
        progress=context.progress,
    )
    record = found.record
    return {"rows": record["published"] or [], "verdicts": record["verdicts"], "texts": record["data"]}

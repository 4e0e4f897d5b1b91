"""Records beyond perplexity tables, for the views of the page Quality: each kind read into one table.

A record that does not fit its kind is refused with a reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from focus_core.errors import FocusError
from focus_core.frontier.kinds.record import SCHEMA as KINDS
from focus_core.frontier.measure import SCHEMA as FRONTIER
from focus_core.io.reading import read_json, regular
from focus_core.io.schema import maybe, table, text
from focus_core.resources import data_dir, runs_dir
from focus_core.results import REPRODUCTION
from workbench.views.quality.kinds import kinds_table
from workbench.views.quality.record_tables import (
    adapters,
    benchmarks,
    compared,
    curves,
    differences,
    frontier,
    leak,
    lengths,
    recipes,
    sweep,
)
from workbench.views.quality.tables import MAX_BYTES


@dataclass(frozen=True)
class Record:
    """A recorded run that a view can show.

    Attributes:
        kind: key of `VIEWS`.
        name: of its file, or of its folder among the app's runs.
        date: when it was written, ISO.
        content: the record.
    """

    kind: str
    name: str
    date: str
    content: dict[str, Any]

    @property
    def label(self) -> str:
        """For a menu: name, model and day."""
        return f"{self.name} · {self.content['model']['name']} · {self.date[:10]}"


@dataclass(frozen=True)
class View:
    """One kind of evidence.

    Attributes:
        label: for the menu.
        question: its subject in one sentence, without the full stop.
        command: that makes such a record.
        table: from a record's content to the table that is drawn.
        draw: how: "differences", "path", "lengths", "curves", "frontier" or "kinds".
        metric: the quantity on the axis.
        retired: whether only older versions made such records; the command now measures another kind.
    """

    label: str
    question: str
    command: str
    table: Callable[[dict[str, Any]], pd.DataFrame]
    draw: str = "differences"
    metric: str = "perplexity above the untouched model"
    retired: bool = False


_RECORD = table({"model": table()}, {"made": maybe(table(optional={"date": text()})), "schema": text()})


def find_records(files: Iterable[Path]) -> list[Record]:
    """The records among files, newest first; of kinds of text one's own, then the shipped one that measured most.

    Other files are passed over.
    """
    found: list[tuple[float, str, Record]] = []
    for path in files:
        try:
            content = read_json(path, _RECORD) if regular(path).stat().st_size <= MAX_BYTES else None
        except (OSError, FocusError):
            continue
        if content is None:
            continue
        name = path.parent.name if path.name in ("result.json", "summary.json", "training.json") else path.stem
        date = (content.get("made") or {}).get("date", "")
        own = not path.is_relative_to(data_dir() / "results")
        found += [(_rank(kind, content, own), date, Record(kind, name, date, content)) for kind in _kinds(content)]
    return [record for *_, record in sorted(found, key=lambda each: each[:2], reverse=True)]


def by_name(records: Iterable[Record]) -> dict[str, Record]:
    """Records by their names, which links to them hold; of a name that comes again the number is added."""
    found: dict[str, Record] = {}
    for record in records:
        name, number = record.name, 2
        while name in found:
            name, number = f"{record.name} {number}", number + 1
        found[name] = record
    return found


def _rank(kind: str, content: dict[str, Any], own: bool) -> float:
    """What goes before the date in the order of records: of kinds of text, the texts times lengths of a shipped one."""
    if kind != "kinds":
        return 0
    if own:
        return math.inf
    points = content.get("points")
    rows = [point for point in points if isinstance(point, dict)] if isinstance(points, list) else []
    return len({(str(point.get("text")), str(point.get("length"))) for point in rows})


def run_files() -> list[Path]:
    """Results of `focus reproduce` and `focus harness` in the app's folder of runs."""
    folder = runs_dir()
    return sorted([*folder.glob("*/result.json"), *folder.glob("*/summary.json")])


def read(record: Record) -> pd.DataFrame:
    """The table of a record's view.

    Raises:
        FocusError: the record is damaged or of another version.
    """
    try:
        return VIEWS[record.kind].table(record.content)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise FocusError(f"The record {record.name} is damaged or of another version: make it again.") from error


def _kinds(content: dict[str, Any]) -> list[str]:
    if content.get("schema") == REPRODUCTION:
        name = content.get("experiment")
        return [name] if isinstance(name, str) and name in VIEWS else []
    if content.get("schema") in (FRONTIER, KINDS):
        return ["frontier" if content["schema"] == FRONTIER else "kinds"]
    rows = content.get("results")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        return []
    if "headline" in rows[0] and "exposure" in rows[0]:
        return ["benchmarks"]
    if "trainable_parameters" in rows[0]:
        return ["adapters"]
    return ["leak"] if any(row.get("balance") == "sequence" and row.get("block_nll") for row in rows) else []


VIEWS: dict[str, View] = {
    "kinds": View(
        "Kinds of text",
        "Retention of routers and of published sparse attention, by kind of text and length",
        "focus frontier --kinds FOLDER --train FOLDER --out kinds.json",
        kinds_table,
        draw="kinds",
    ),
    "frontier": View(
        "Frontier with baselines",
        "Perplexity of routers and of published sparse attention at the same kept share, window and sinks",
        "focus frontier --data FILE --train FOLDER --out frontier.json",
        frontier,
        draw="frontier",
    ),
    "k-sweep": View(
        "k sweep",
        "Perplexity and kept pairs by the number of groups a token joins",
        "focus reproduce k-sweep --held-out FILE",
        sweep,
        draw="path",
    ),
    "lengths": View(
        "Length transfer",
        "Routers trained on short blocks, evaluated on longer ones",
        "focus reproduce lengths --held-out FILE",
        lengths,
        draw="lengths",
    ),
    "domains": View("Domains", "Change of perplexity by kind of text", "focus reproduce domains", differences),
    "stability": View(
        "Stability",
        "Balance of groups under each remedy, training the routers alone and then all weights",
        "focus reproduce stability --data FILE",
        curves,
        draw="curves",
    ),
    "ablation": View(
        "Ablation",
        "Change of perplexity as one setting at a time is changed",
        "focus reproduce ablation --data FILE",
        differences,
    ),
    "recipes": View(
        "Recipes",
        "Change of perplexity by each change of the recipe, at 40% of the distant pairs",
        "focus reproduce recipes --data FILE",
        recipes,
        metric="perplexity minus the base recipe's at the same kept share",
    ),
    "retrofit": View(
        "Retrofit",
        "Recipes and published sparse attention after short training",
        "focus reproduce retrofit --data FILE",
        differences,
    ),
    "scale": View(
        "Scale",
        "The published recipe on several models",
        "focus reproduce scale --data FILE --model NAME",
        differences,
    ),
    "finetune": View(
        "Fine-tuning",
        "All weights trained, with full attention and with routing",
        "focus reproduce finetune --data FILE",
        differences,
    ),
    "benchmarks": View(
        "Benchmarks",
        "Change of benchmark scores, beside the share of pairs that routing can drop",
        "focus harness --data FOLDER",
        benchmarks,
        metric="score minus untouched",
    ),
    "adapters": View(
        "LoRA",
        "Perplexity of low-rank adapters on the routers' training text",
        "focus reproduce lora --data FILE --held-out FILE",
        adapters,
        retired=True,
    ),
    "lora": View(
        "Routers and LoRA",
        "Routers and LoRA trained on the same text for the same steps",
        "focus reproduce lora --data FILE --bench FOLDER",
        compared,
    ),
    "adapted": View(
        "Adapted model",
        "Routers beside full attention adapted to the same text, and baselines on that model",
        "focus reproduce adapted --data FILE --held-out FILE",
        compared,
    ),
    "alignment": View(
        "Alignment",
        "TruthfulQA and HellaSwag after routers and after LoRA",
        "focus reproduce alignment --data FILE --bench FOLDER",
        compared,
    ),
    "leak": View(
        "Leak",
        "Perplexity that sequence Sinkhorn gains by seeing later tokens",
        "focus eval --data FILE --out results.json",
        leak,
        metric="perplexity, sequence minus calibrated",
    ),
}
"""Every view by the kind of its records."""

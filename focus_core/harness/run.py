"""Benchmarks of the evaluation harness under several routings; each result is a file, so a stopped run resumes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from focus_core.errors import FocusError
from focus_core.harness.model import FocusLM
from focus_core.harness.scores import Setting, run_task, summary
from focus_core.harness.tasks import check_task, load_task, task_files
from focus_core.io.locks import claims_folder
from focus_core.models import LoadedModel, load_model
from focus_core.progress import Progress, silent
from focus_core.resources import data_dir
from focus_core.results import record_run, stored_or_run, text_records
from focus_core.routing.attach import attach
from focus_core.routing.config import FocusConfig
from focus_core.routing.model import FocusModel
from focus_core.routing.routers import ROUTERS
from focus_core.routing.storage import routers_hash
from focus_core.text import find_texts, read_text

SCHEMA, TASK_SCHEMA = "focus-harness/1", "focus-harness-task/1"
TASKS = ("truthfulqa_mc1", "arc_easy", "piqa", "lambada_openai", "hellaswag", "gsm8k")
"""The published tasks."""


@dataclass(frozen=True)
class HarnessSettings:
    """Tasks and routings to measure.

    Attributes:
        data: folder with the task files; None for the Hugging Face hub.
        limits: number of first items per task, by name; None for all. See `task_limits`.
        top_k: k of hard routing, one run for each; None for the share that is read, or for 1 and 2.
        soft: whether the soft gate of training is measured too, where the routers have one.
        filler: text files put before passages and around needles; none for the sample story.
        long_tokens: length of the few-shot prompts of NAME_long.
        batch_size: requests per pass; 1 reuses the common start of neighbouring requests.
        seed: of few-shot sampling, needles and pairs.
    """

    data: Path | None
    limits: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(TASKS, 100))
    top_k: tuple[int, ...] | None = None
    soft: bool = True
    filler: tuple[Path, ...] = ()
    long_tokens: int = 1024
    batch_size: int = 1
    seed: int = 0

    def routings(self, config: FocusConfig) -> list[Setting]:
        """The untouched model, which is the reference, and every routing of routers with these settings."""
        soft = [Setting("soft")] if self.soft and ROUTERS[config.router].trained_by_gate else []
        own: tuple[int | None, ...] = (1, 2) if config.read_share is None else (None,)
        return [Setting("off"), *soft, *(Setting("hard", top_k) for top_k in self.top_k or own)]

    def filler_files(self) -> list[Path]:
        """The files of `filler`."""
        return find_texts(self.filler or [data_dir() / "samples" / "story.txt"])


def task_limits(tasks: Sequence[str], limit: int | None) -> dict[str, int | None]:
    """Items per task, None for all: "piqa" takes the common limit, "piqa=20" its own; 0 is all.

    Raises:
        FocusError: an unknown task, one that is named twice, or text after "=" that is no number.
    """
    found: dict[str, int | None] = {}
    for spelling in tasks:
        name, given, count = spelling.partition("=")
        if given and not (count.isascii() and count.isdecimal() and len(count) < 10):
            raise FocusError(f"{spelling!r} is not a task with a number of items: write NAME or NAME=20.")
        if name in found:
            raise FocusError(f"The task {name} is named twice: leave one out.")
        check_task(name)
        found[name] = (int(count) if given else limit) or None
    return found


@claims_folder()
def run_harness(
    settings: HarnessSettings,
    out: Path,
    *,
    model: str = "default",
    routers: str | None = None,
    untrained: bool = False,
    device: str = "cpu",
    progress: Progress = silent,
) -> dict[str, Any]:
    """Measure every task under every routing that the folder does not hold yet.

    Args:
        settings: tasks and routings.
        out: folder of results, one file per task and routing; `summary.json` holds the record.
        model: as in `load_model`.
        routers: folder of routers; those shipped for the model when None.
        untrained: use untrained routers (seed 0) instead.
        device: "cpu" or "cuda".
        progress: told the task, the routing and the share done.

    Returns:
        The record: ``schema``, ``made``, ``model``, ``settings``, ``harness`` (versions), and as ``results`` the rows
        of `focus_core.harness.scores.summary`.

    Raises:
        FocusError: the model, routers or a task is missing, or the folder holds results of other settings.
    """
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    fillers = settings.filler_files()
    text = "\n\n".join(read_text(path) for path in fillers)
    loaded = load_model(model, device=device, progress=progress)
    focus = attach(loaded, routers, untrained=untrained)
    common = {
        "model": loaded.info.name,
        **{name: value for name, value in loaded.info.identity.items() if name != "name"},
        "routers": routers_hash(focus.routers),
        "source": "hub" if settings.data is None else "local files",
        "seed": settings.seed,
        "long_tokens": settings.long_tokens,
        "filler": text_records(fillers),
        "config": focus.config,
    }
    routings, limits = settings.routings(focus.config), settings.limits
    places = {(name, each.name): out / f"{name}--{each.name}.json" for name in limits for each in routings}
    texts = {"data": settings.data, "filler": text, "long_tokens": settings.long_tokens, "seed": settings.seed}
    # All before the first is measured, which may take hours.
    missing = {name for (name, _), place in places.items() if not place.exists()}
    tasks = {name: load_task(name, loaded.tokenizer, **texts) for name in limits if name in missing}
    total = len(limits) * len(routings)
    results: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in limits}
    for number, (name, routing) in enumerate((name, routing) for name in limits for routing in routings):

        def show(share: float, name: str = name, routing: Setting = routing, done: int = number) -> None:
            progress(f"{name}, {routing.name}", (done + share) / total)

        def measure(name: str = name, routing: Setting = routing, show: Any = show) -> dict[str, Any]:
            lm = _language_model(focus, loaded, routing, settings.batch_size)
            lm.on_progress = show
            return run_task(lm, tasks[name], limits[name], settings.seed)

        show(0.0)
        path = places[name, routing.name]
        identity = {**common, "task": name, "limit": limits[name], "setting": routing.name}
        identity |= {"files": text_records(task_files(name, settings.data))}
        results[name][routing.name] = stored_or_run(path, identity, measure, schema=TASK_SCHEMA, device=device)
    report = {
        "schema": SCHEMA,
        "model": loaded.info.identity,
        "settings": {**common, "routers_name": focus.name, "trained": focus.trained, "limits": limits},
        "harness": {name: version(name) for name in ("lm_eval", "datasets")},
        "results": summary(results, routings),
    }
    return record_run(out / "summary.json", report, device=device)


def _language_model(focus: FocusModel, loaded: LoadedModel, routing: Setting, batch_size: int) -> FocusLM:
    return FocusLM(
        focus,
        tokenizer=loaded.tokenizer,
        mode=routing.mode,
        top_k=routing.top_k,
        balance=routing.balance,
        batch_size=batch_size,
    )

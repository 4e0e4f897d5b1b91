"""Tables of the Train page, and the training that its form describes."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from focus_core.io.reading import read_json
from focus_core.io.schema import table, text
from focus_core.training.log import Progress
from focus_core.training.loop import Step
from workbench.engine.service import router_folder
from workbench.runs.jobs import Job
from workbench.views.quality.tables import COLUMNS, find_results

RECENT_STEPS = 20
MAX_LENGTH = 4096


@dataclass(frozen=True)
class TrainRequest:
    """A training as the form describes it; the engine checks the values.

    Attributes:
        model: "default", a folder, a GGUF file or a hub id.
        num_groups: K.
        top_k: k.
        window: w.
        sink_tokens: first tokens that every later token reads.
        steps: optimiser steps.
        length: tokens a block, T.
        batch_size: blocks a step.
        learning_rate: peak rate.
        objective: a key of `OBJECTIVES`.
        seed: of routers and block order.
        eval_blocks: held-out blocks.
        router: of new routers, a key of `ROUTERS`.
        start_from: routers to continue training, by their name in the sidebar; their K, k, w and sinks then hold. None
            for new ones.
    """

    model: str
    num_groups: int
    top_k: int
    window: int
    sink_tokens: int
    steps: int
    length: int
    batch_size: int
    learning_rate: float
    objective: str
    seed: int
    eval_blocks: int
    router: str = "layer"
    start_from: str | None = None

    def arguments(self, data: Sequence[Path], out: Path) -> list[str]:
        """The arguments of `focus` that train this.

        Raises:
            FocusError: the routers to continue with do not exist.
        """
        options: dict[str, Any] = {
            "--model": self.model,
            "--steps": self.steps,
            "--length": self.length,
            "--batch-size": self.batch_size,
            "--learning-rate": self.learning_rate,
            "--objective": self.objective,
            "--seed": self.seed,
            "--eval-blocks": self.eval_blocks,
            "--out": out,
        }
        if self.start_from is not None:
            options["--start-from"] = router_folder(self.start_from).resolve()
        else:
            options |= {"--groups": self.num_groups, "--top-k": self.top_k, "--router": self.router}
            options |= {"--window": self.window, "--sinks": self.sink_tokens}
        parts = ["train", *(f"{name}={value}" for name, value in options.items())]
        if self.eval_blocks:
            parts += [f"--eval-top-k={k}" for k in sorted({1, self.top_k, min(self.top_k + 1, self.num_groups)})]
        return parts + [f"--data={path}" for path in data]

    def about(self, texts: list[dict[str, Any]]) -> dict[str, Any]:
        """The settings that the page shows; of the texts only name, size and hash."""
        return {**vars(self), "texts": texts}


def text_record(name: str, content: bytes) -> dict[str, Any]:
    """Name, size and SHA-256 of a text, as `focus_core.results.text_records` gives for files."""
    return {"name": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def history_table(steps: Sequence[Step]) -> pd.DataFrame:
    """One row per finished step: loss in nats, largest group's share in the worst layer, tokens a second."""
    columns = ["step", "loss", "largest group", "tokens per second"]
    rows = [(step.step, step.loss, step.largest_group_share, step.tokens_per_second) for step in steps]
    return pd.DataFrame(rows, columns=columns)


def seconds_left(progress: Progress, about: dict[str, Any]) -> float | None:
    """Seconds until the last step, from the median speed of the last steps; None before the second step."""
    recent = progress.steps[-RECENT_STEPS:]
    if len(recent) < 2:
        return None
    per_step = about["batch_size"] * about["length"] / statistics.median(step.tokens_per_second for step in recent)
    return per_step * max(0, about["steps"] - recent[-1].step)


def duration(seconds: float) -> str:
    """A time span in seconds, minutes or hours."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def share_done(job: Job, progress: Progress) -> float:
    """Share of the running phase that is done, 0 to 1."""
    if progress.phase == "finished" or job.state == "finished":
        return 1.0
    if progress.phase == "training":
        return min(1.0, (progress.steps[-1].step if progress.steps else 0) / max(1, int(job.about["steps"])))
    if progress.phase == "evaluating" and progress.total:
        return progress.done / progress.total
    return 1.0 if progress.phase == "calibrating" else 0.0


def results_table(job: Job) -> pd.DataFrame:
    """Held-out rows of a finished run, empty before: untouched, trained and untrained routers."""
    path = job.folder / "training.json"
    return find_results([path]).table if path.is_file() else pd.DataFrame(columns=list(COLUMNS))


def training_origin(job: Job) -> dict[str, Any]:
    """Settings and hashes that identify a run, for its downloads."""
    about = {name: value for name, value in job.about.items() if name != "texts"}
    hashes = ", ".join(str(text["sha256"]) for text in job.about.get("texts", []))
    revision = ""
    if (job.folder / "training.json").is_file():
        record = read_json(job.folder / "training.json", table({"model": table({"revision": text()})}))
        revision = record["model"]["revision"]
    return {"run": job.name, "started": job.created, **about, "model_revision": revision, "text_sha256": hashes}

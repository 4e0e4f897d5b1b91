"""Narrow groups, fitted as a background job of `focus fit`: its arguments, its steps and its sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st

from focus_core.errors import FocusError
from focus_core.io.reading import read_json
from focus_core.io.schema import array, number, table
from focus_core.models.positions import positions_of
from focus_core.routing.narrow.fitting.fit import at_share
from focus_core.shipped import RECORD
from focus_core.text import document_blocks
from focus_core.training.fit import LENGTH
from workbench.engine import service
from workbench.runs import jobs
from workbench.runs.jobs import Job

KIND = "fit"
"""The `focus` command of these jobs."""
FIT = "fit"
"""What the form calls new narrow groups."""
LABEL = "new, narrow groups (the default form)"
_EXPECTED = table({"expected": array(table({"kl": array(array(number(), least=2))}), least=1)})


@dataclass(frozen=True)
class FitRequest:
    """A fit as the form describes it; the engine checks the values.

    Attributes:
        model: "default", a folder, a GGUF file or a hub id.
        share: of the pairs beyond the window that queries are to read.
        tokens: of the text to fit on, about.
        seed: of k-means.
    """

    model: str
    share: float
    tokens: int
    seed: int

    def arguments(self, data: Sequence[Path], out: Path) -> list[str]:
        """The arguments of `focus` that fit this."""
        options = {"--model": self.model, "--share": self.share, "--tokens": self.tokens, "--seed": self.seed}
        parts = [KIND, *(f"{name}={value}" for name, value in options.items()), f"--out={out}"]
        return parts + [f"--data={path}" for path in data]

    def about(self, texts: list[dict[str, Any]]) -> dict[str, Any]:
        """The settings that the page shows; of the texts only name, size and hash."""
        return {**vars(self), "texts": texts}


def check_fittable(model: str, contents: Iterable[tuple[str, str]]) -> None:
    """Refuse texts that do not fill one block; a run on them would fail, and could not resume.

    Nothing is checked while the model has still to be fetched.

    Args:
        model: to fit to.
        contents: names and texts.

    Raises:
        FocusError: one that is too short.
    """
    if service.needs_fetch(model):
        return
    with st.spinner("Counting the tokens of the text …"):
        loaded = service.load_base(model)
        length = min(LENGTH, positions_of(loaded.model) or LENGTH)
        for name, content in contents:
            if not len(document_blocks(loaded.tokenizer, [content], length)[0]):
                raise FocusError(
                    f"{name} has fewer than {length:,} tokens, the least that groups are fitted on: give a longer "
                    "text, or leave it out."
                )


def fit_step(job: Job) -> str:
    """What a run does at present; the log has one line for each step, when it begins."""
    return re.sub(r" \(\d+%\)$", "", job.last_words) or "Loading the model and the text"


def fit_verdict(job: Job) -> str:
    """How a run stands, or its result."""
    if job.state == jobs.FINISHED:
        return _finished(job)
    return {
        jobs.RUNNING: "Fitting narrow groups. It takes minutes, and goes on without this page.",
        jobs.STOPPING: "Stopping. What is measured stays.",
        jobs.STOPPED: "Stopped. Resume continues with what is measured.",
        jobs.FAILED: "The fit ended with an error.",
        jobs.LOST: "The run's process ended without a message.\n\nThe machine restarted, or the process was killed, "
        "perhaps because memory or disk space ran out. Resume continues with what is measured.",
    }[job.state]


def _finished(job: Job) -> str:
    """The KL to expect at the share that was asked for."""
    kl = read_json(job.folder / RECORD, _EXPECTED)["expected"][-1]["kl"]
    share = float(job.about["share"])
    nats = at_share({each: expected for each, expected in kl}, share)
    return (
        f"At {share:.0%} of the distant pairs, predictions are expected {nats:.4f} nats per token from the untouched "
        "model's (KL).\n\nThis is an estimate on the text itself: focus eval measures it on other text."
    )

"""A report on a whole corpus, as a background job of `focus report`: its arguments, its progress and its sentences."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st

from focus_core.errors import FocusError
from focus_core.io.jsonl import SUFFIXES
from focus_core.report.files import FILES
from focus_core.report.model import Report
from focus_core.report.saved import read_report
from workbench.engine import access, service
from workbench.runs import jobs
from workbench.runs.jobs import Job
from workbench.shell import texts

KIND = "report"
"""The `focus` command of these jobs."""
DOWNLOADS = ("report.html", "session.zip", "report.json", "cards.csv", "cards.parquet")
"""Files that the page offers; the others are in the run's folder."""
_ROUTED = re.compile(r"^Routing (?P<document>.*): (?P<tokens>[\d,]+) tokens \((?P<share>\d+)%\)$")


@dataclass(frozen=True)
class CorpusRequest:
    """What is to be reported.

    Attributes:
        place: a folder or file of this machine, as the user spells it.
        model: as in `service.Settings`.
        routers: likewise.
        num_groups: K of untrained routers.
        top_k: k in place of the routers' own or their plan; None for those.
        head: the key/value head, of routers per head.
        states: a key of `service.STATES`.
        examples: of each kind, per card.
        seed: of the random examples and the intervals.
    """

    place: str
    model: str
    routers: str
    num_groups: int
    top_k: int | None
    head: int
    states: str
    examples: int
    seed: int

    def arguments(self, out: Path) -> list[str]:
        """The arguments of `focus` that make this.

        Raises:
            FocusError: no place, no text there, or one that may not be opened; or routers that are not there.
        """
        if not self.place.strip():
            raise FocusError("There is no corpus to report on: give a folder or a file of this machine.")
        files = [path.resolve() for path in texts.found_at(self.place.strip(), SUFFIXES)]
        # Of a folder that may be opened as a whole, the report lists what cannot be read.
        whole = access.roots() is None
        data = [access.allowed(self.place.strip()).resolve()] if whole else files
        options: dict[str, Any] = {
            "--model": self.model,
            "--head": self.head,
            "--states": self.states,
            "--examples": self.examples,
            "--seed": self.seed,
            "--title": f"Groups in {Path(self.place.strip()).name}",
            "--out": out,
        }
        if self.top_k is not None:
            options["--top-k"] = self.top_k
        if self.routers != service.UNTRAINED:
            options["--routers"] = service.router_folder(self.routers).resolve()
        elif self.num_groups != 8:
            raise FocusError("Untrained routers of a corpus have 8 groups: set K to 8, or choose saved routers.")
        untrained = ["--untrained"] if self.routers == service.UNTRAINED else []
        return ["report", *(f"{name}={value}" for name, value in options.items()), *untrained, "--", *map(str, data)]

    def about(self) -> dict[str, Any]:
        """The settings that the page shows."""
        return {"corpus": Path(self.place.strip()).name, **{k: v for k, v in vars(self).items() if k != "place"}}


def start(request: CorpusRequest, name: str = "") -> Job:
    """Start a report in the background.

    Raises:
        FocusError: as `CorpusRequest.arguments`, or another run is running.
    """
    request.arguments(Path())  # refused before there is a folder
    folder = jobs.new_folder(name or f"report-{Path(request.place.strip()).stem[:30]}")
    return jobs.start(folder, request.arguments(out_of(folder)), request.about())


def out_of(folder: Path) -> Path:
    """Where a run's report is written."""
    return folder / "report"


def progress_of(job: Job) -> tuple[float, str]:
    """The share of the corpus that is done, and what is being done."""
    said = job.last_words
    found = _ROUTED.match(said)
    if found is None:
        return 0.0, re.sub(r" \(\d+%\)$", "", said) or "starting"
    return int(found["share"]) / 100, f"{found['document']}: {found['tokens']} tokens so far"


def verdict(job: Job) -> str:
    """How a run stands, where it has no result yet."""
    corpus, (share, _) = job.about.get("corpus", job.name), progress_of(job)
    return {
        jobs.RUNNING: f"Reading {corpus}: {share:.0%} done.",
        jobs.STOPPING: "Stopping after this block.",
        jobs.STOPPED: f"Stopped. Resume goes on with {corpus} where the state was last saved.",
        jobs.FAILED: "The report ended with an error.",
        jobs.LOST: "The run's process ended without a message: the machine restarted, or the process was killed. "
        "Resume continues where the state was last saved.",
        jobs.FINISHED: "Finished.",
    }[job.state]


def saved_report(job: Job) -> Report:
    """The report of a finished run.

    Raises:
        FocusError: it is not there or damaged.
    """
    folder = out_of(job.folder)
    return _report(str(folder), _changed(folder))


def files_of(job: Job) -> list[Path]:
    """The files of a finished run that the page offers, in order."""
    known = {"session.zip", *FILES}
    return [path for name in DOWNLOADS if name in known and (path := out_of(job.folder) / name).is_file()]


def _changed(folder: Path) -> float:
    try:
        return (folder / "report.json").stat().st_mtime
    except OSError as error:
        raise FocusError(f"The report of this run is no longer in {folder}: delete the run and start again.") from error


@st.cache_resource(max_entries=4, show_spinner=False)
def _report(folder: str, changed: float) -> Report:
    return read_report(Path(folder))

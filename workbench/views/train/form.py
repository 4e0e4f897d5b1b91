"""The form that starts a training run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st

from focus_core.errors import FocusError
from focus_core.models import default_model
from focus_core.results import text_records
from focus_core.routing.routers import ROUTERS
from focus_core.shipped import shipped_routers
from focus_core.text import find_texts
from focus_core.training.objectives import OBJECTIVES
from workbench.engine import service
from workbench.runs import jobs
from workbench.runs.jobs import Job
from workbench.shell import texts
from workbench.views.train.tables import MAX_LENGTH, TrainRequest, text_record
from workbench.widgets.markup import plain

SOURCES = {"paste": "Paste", "upload": "Upload", "sample": "Sample", "path": "File or folder"}
NEW = {name: f"new, {kind.label}" for name, kind in ROUTERS.items()}


def train_form(model: str) -> Job | None:
    """Draw the form; returns the run that was just started, if any.

    Args:
        model: to train for.

    Raises:
        FocusError: no text, an unreadable one, settings that do not fit, or another run at work.
    """
    source = st.segmented_control(
        "Train on",
        list(SOURCES),
        format_func=lambda name: SOURCES[name],
        key="train_source",
        default="paste",
        required=True,
        help="Your own text stays on this machine. The last 5% of it are held out for the evaluation.",
        persist_state="session",
    )
    called = default_model.NAME if model == "default" else model
    st.caption(f"The routers are for **{plain(called)}**, the model in the sidebar.")
    start = _start_widget()
    with st.form("train_form", border=False):
        given = _source_widget(source)
        name = st.text_input(
            "Name of the run",
            key="train_name",
            max_chars=50,
            placeholder="made from the text and K",
            help="Its routers appear under this name in the sidebar.",
            persist_state="session",
        )
        request = _settings(model, start)
        busy = next((job for job in jobs.jobs() if job.is_alive), None)
        started = st.form_submit_button(
            "Start training",
            type="primary",
            icon=":material/play_arrow:",
            help="Starts a process of its own, which goes on when this page is closed. One runs at a time.",
        )
    if busy is not None:
        st.caption(f"{plain(busy.name)} is at work; a new run can start when it has finished or is stopped.")
    return _start(source, given, name, request) if started else None


def _start_widget() -> str:
    """A kind of new routers, or routers to go on with."""
    options = [*NEW, *shipped_routers(), *jobs.finished_routers()]
    if st.session_state.get("train_start") not in options:
        st.session_state["train_start"] = options[0]
    start = st.selectbox(
        "Start with",
        options,
        format_func=lambda name: NEW.get(name, f"go on with {name}"),
        key="train_start",
        help="Per head, a token is in one group as a key and chooses the groups it reads as a query: better at the "
        "same share of pairs, but slower to execute and with more to learn. Going on with them by the language model's "
        "loss made the best routers that come with the workbench: attention mass first, then that.",
        persist_state="session",
    )
    if start not in NEW:
        own = service.router_config(start, 8)
        st.caption(f"They keep K {own.num_groups}, k {own.top_k}, w {own.window} and {own.sink_tokens} sinks.")
    return start


def _source_widget(source: str) -> Any:
    if source == "paste":
        return st.text_area(
            "Training text",
            key="train_paste",
            height=180,
            placeholder="Paste the text to learn from: at least some pages.",
            help="With blocks of T tokens and B blocks a step, at least (B + 1) x T tokens are needed.",
            persist_state="session",
        )
    if source == "upload":
        return st.file_uploader(
            "Training texts",
            key="train_upload",
            accept_multiple_files=True,
            help="Plain text files in UTF-8, 20 MB each at most; for more, give a folder.",
        )
    if source == "sample":
        samples = texts.samples()
        return st.selectbox(
            "Training sample",
            list(samples),
            format_func=lambda name: samples[name].title,
            key="train_sample",
            help="Enough to see a run at work; too little for good routers.",
            persist_state="session",
        )
    return st.text_input(
        "File or folder on this machine",
        key="train_path",
        placeholder="~/books",
        help="A text file, or a folder that is searched for .txt and .md files.",
        persist_state="session",
    )


def _settings(model: str, start: str) -> TrainRequest:
    def number(
        place: Any, label: str, name: str, low: float, high: float, default: float, hint: str, **more: Any
    ) -> Any:
        """A number that survives a change of page."""
        return place.number_input(
            label, low, high, default, key=f"train_{name}", help=hint, persist_state="session", **more
        )

    one, two, three, four = st.columns(4)
    if start in NEW:
        hint = "Groups of every layer, or of every head. More groups keep fewer pairs."
        groups = number(one, "Groups, K", "groups", 2, 64, 8, hint)
        hint = "Groups a token joins, or reads, in hard routing; at most K."
        top_k = number(two, "Groups per token, k", "k", 1, 64, 2, hint)
        window = number(three, "Window, w", "window", 0, 4096, 64, "Tokens at most this far back are always read.")
        hint = "First tokens that all read; 0 is the published method."
        sinks = number(four, "Sink tokens", "sinks", 0, 64, 4, hint)
        router = start
    else:
        own = service.router_config(start, 8)
        groups, top_k, window, sinks, router = own.num_groups, own.top_k, own.window, own.sink_tokens, own.router
    steps = number(
        one, "Steps", "steps", 1, 100_000, 200, "Optimiser steps; model cards name those of shipped routers."
    )
    hint = "Tokens a block: the context that routers learn from. It must be well over w, or nothing is distant."
    length = number(two, "Block length, T", "length", 16, MAX_LENGTH, 512, hint)
    batch = number(three, "Blocks per step, B", "batch", 1, 64, 2, "More are steadier and slower.")
    hint = "Peak of the rate; warm-up over 5% of the steps, then cosine to a tenth."
    rate = number(four, "Learning rate", "rate", 1e-5, 1.0, 0.01, hint, format="%.5f", step=0.001)
    objective = one.selectbox(
        "Objective",
        list(OBJECTIVES),
        format_func=lambda name: OBJECTIVES[name].label,
        key="train_objective",
        help=" ".join(objective.hint for objective in OBJECTIVES.values()),
        persist_state="session",
    )
    seed = number(two, "Seed", "seed", 0, 10**6, 0, "Of the first routers and the order of blocks.")
    held = number(three, "Held-out blocks", "held", 0, 64, 8, "Blocks to evaluate on at the end; 0 for none.")
    return TrainRequest(
        model=model,
        num_groups=groups,
        top_k=top_k,
        window=window,
        sink_tokens=sinks,
        steps=steps,
        length=length,
        batch_size=batch,
        learning_rate=rate,
        objective=objective,
        seed=seed,
        eval_blocks=held,
        router=router,
        start_from=None if start in NEW else start,
    )


def _start(source: str, given: Any, name: str, request: TrainRequest) -> Job:
    """Store the text, start the run."""
    if not given:
        raise FocusError("There is no text to train on: paste, upload or name one first.")
    if request.top_k > request.num_groups:
        raise FocusError(f"k is {request.top_k} with K = {request.num_groups}: choose a k of at most K.")
    contents: list[tuple[str, bytes]] = []
    files: list[Path] = []
    if source == "path":
        files = [path.resolve() for path in find_texts([Path(given).expanduser()])]
        records = text_records(files)
    else:
        if source == "paste":
            contents = [("pasted.txt", given.encode("utf-8", "replace"))]
        elif source == "sample":
            contents = [(f"{given}.txt", texts.samples()[given].read().encode())]
        else:
            contents = [(file.name, file.getvalue()) for file in given]
        for called, content in contents:
            texts.uploaded(content, called)  # refuses what is no text
        records = [text_record(called, content) for called, content in contents]
    folder = jobs.new_folder(name or f"{Path(records[0]['name']).stem[:30]}-k{request.num_groups}")
    data = files or jobs.store_texts(folder, contents)
    return jobs.start(folder, request.arguments(data, folder), request.about(records))

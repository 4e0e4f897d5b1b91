"""The form that starts a run which makes routers: a fit, or a training."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import streamlit as st

from focus_core.errors import FocusError
from focus_core.models import default_model
from focus_core.results import text_records
from focus_core.routing.routers import ROUTERS
from focus_core.shipped import shipped_routers
from focus_core.text import TABLE_SUFFIXES, document_blocks
from focus_core.training.objectives import OBJECTIVES
from focus_core.training.stream import Source, documents
from workbench.engine import service
from workbench.runs import jobs
from workbench.runs.jobs import Job
from workbench.shell import texts
from workbench.views.train.fitting import FIT, LABEL, FitRequest, check_fittable
from workbench.views.train.tables import MAX_LENGTH, TrainRequest, text_record
from workbench.widgets.page.markup import counted, plain

SOURCES = {"paste": "Paste", "upload": "Upload", "sample": "Sample", "path": "File or folder"}
_MOST_CHARACTERS = 40
"""Read of each text for every token that is needed."""
NEW = {FIT: LABEL} | {name: f"new, {kind.label}" for name, kind in ROUTERS.items() if kind.trained_by_gate}


def train_form(model: str) -> Job | None:
    """Draw the form; returns the run that was just started, if any.

    Args:
        model: to train for.

    Raises:
        FocusError: no text, an unreadable one, settings that do not fit, or another run is running.
    """
    source = st.segmented_control(
        "Train on",
        list(SOURCES),
        format_func=lambda name: SOURCES[name],
        key="train_source",
        default="paste",
        required=True,
        help="Your text stays on this machine. Training holds its last 5% out for the evaluation.",
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
            placeholder="text, if left empty",
            help="Its routers appear under this name in the sidebar.",
            persist_state="session",
        )
        request = _fit_settings(model) if start == FIT else _settings(model, start)
        busy = next((job for job in jobs.jobs() if job.is_alive), None)
        started = st.form_submit_button(
            "Start fitting" if start == FIT else "Start training",
            type="primary",
            icon=":material/play_arrow:",
            help="Starts a background run, which continues when this page is closed. One run works at a time.",
        )
    if busy is not None:
        st.caption(f"{plain(busy.name)} is running. A new run can start when it has finished or is stopped.")
    return _start(source, given, name, request) if started else None


def _start_widget() -> str:
    """A kind of new routers, or routers to continue training."""
    options = [*NEW, *filter(_trainable, [*shipped_routers(), *jobs.finished_routers()])]
    if st.session_state.get("train_start") not in options:
        st.session_state["train_start"] = options[0]
    start = st.selectbox(
        "Start with",
        options,
        format_func=lambda name: NEW.get(name, f"continue {name}"),
        key="train_start",
        help="Narrow groups are clusters of the model's keys, and stay closest to the model. The others have the "
        "published form. Routers per head: as a key a token is in one group, and as a query it reads k groups. They "
        "have more parameters and are slower. The shipped routers per head were trained on attention mass, then "
        "continued on the language model's loss, which also adapts them to the text.",
        persist_state="session",
    )
    if start not in NEW:
        own = service.router_config(start, 8)
        st.caption(
            f"Settings of these routers: K {own.num_groups}, k {own.top_k}, w {own.window}, {own.sink_tokens} sinks."
        )
    return start


def _trainable(routers: str) -> bool:
    """Whether a gate trains routers of this kind."""
    return ROUTERS[service.router_config(routers, 8).router].trained_by_gate


def _source_widget(source: str) -> Any:
    if source == "paste":
        return st.text_area(
            "Training text",
            key="train_paste",
            height=180,
            placeholder="Paste the text to learn from, some pages or more.",
            help="Narrow groups take at least 1,024 tokens. Training takes (B + 1) x T, for B blocks of T tokens.",
            persist_state="session",
        )
    if source == "upload":
        return st.file_uploader(
            "Training texts",
            key="train_upload",
            accept_multiple_files=True,
            help="Plain text files in UTF-8 of at most 20 MB each. For larger ones give a folder.",
        )
    if source == "sample":
        samples = texts.samples()
        return st.selectbox(
            "Training sample",
            list(samples),
            format_func=lambda name: samples[name].title,
            key="train_sample",
            help="Enough to watch a run, too little for good routers.",
            persist_state="session",
        )
    return st.text_input(
        "File or folder on this machine",
        key="train_path",
        placeholder="~/books",
        help="A text file, or a folder that is searched for .txt and .md files.",
        persist_state="session",
    )


def number(place: Any, label: str, name: str, low: float, high: float, default: float, hint: str, **more: Any) -> Any:
    """A number that is kept when the page changes."""
    return place.number_input(
        label, low, high, default, key=f"train_{name}", help=hint, persist_state="session", **more
    )


def _fit_settings(model: str) -> FitRequest:
    one, two, three = st.columns(3)
    hint = "Pairs beyond the window that queries read one by one. A summary stands for the others."
    share = number(one, "Share of distant pairs", "share", 0.01, 1.0, 0.15, hint, step=0.01)
    hint = "Text to find groups in, about; of longer texts some blocks are taken."
    tokens = number(two, "Tokens to fit on", "tokens", 1024, 1_000_000, 24_576, hint, step=1024)
    seed = number(three, "Seed", "seed", 0, 10**6, 0, "Seed of k-means.")
    return FitRequest(model, share, tokens, seed)


def _settings(model: str, start: str) -> TrainRequest:
    one, two, three, four = st.columns(4)
    if start in NEW:
        hint = "Groups of every layer or head. More groups keep fewer pairs."
        groups = number(one, "Groups, K", "groups", 2, 64, 8, hint)
        hint = "Groups that a token joins (per head: reads) in hard routing, at most K."
        top_k = number(two, "Groups per token, k", "k", 1, 64, 2, hint)
        window = number(three, "Window, w", "window", 0, 4096, 64, "Tokens at most this far back are always read.")
        hint = "First tokens, which every later token reads. 0 is the published method."
        sinks = number(four, "Sink tokens", "sinks", 0, 64, 4, hint)
        router = start
    else:
        own = service.router_config(start, 8)
        groups, top_k, window, sinks, router = own.num_groups, own.top_k, own.window, own.sink_tokens, own.router
    steps = number(
        one, "Steps", "steps", 1, 100_000, 200, "Optimiser steps. Model cards give those of shipped routers."
    )
    hint = "Tokens of a block, the context of training. It must be well above w, or no pair is distant."
    length = number(two, "Block length, T", "length", 16, MAX_LENGTH, 512, hint)
    batch = number(three, "Blocks per step, B", "batch", 1, 64, 2, "More blocks make steps steadier and slower.")
    hint = "Peak learning rate: warm-up over 5% of the steps, then cosine to a tenth."
    rate = number(four, "Learning rate", "rate", 1e-5, 1.0, 0.01, hint, format="%.5f", step=0.001)
    objective = one.selectbox(
        "Objective",
        list(OBJECTIVES),
        format_func=lambda name: OBJECTIVES[name].label,
        key="train_objective",
        help=" ".join(objective.hint for objective in OBJECTIVES.values()),
        persist_state="session",
    )
    seed = number(two, "Seed", "seed", 0, 10**6, 0, "Seed of the initial routers and of the order of blocks.")
    held = number(
        three,
        "Held-out blocks",
        "held",
        0,
        64,
        8,
        "Blocks of the evaluation at the end, 0 for none. Fewer than 16 establish no small difference.",
    )
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


def check_long_enough(request: TrainRequest, contents: Iterable[str]) -> None:
    """Refuse texts that do not fill one step and one held-out block; a run on them would fail, and could not resume.

    Nothing is checked while the model has still to be fetched.

    Args:
        request: the training.
        contents: the texts; read only until there are blocks enough.

    Raises:
        FocusError: too short.
    """
    if service.needs_fetch(request.model):
        return
    with st.spinner("Counting the tokens of the text …"):
        tokenizer = service.load_base(request.model).tokenizer
        needed, found = request.batch_size + max(1, request.batch_size // 19), 0
        for content in contents:
            start = content[: _MOST_CHARACTERS * needed * request.length]
            found += len(document_blocks(tokenizer, [start], request.length)[0])
            if found >= needed:
                return
    raise FocusError(
        f"The text fills {counted(found, 'block')} of {request.length} tokens, and training needs {needed}: "
        f"{request.batch_size} for a step and the rest for the evaluation. Give a longer text, or choose fewer or "
        "shorter blocks."
    )


def _start(source: str, given: Any, name: str, request: TrainRequest | FitRequest) -> Job:
    """Store the text, start the run."""
    fits = isinstance(request, FitRequest)
    if not given:
        raise FocusError(f"There is no text to {'fit to' if fits else 'train on'}: paste, upload or name one.")
    if not fits and request.top_k > request.num_groups:
        raise FocusError(f"k is {request.top_k} with K = {request.num_groups}: choose a k of at most K.")
    contents: list[tuple[str, bytes]] = []
    files: list[Path] = []
    if source == "path":
        files = [path.resolve() for path in texts.found_at(given, TABLE_SUFFIXES)]
        records = text_records(files)
        if not fits:
            check_long_enough(request, documents(map(Source, files)))
    else:
        if source == "paste":
            contents = [("pasted.txt", given.encode("utf-8", "replace"))]
        elif source == "sample":
            contents = [(f"{given}.txt", texts.samples()[given].read().encode())]
        else:
            contents = [(file.name, file.getvalue()) for file in given]
        # Decoding refuses what is no text.
        read = [(called, texts.uploaded(content, called)) for called, content in contents]
        if fits:
            check_fittable(request.model, read)
        else:
            check_long_enough(request, [each for _, each in read])
        records = [text_record(called, content) for called, content in contents]
    ending = "narrow" if fits else f"k{request.num_groups}"
    folder = jobs.new_folder(name or f"{Path(records[0]['name']).stem[:30]}-{ending}")
    data = files or jobs.store_texts(folder, contents)
    return jobs.start(folder, request.arguments(data, folder), request.about(records))

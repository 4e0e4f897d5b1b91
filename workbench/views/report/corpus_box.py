"""The part of the Report page for whole corpora: the form, the run as it works, and its result."""

from __future__ import annotations

import streamlit as st

from focus_core.report.html import summary, to_html
from focus_core.report.model import SECTIONS, Report
from workbench.charts.theme import is_dark
from workbench.engine import service
from workbench.runs import jobs
from workbench.runs.jobs import Job
from workbench.views.report.corpus import (
    KIND,
    CorpusRequest,
    files_of,
    out_of,
    progress_of,
    saved_report,
    start,
    verdict,
)
from workbench.widgets.guard import guarded
from workbench.widgets.page.markup import plain

POLL_SECONDS = 1.5
CHOSEN, NEXT = "corpus_run", "_next_corpus_run"
MIME = {"html": "text/html", "zip": "application/zip", "json": "application/json", "csv": "text/csv"}


def corpus_box() -> None:
    """Draw the form, and the chosen run if there is one."""
    if NEXT in st.session_state:
        st.session_state[CHOSEN] = st.session_state.pop(NEXT)
    runs = jobs.jobs(KIND)
    alive = any(job.is_alive for job in runs)
    started = CHOSEN in st.session_state
    with st.expander("Report on a whole corpus", icon=":material/library_books:", expanded=alive or started):
        with guarded():
            job = _form()
            if job is not None:
                st.session_state[NEXT] = job.name
                st.rerun()
        if runs:
            st.divider()
            chosen = _choose(runs)
            st.fragment(_watch, run_every=POLL_SECONDS if chosen.is_alive else None)(chosen.name, chosen.state)


def _form() -> Job | None:
    st.markdown(
        "Statistics over all texts of a folder, or over every line of a JSON Lines file, with the model, routers and "
        "hidden states of the sidebar. It works in the background, also when this page is closed, and can be stopped "
        "and resumed. `focus report` does the same on the command line."
    )
    with st.form("corpus_form", border=False):
        left, middle, right = st.columns([4, 1, 1], gap="medium", vertical_alignment="bottom")
        place = left.text_input(
            "Folder or file on this machine",
            value=st.session_state.get("folder") or "",
            key="corpus_place",
            placeholder="~/books, or ~/documents.jsonl",
            help="A folder is searched for .txt and .md files. A .jsonl file has a JSON object on each line, with the "
            "text in a field called text, content or document. Window and budget are the routers' own.",
        )
        examples = middle.number_input("Examples", 0, 50, 5, key="corpus_examples", help="Of each kind, on a card.")
        seed = right.number_input("Seed", 0, 999_999, 0, key="corpus_seed", help="Of examples and intervals.")
        asked = st.form_submit_button(
            "Start report", type="primary", icon=":material/play_arrow:", help="One run works at a time."
        )
    return start(_request(place, int(examples), int(seed))) if asked else None


def _request(place: str, examples: int, seed: int) -> CorpusRequest:
    session = st.session_state
    groups = int(session.get("groups") or 8)
    own = service.router_config(session["routers"], groups)
    planned = own.layer_top_k is not None and session.get("k_from") != "one"
    own_budget = own.read_share is not None or planned
    return CorpusRequest(
        place=place,
        model=session["model"],
        routers=session["routers"],
        num_groups=groups,
        top_k=None if own_budget else int(session.get("k") or own.top_k),
        head=int(session.get("head") or 0) if service.num_heads(session["routers"]) > 1 else 0,
        states=session.get("states") or "untouched",
        examples=examples,
        seed=seed,
    )


def _choose(runs: list[Job]) -> Job:
    by_name = {job.name: job for job in runs}
    if st.session_state.get(CHOSEN) not in by_name:
        st.session_state[CHOSEN] = next((job.name for job in runs if job.is_alive), runs[0].name)
    name = st.selectbox(
        "Corpus report",
        list(by_name),
        key=CHOSEN,
        help="All corpus reports on this machine, the newest first.",
        persist_state="session",
    )
    return by_name[name]


def _watch(name: str, seen: str) -> None:
    """One run; drawn again every moment while it works."""
    with guarded():
        job = jobs.find(name)
        if job is None or (job.state != seen and not job.is_alive):
            st.rerun()  # the list of runs has changed
        report = saved_report(job) if job.state == jobs.FINISHED else None
        st.markdown(f"#### {plain(verdict(job) if report is None else summary(report))}")
        if job.state == jobs.FAILED:
            st.error(plain(job.last_words or "No reason was given."), icon=":material/error:")
        if job.is_alive:
            share, doing = progress_of(job)
            st.progress(share, text=plain(doing))
        _buttons(job)
        if report is not None:
            _result(job, report)


def _buttons(job: Job) -> None:
    with st.container(horizontal=True, gap="small"):
        if job.is_alive:
            stopping = job.state == jobs.STOPPING
            hint = "What is done is kept, and the run can be resumed."
            st.button("Stop", icon=":material/stop:", on_click=jobs.stop, args=(job,), disabled=stopping, help=hint)
            return
        if job.is_resumable and st.button(
            "Resume", type="primary", icon=":material/play_arrow:", help="Continue where the state was last saved."
        ):
            jobs.resume(job)
            st.rerun()
        for path in files_of(job) if job.state == jobs.FINISHED else []:
            st.download_button(
                path.name,
                path.read_bytes,
                file_name=f"{job.name}-{path.name}",
                mime=MIME.get(path.suffix[1:], "application/octet-stream"),
                icon=":material/download:",
                on_click="ignore",
                key=f"corpus_{job.name}_{path.name}",
                help="Opens without a network." if path.suffix == ".html" else "As focus report writes it.",
            )
        with st.popover("Delete", icon=":material/delete:", help="Delete this report."):
            st.markdown(f"Delete **{plain(job.name)}** with its files? This cannot be undone.")
            if st.button("Delete for good", type="primary", key="delete_corpus", help="Nothing can be restored."):
                jobs.delete(job)
                st.rerun()


def _result(job: Job, report: Report) -> None:
    documents, failed = len(report.documents), len(report.failed)
    st.caption(
        f"{documents:,} {'document' if documents == 1 else 'documents'}, {report.num_tokens:,} tokens. "
        f"Intervals: {plain(report.intervals)}. All files: {plain(str(out_of(job.folder)))}"
    )
    if failed:
        with st.expander(f"{failed:,} that cannot be used"):
            st.dataframe([each._asdict() for each in report.failed], hide_index=True, key="corpus_failed")
    layers = list(report.layers)
    key = f"corpus_layer_{job.name}"
    layer = (
        layers[0]
        if len(layers) == 1
        else st.select_slider(
            "Layer shown", layers, value=layers[len(layers) // 2], key=key, help="The files hold all layers."
        )
    )
    st.iframe(
        to_html(report.only([layer], tuple(SECTIONS)), "dark" if is_dark() else "light", cards_only=True),
        height=900,
        alt=f"The groups of layer {layer} over the whole corpus.",
    )

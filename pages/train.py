"""Train: can routers learn your text?"""

from __future__ import annotations

import pandas as pd
import streamlit as st

from focus_core.training.log import RunLog, read_log
from workbench.charts.theme import is_dark
from workbench.runs import jobs
from workbench.runs.jobs import Job
from workbench.shell import state
from workbench.shell.frame import open_bare_page
from workbench.views.quality.charts import frontier
from workbench.views.train.charts import training_curves
from workbench.views.train.fitting import KIND, fit_step, fit_verdict
from workbench.views.train.form import train_form
from workbench.views.train.tables import history_table, results_table, share_done, training_origin
from workbench.views.train.verdicts import training_verdict
from workbench.widgets.export import chart
from workbench.widgets.guard import guarded
from workbench.widgets.page.markup import plain
from workbench.widgets.page.scroll import scroll_here

QUESTION = (
    "Narrow groups, the default form, are fitted to the model's keys; routers of the published form are trained. The "
    "model's own parameters stay as they are. A run works in the background and continues when the page or the app is "
    "closed."
)
POLL_SECONDS = 1.5
NEXT, SHOW = "_next_run", "_started_run"
PERCENT = st.column_config.NumberColumn(format="percent")
RESULT_COLUMNS = {
    "perplexity": st.column_config.NumberColumn(format="%.2f"),
    "relative": st.column_config.NumberColumn("× untouched", format="%.3f", help="perplexity ÷ the untouched model's"),
    **{name: PERCENT for name in ("distant kept", "all kept", "largest group", "exposure")},
}


def main() -> None:
    """Draw the page."""
    inputs = open_bare_page("Train: can routers learn your text?", QUESTION, ("model",))
    if NEXT in st.session_state:
        st.session_state["run"] = st.session_state[SHOW] = st.session_state.pop(NEXT)
    runs = jobs.jobs(*jobs.ROUTERS)
    if runs:
        job = _choose(runs)
        scroll_here(st.session_state.pop(SHOW, ""), key="started")
        run_every = POLL_SECONDS if any(each.is_alive for each in runs) else None
        st.fragment(_watch, run_every=run_every)(job.name, _states(runs))
    else:
        _empty_state()
    state.publish()
    with st.expander("Start a new run", expanded=not runs, icon=":material/add:"):
        started = train_form(inputs.settings.model)
    if started is not None:
        st.session_state[NEXT] = started.name
        st.rerun()


def _choose(runs: list[Job]) -> Job:
    by_name = {job.name: job for job in runs}
    alive = [job.name for job in runs if job.is_alive]
    shown = st.session_state.get("run")
    # Set anew, or the box keeps the state that the run had when it was chosen.
    st.session_state["run"] = shown if shown in by_name else (alive or list(by_name))[0]
    name = st.selectbox(
        "Run",
        list(by_name),
        format_func=lambda name: f"{name} · {by_name[name].state}",
        key="run",
        help="All runs on this machine, newest first. One run works at a time.",
        persist_state="session",
    )
    return by_name[name]


def _states(runs: list[Job]) -> dict[str, str]:
    """What the list of runs says of each."""
    return {job.name: job.state for job in runs}


def _watch(name: str, seen: dict[str, str]) -> None:
    """One run: its sentence, buttons, curves and results. Drawn again every moment while a run works."""
    with guarded():
        job = jobs.find(name)
        if job is None or _states(jobs.jobs(*jobs.ROUTERS)) != seen:
            st.rerun()  # the list of runs and of routers has changed
        if job.kind == KIND:
            _head(job, fit_verdict(job), fit_step(job))
            return
        progress, results = read_log(job.folder), results_table(job)
        _head(job, training_verdict(job, progress, results), progress.phase, share_done(job, progress))
        history = history_table(progress.steps)
        if len(history):
            figure = training_curves(
                history,
                num_groups=int(job.about["num_groups"]),
                steps=int(job.about["steps"]),
                objective=str(job.about["objective"]),
                dark=is_dark(),
            )
            alt = f"Loss, largest group and tokens per second over {len(history)} steps."
            chart(figure, history, training_origin(job), name=f"training-{name}", alt=alt)
        if job.state == jobs.FINISHED and len(results):
            _results(job, results)


def _head(job: Job, verdict: str, phase: str, share: float | None = None) -> None:
    """What every run has: its sentence, what it does, with a bar where its share is known, buttons and settings."""
    st.markdown(f"#### {verdict}")
    if job.state == jobs.FAILED:
        st.error(plain(job.last_words or "No reason was given."), icon=":material/error:")
    if job.is_alive and share is not None:
        st.progress(share, text=plain(phase) or "starting")
    elif job.is_alive:
        st.caption(f"{plain(phase)} …")
    _buttons(job)
    _describe(job)


def _buttons(job: Job) -> None:
    with st.container(horizontal=True):
        if job.is_alive:
            st.button(
                "Stop",
                icon=":material/stop:",
                on_click=jobs.stop,
                args=(job,),
                disabled=job.state == jobs.STOPPING,
                help="Save what is done and end. The run can be resumed at any time.",
            )
            return
        if job.is_resumable and st.button(
            "Resume",
            type="primary",
            icon=":material/play_arrow:",
            help="Continue with what is saved. The routers are the same as without the stop.",
        ):
            jobs.resume(job)
            if job.kind != KIND:
                RunLog(job.folder, fresh=False).phase("loading")  # until its process writes its own phase
            st.rerun()
        if f"{jobs.RUN}{job.name}" in jobs.finished_routers() and st.button(
            "Use these routers",
            type="primary",
            icon=":material/check:",
            on_click=_use,
            args=(job.name,),
            help="Choose these routers in the sidebar, for all pages.",
        ):
            st.rerun()
        with st.popover("Delete", icon=":material/delete:", help="Delete the run, its routers and its log."):
            st.markdown(f"Delete **{plain(job.name)}**, its routers and its log? This cannot be undone.")
            if st.button("Delete for good", type="primary", help="Nothing can be restored."):
                jobs.delete(job)
                st.rerun()


def _use(name: str) -> None:
    st.session_state["routers"] = f"{jobs.RUN}{name}"


def _describe(job: Job) -> None:
    about = job.about
    with st.expander("Settings and text"):
        settings = {key: value for key, value in about.items() if key != "texts"}
        st.markdown(" · ".join(f"{key.replace('_', ' ')} **{plain(str(value))}**" for key, value in settings.items()))
        st.dataframe(about.get("texts", []), hide_index=True, key=f"texts_{job.name}")
        st.caption(
            "Of the text only name, size and hash are shown. The run's folder holds a copy of pasted or uploaded text "
            "until the run has finished; only you can read it."
        )
        st.code(str(job.folder), language=None)


def _results(job: Job, results: pd.DataFrame) -> None:
    st.markdown("##### Held-out text, before and after")
    columns = ["kind", "k", "balance", "perplexity", "relative", "distant kept", "largest group"]
    st.dataframe(
        results.loc[results["routing"].ne("soft")],
        hide_index=True,
        placeholder="–",
        column_order=columns,
        column_config=RESULT_COLUMNS,
        key=f"held_{job.name}",
    )
    st.caption(
        "untouched: full attention. untrained: the same routers before training, calibrated on the same text. "
        "sequence: balanced over the whole text as published, so groups depend on later tokens."
    )
    chart(
        frontier(results, dark=is_dark()),
        results,
        training_origin(job),
        name=f"held-out-{job.name}",
        alt="Perplexity against the share of distant pairs kept, trained and untrained routers.",
        column_config=RESULT_COLUMNS,
    )


def _empty_state() -> None:
    st.info("**No run yet.** Give a text below and press Start fitting.", icon=":material/model_training:")
    st.markdown(
        "You will see:\n"
        "1. **How far a fit is**, and at its end the divergence from the untouched model that it expects.\n"
        "2. **Live curves of a training**: the loss, the largest group beside the even split 1/K, and tokens per "
        "second. At its end held-out perplexity with trained and untrained routers, and the share of pairs they keep.\n"
        "3. **Your routers in the sidebar**, for every page.\n\n"
        "A run continues through a reload and a restart of the app. It can be stopped and resumed."
    )


with guarded():
    main()

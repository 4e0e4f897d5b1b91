"""Speed: when is routed attention faster?"""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import streamlit as st

from focus_core.bench.settings import DTYPES, HEADS, PRESETS, BenchSettings
from workbench.charts.theme import is_dark
from workbench.runs import jobs
from workbench.runs.jobs import Job
from workbench.shell import state
from workbench.shell.frame import open_bare_page
from workbench.views.speed.baselines import is_baselines, read_baseline_speed, shipped_baselines
from workbench.views.speed.charts import error_curves, memory_curves, model_curves, speedup_curves, time_curves
from workbench.views.speed.columns import (
    ATTENTION_COLUMNS,
    BASELINE_COLUMNS,
    COLUMNS,
    CROSSOVER_COLUMNS,
    MODEL_COLUMNS,
)
from workbench.views.speed.tables import (
    DEFAULTS,
    SpeedRecord,
    apart,
    crossovers,
    is_whole_model,
    noise,
    read_model_speed,
    read_speed,
    shipped_speeds,
    title_of,
)
from workbench.views.speed.verdicts import baseline_verdict, model_speed_verdict, speed_verdict
from workbench.widgets.columns import fitted_table
from workbench.widgets.export import chart, downloads
from workbench.widgets.guard import guarded
from workbench.widgets.page.markup import plain

QUESTION = (
    "Attention over fewer pairs is less work, but gathering the pairs takes time. This page shows measured times of "
    "one attention call, sparse and full, with the time of choosing the pairs where that was measured. Beside each "
    "stands the largest speed-up that the kept share allows."
)
UPLOAD = "upload"
BENCH_FILE = "bench.json"
POLL_SECONDS = 2
NEXT = "_next_speed"
NOISY = 3
POSITIONS = 8192  # of the default model, beside whose quality a speed may stand


def main() -> None:
    """Draw the page."""
    open_bare_page("Speed: when is routed attention faster?", QUESTION)
    if NEXT in st.session_state:
        st.session_state["speed"] = st.session_state.pop(NEXT)
    shipped, runs = shipped_speeds() | shipped_baselines(), {f"{jobs.RUN}{job.name}": job for job in jobs.jobs("bench")}
    source = _choose(shipped, runs)
    if source in runs:
        job = runs[source]
        st.fragment(_watch, run_every=POLL_SECONDS if job.is_alive else None)(job.name, job.state)
    elif source == UPLOAD:
        file = st.file_uploader(
            "Measurement", type="json", key="speed_file", help="A record of focus bench attention or focus bench model."
        )
        if file is None:
            st.info("**Upload a record of focus bench**, from this machine or another.", icon=":material/upload:")
        else:
            with guarded():
                _draw_file(file.getvalue(), file.name)
    else:
        with guarded():
            _draw_file(shipped[source].read_bytes(), source)
    state.publish()
    with st.expander("Measure this machine", icon=":material/timer:"):
        _measure()


def _choose(shipped: dict[str, Any], runs: dict[str, Job]) -> str:
    """The measurement on show; those of the default routers come first, after one that is running."""
    own = [name for name in DEFAULTS if name in shipped]
    options = [*(name for name, job in runs.items() if job.is_alive), *own, *shipped, *runs, UPLOAD]
    options = list(dict.fromkeys(options))
    state.choose("speed", options)
    names = {UPLOAD: "upload a file", **{name: f"{job.name} · {job.state}" for name, job in runs.items()}}
    names |= {name: f"{title_of(name)} · comes with the workbench" for name in shipped}
    return st.selectbox(
        "Measurement",
        options,
        format_func=lambda name: names.get(name) or str(name),
        key="speed",
        help="Shipped measurements, measurements of this machine, or a file. Each names its machine.",
        persist_state="session",
    )


def _watch(name: str, seen: str) -> None:
    """A measurement of this machine, drawn again while it runs."""
    with guarded():
        job = jobs.find(name)
        if job is None or (job.state != seen and not job.is_alive):
            st.rerun()
        path = job.folder / BENCH_FILE
        record = read_speed(path.read_bytes(), job.name) if path.is_file() else None
        done = 0 if record is None else len(record.points) + len(record.failures)
        total = int(job.about["points"])
        if job.is_alive:
            hint = "Keep the machine idle meanwhile, or the times are too long."
            st.progress(min(1.0, done / total), text=f"Measured {done} of {total} points. {hint}")
        elif job.state != jobs.FINISHED:
            st.warning(
                f"This measurement ended at {done} of {total} points: {plain(job.last_words or 'no reason given.')}",
                icon=":material/warning:",
            )
        _buttons(job)
        if record is not None:
            _draw_attention(record)
        state.publish()


def _buttons(job: Job) -> None:
    with st.container(horizontal=True):
        if job.is_alive:
            stopping = job.state == jobs.STOPPING
            hint = "Measured points are kept."
            st.button("Stop", icon=":material/stop:", on_click=jobs.stop, args=(job,), disabled=stopping, help=hint)
            return
        hint = "Measure the missing points."
        if job.is_resumable and st.button("Resume", type="primary", icon=":material/play_arrow:", help=hint):
            jobs.resume(job)
            st.rerun()
        path = job.folder / BENCH_FILE
        if path.is_file():
            st.download_button(
                "JSON",
                path.read_bytes(),
                file_name=f"{job.name}.json",
                mime="application/json",
                icon=":material/download:",
                on_click="ignore",
                help="The record, which this page opens on any machine.",
            )
        if st.button("Delete", icon=":material/delete:", help="Delete this measurement."):
            jobs.delete(job)
            st.rerun()


def _draw_file(data: bytes, name: str) -> None:
    if is_whole_model(data):
        _draw_model(read_model_speed(data, name))
    elif is_baselines(data):
        _draw_baselines(read_baseline_speed(data, name))
    else:
        _draw_attention(read_speed(data, name))


def _draw_model(record: SpeedRecord) -> None:
    points = record.points
    st.markdown(f"#### {plain(model_speed_verdict(points, record.settings['model']))}")
    said = " · ".join(f"{name} **{plain(value)}**" for name, value in (record.machine | record.settings).items())
    st.caption(said)
    for place, task in zip(st.columns(2, gap="medium"), dict.fromkeys(points["task"])):
        with place:
            chart(
                model_curves(points, task, dark=is_dark()),
                pd.DataFrame(points.loc[points["task"] == task]),
                record.origin,
                name=f"model-{task}",
                alt=f"Tokens per second in {task}, untouched and routed.",
                column_config=COLUMNS,
            )
    fitted_table(points, MODEL_COLUMNS, COLUMNS, key="model_points")
    st.caption(
        "The folded tables have all columns. Prefill reads a text; decode produces one token after a cache of that "
        "length. A whole model does more than attention, so the bound 1 / kept share does not apply. The error is the "
        "largest difference of a logit from the reference backend with the same routing, in the shortest prefill. "
        "Speed at some length says nothing about quality there."
    )


def _draw_baselines(record: SpeedRecord) -> None:
    points = record.points
    st.markdown(f"#### {plain(baseline_verdict(points))}")
    st.caption(" · ".join(f"{name} **{plain(value)}**" for name, value in (record.machine | record.settings).items()))
    fitted_table(points, BASELINE_COLUMNS, COLUMNS, key="baseline_points")
    st.caption(
        "Speed-ups over full attention: “alone” of attention only, “incl.” with choosing the pairs included. Files "
        "have all columns. Kernels of the papers are not measured. "
        f"Past {POSITIONS:,} tokens, the positions of the default model, this is the attention kernel alone."
    )
    downloads(points, record.origin, name="baselines")


def _draw_attention(record: SpeedRecord) -> None:
    every = record.points
    if not len(every):
        st.info("**No point has been measured yet.** The first one takes a moment.", icon=":material/hourglass:")
        _failures(record)
        return
    points, unequal = apart(_filtered(every))
    summary = crossovers(points)
    st.markdown(f"#### {plain(speed_verdict(summary, record.machine, points))}")
    if (spread := noise(points)) > NOISY:
        st.warning(
            f"The slowest run of a typical point took {spread:.1f} times as long as its fastest. The machine was busy: "
            "measure again while nothing else runs.",
            icon=":material/warning:",
        )
    _machine(record)
    dark = is_dark()
    published = st.toggle(
        "Show the published curves (H100, not measured here)",
        key="speed_published",
        help="Speed-up in the paper (arXiv 2604.03260) on an H100 80 GB at k = 1, with other kernels than here.",
    )
    left, right = st.columns(2, gap="medium")
    alt = f"Speed-up over full attention of {len(summary)} series at up to {points['tokens'].max():,} tokens."
    with left:
        chart(
            speedup_curves(points, dark=dark, published=published),
            points,
            record.origin,
            name="speed-up",
            alt=alt,
            column_config=ATTENTION_COLUMNS,
        )
    with right:
        alt = "Time of full and sparse attention against tokens."
        chart(
            time_curves(points, dark=dark),
            points,
            record.origin,
            name="times",
            alt=alt,
            column_config=ATTENTION_COLUMNS,
        )
    st.markdown("##### Lengths at which it is faster, and numerical errors")
    fitted_table(summary, CROSSOVER_COLUMNS, ATTENTION_COLUMNS, key="crossovers", wraps=True)
    st.caption(
        "“faster from”: the shortest measured length from which every longer one is faster. “incl.”: choosing "
        "included, with projection, calibrated softmax, top-k and sorting; of narrow groups, with the assignment of "
        "keys, since the choice of pages is always in their time. “best” and “bound”: speed-ups, “at” a length in "
        "tokens. “error”: the largest deviation from the float32 definition over a sample of queries. Speed at some "
        "length says nothing about quality there. "
        f"Past {POSITIONS:,} tokens, the positions of the default model, this is the attention kernel alone."
    )
    downloads(summary, record.origin, name="crossovers")
    if len(unequal):
        with st.expander(f"{len(unequal)} points with unequal groups", icon=":material/table:"):
            st.caption(
                "Random unequal groups that keep the share of distant pairs that trained routers keep. Perplexity was "
                "measured at other lengths, so it does not belong beside these speeds."
            )
            st.dataframe(unequal, hide_index=True, column_config=ATTENTION_COLUMNS, key="unequal_points")
    left, right = st.columns(2, gap="medium")
    with left:
        alt = "Working memory of sparse attention against tokens."
        memory = pd.DataFrame(points[["series", "tokens", "working bytes", "input bytes"]])
        chart(
            memory_curves(points, dark=dark),
            memory,
            record.origin,
            name="memory",
            alt=alt,
            column_config=ATTENTION_COLUMNS,
        )
    with right:
        alt = "Largest error of the output against tokens."
        errors = pd.DataFrame(points[["series", "tokens", "error output", "error logsumexp"]])
        chart(
            error_curves(points, dark=dark),
            errors,
            record.origin,
            name="errors",
            alt=alt,
            column_config=ATTENTION_COLUMNS,
        )
    _failures(record)


def _filtered(points: pd.DataFrame) -> pd.DataFrame:
    dtypes = [dtype for dtype in DTYPES if dtype in set(points["dtype"])]
    if len(dtypes) == 1:
        return points
    options = [*dtypes, "all"]
    state.choose("speed_dtype", options)
    chosen = st.segmented_control(
        "Dtype",
        options,
        key="speed_dtype",
        required=True,
        help="Dtype of query, key and value.",
        persist_state="session",
    )
    return points if chosen not in dtypes else points.loc[points["dtype"] == chosen]


def _machine(record: SpeedRecord) -> None:
    machine = " · ".join(f"{name} **{plain(value)}**" for name, value in record.machine.items())
    shape = ("heads", "kv_heads", "head_dim", "window", "sink_tokens", "repetitions", "seed")
    settings = " · ".join(f"{name} **{plain(record.settings[name])}**" for name in shape if name in record.settings)
    dates = sorted(set(record.points["date"]) - {""})
    when = f" · measured {plain(dates[0])}" + (f" to {plain(dates[-1])}" if len(dates) > 1 else "") if dates else ""
    st.caption(f"{machine}{when}  \n{settings}")


def _failures(record: SpeedRecord) -> None:
    if len(record.failures):
        st.markdown("##### Points that could not be measured")
        st.dataframe(record.failures, hide_index=True, key="failures")


def _measure() -> None:
    with st.form("bench_form", border=False):
        left, middle, right = st.columns(3)
        points = {name: len(list(BenchSettings(**PRESETS[name]).points())) for name in PRESETS}
        preset = left.selectbox(
            "Points to measure",
            list(PRESETS),
            format_func=lambda name: f"{name}: {points[name]} points, up to {max(PRESETS[name]['sizes']):,} tokens",
            key="bench_preset",
            help="quick takes about a minute on two cores and standard much longer; published is for a GPU. A stopped "
            "measurement can be resumed.",
        )
        heads = middle.selectbox(
            "Heads",
            list(HEADS),
            format_func=lambda name: (
                f"{name}: {HEADS[name][0]} query, {HEADS[name][1]} key/value, size {HEADS[name][2]}"
            ),
            key="bench_heads",
            help="The shape of the heads: SmolLM2-135M, GPT-2 124M, or Llama 3 8B and Mistral 7B.",
        )
        window = right.number_input("Window, w", 0, 4096, 128, key="bench_window", help="Local window of the pattern.")
        hint = "Runs in the background, also when the page is closed. Keep the machine idle meanwhile."
        started = st.form_submit_button("Start measuring", type="primary", icon=":material/timer:", help=hint)
    if started:
        folder = jobs.new_folder(f"speed-{preset}-{heads}")
        options = [f"--preset={preset}", f"--heads={heads}", f"--window={window}", f"--out={folder / BENCH_FILE}"]
        about = {"preset": preset, "heads": heads, "window": window, "points": points[preset]}
        job = jobs.start(folder, ["bench", "attention", *options], json.loads(json.dumps(about)))
        st.session_state[NEXT] = f"{jobs.RUN}{job.name}"
        st.rerun()


with guarded():
    main()

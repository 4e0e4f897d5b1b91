"""Quality: what does routing cost?"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import streamlit as st

from focus_core.errors import FocusError
from focus_core.resources import data_dir
from workbench.charts.theme import is_dark
from workbench.engine.access import allowed, allowed_files
from workbench.runs import jobs
from workbench.shell import state
from workbench.shell.frame import open_bare_page
from workbench.views.quality.charts import BOUND, KEPT, frontier
from workbench.views.quality.kinds import (
    CHANGE,
    KINDS_COLUMNS,
    by_kind,
    kinds_frontier,
    kinds_lengths,
    kinds_map,
    kinds_notes,
    kinds_verdict,
    usual_length,
)
from workbench.views.quality.kinds import SHARES as KINDS_SHARES
from workbench.views.quality.kinds import TIMES as KINDS_TIMES
from workbench.views.quality.record_charts import KEPT as DISTANT_KEPT
from workbench.views.quality.record_charts import draw
from workbench.views.quality.record_tables import SPEEDS
from workbench.views.quality.record_verdicts import num_blocks, verdict
from workbench.views.quality.records import VIEWS, Record, by_name, find_records, read, run_files
from workbench.views.quality.tables import Found, find_results
from workbench.views.quality.verdicts import quality_verdict
from workbench.widgets.columns import fitted_table
from workbench.widgets.export import chart
from workbench.widgets.guard import guarded
from workbench.widgets.page.markup import plain

QUESTION = (
    "Routing drops pairs of tokens, so a model may predict worse. This page shows recorded perplexities against the "
    "untouched model. Beside each stand the share of pairs kept and the largest group."
)
PERPLEXITY = "perplexity"
PERPLEXITY_QUESTION = "Perplexity of recorded routings beside the share of pairs they keep"
_GROUP = "evidence_group"
# Kinds of evidence by what they are held against; the page opens on the first.
GROUPS = {
    "Other methods": ["kinds", "frontier", "adapted"],
    "Settings and texts": [PERPLEXITY, "k-sweep", "lengths", "domains", "leak", "benchmarks", "alignment"],
    "Training": ["retrofit", "recipes", "ablation", "stability", "scale", "finetune", "lora", "adapters"],
}
SHARES = (
    *("distant kept", "largest group", "largest group, worst layer", "stability", "distant pairs", "removed"),
    *("kept share, difference", "exposure"),
)
AXES = {"kept": KEPT, "bound": BOUND}
FRONTIER_AXES = {"kept": DISTANT_KEPT} | {f"speed{size}": name for name, size in SPEEDS.items()}
KINDS_NATS = ("KL", "KL, last quarter", "KL, low", "KL, high", "ours minus this")
PERCENT = st.column_config.NumberColumn(format="percent")
TIMES = st.column_config.NumberColumn(format="%.2fx")
COLUMNS = {
    "perplexity": st.column_config.NumberColumn(format="%.2f"),
    "relative": st.column_config.NumberColumn("× untouched", format="%.3f"),
    **{name: PERCENT for name in ("distant kept", "all kept", "largest group", "exposure")},
    "exposure": st.column_config.NumberColumn(
        format="percent", help="Share of causal pairs beyond the window, which routing may drop."
    ),
}

# Columns of the open table; the folded one under the chart has all.
MAIN_COLUMNS = (
    *("routers", "kind", "routing", "budget", "balance", "remark", "perplexity", "relative", "distant kept"),
    *("all kept", "largest group", "exposure", "model", "text", "T", "stride", "K", "w", "sinks", "date"),
)


def main() -> None:
    """Draw the page."""
    open_bare_page("Quality: what does routing cost?", QUESTION)
    left, right = st.columns(2)
    with right:
        files = _files()
    with left:
        chosen = _evidence_choice()
    found = find_results(files)
    if chosen in VIEWS:
        _evidence(chosen, find_records([*files, *run_files()]))
    elif len(found.table):
        _quality(found)
    else:
        _empty_state()
    state.publish()
    _missing(found, files)


def _evidence_choice() -> str:
    """Kind of evidence, grouped by its question; the sentence under it says what it is."""
    state.choose("evidence", [kind for kinds in GROUPS.values() for kind in kinds])
    at = st.session_state["evidence"]
    state.hold(_GROUP, next(group for group, kinds in GROUPS.items() if at in kinds))
    group = st.segmented_control(
        "Question",
        list(GROUPS),
        key=_GROUP,
        required=True,
        on_change=_take_group,
        width="stretch",
        help="Evidence of three kinds: against other methods, on the cost of a setting, and on training.",
    )
    chosen = st.selectbox(
        "Evidence",
        GROUPS[group or next(iter(GROUPS))],
        format_func=lambda name: VIEWS[name].label if name in VIEWS else "Perplexity and kept pairs",
        key="evidence",
        help="The kind of recorded run. One command makes each kind; the page names it where there is no record.",
        persist_state="session",
    )
    st.caption(f"{VIEWS[chosen].question if chosen in VIEWS else PERPLEXITY_QUESTION}.")
    return chosen


def _take_group() -> None:
    group = st.session_state.get(_GROUP)
    if group in GROUPS:
        st.session_state["evidence"] = GROUPS[group][0]


def _files() -> list[Path]:
    """Shipped results, finished trainings of this machine, and a folder that the user names."""
    files = sorted((data_dir() / "results").rglob("*.json"))
    files += [job.folder / "training.json" for job in jobs.jobs("train") if job.state == jobs.FINISHED]
    named = st.text_input(
        "More results",
        key="quality_folder",
        placeholder="a file or folder with results of focus eval --out",
        help="A file or folder of your own, whose .json files are read. Results that come with the workbench and "
        "finished runs of the Train page are listed without it.",
        persist_state="session",
    )
    if named:
        path = allowed(named)
        if not path.exists():
            raise FocusError(f"There is no file or folder {named}: check the path.")
        files += allowed_files(sorted(path.rglob("*.json"))) if path.is_dir() else [path]
    return files


def _quality(found: Found) -> None:
    table = _filtered(found.table)
    st.markdown(f"#### {plain(quality_verdict(table))}")
    state.choose("axis", list(AXES))
    axis = st.segmented_control(
        "Against",
        list(AXES),
        format_func=lambda name: AXES[name],
        key="axis",
        required=True,
        help="Share of distant pairs kept, or the bound on the speed-up of attention: 1 / share of all pairs computed. "
        "The bound is not measured. The page Speed has measured speeds.",
        persist_state="session",
    )
    chart(
        frontier(table, dark=is_dark(), against=AXES[axis or "kept"]),
        table,
        {"files": ", ".join(sorted(set(table["file"])))},
        name="quality",
        alt=f"Perplexity against the share of pairs kept, {len(table)} recorded settings.",
        column_config=COLUMNS,
    )
    st.caption(
        "Filled circles are causal. Open diamonds **see later tokens**: as published, their groups are balanced over "
        "the whole text. A model that generates cannot do that."
    )
    st.dataframe(
        table,
        hide_index=True,
        key="quality_rows",
        column_order=MAIN_COLUMNS,
        column_config=COLUMNS,
    )


def _evidence(kind: str, records: list[Record]) -> None:
    """One kind of record beyond perplexity tables: sentence, chart and table."""
    view = VIEWS[kind]
    found = by_name(each for each in records if each.kind == kind)
    if not found:
        st.info(f"**No record of this kind was found.** {view.question}. `{view.command}` makes one.")
        return
    state.choose("record", list(found))
    name = st.selectbox(
        "Record",
        list(found),
        format_func=lambda key: found[key].label,
        key="record",
        help="Runs of this kind, newest first: shipped ones, those in the workbench's folder of runs, and those in the "
        "folder named above.",
        persist_state="session",
    )
    record = found[name or next(iter(found))]
    table = read(record)
    if view.draw == "kinds":
        _kinds(record, table)
        return
    against = _frontier_axis(table) if view.draw == "frontier" else None
    table = table.drop(columns=[name for name in SPEEDS if name in table and bool(table[name].isna().all())])
    blocks = num_blocks(record.content)
    st.markdown(f"#### {plain(verdict(view.draw, table, view.metric, against, blocks=blocks))}")
    if len(table):
        chart(
            draw(view.draw, table, metric=view.metric, dark=is_dark(), against=against),
            table,
            {"file": record.name, "model": record.content["model"]["name"], "date": record.date},
            name=f"quality-{kind}",
            alt=f"{view.question}: {len(table)} rows.",
            column_config={column: PERCENT for column in table.columns if column in SHARES}
            | {column: TIMES for column in table.columns if column in SPEEDS},
        )
    st.caption(f"{plain(_origin(record))} Made by `{view.command}`; see docs/reproduction.md.")
    missing = record.content.get("missing")
    if missing:
        st.caption(f"Not measured in this run: {plain(', '.join(map(str, missing)))}.")


def _kinds(record: Record, table: pd.DataFrame) -> None:
    """Several kinds of text: a length to choose, the means over kinds, and KL of each method on each kind."""
    content, lengths = record.content, kinds_lengths(record.content)
    usual = usual_length(content)
    state.choose("kinds_length", [usual, *lengths])
    length = st.segmented_control(
        "Length",
        lengths,
        format_func="{:,} tokens".format,
        key="kinds_length",
        required=True,
        help="Context length T. Quality, kept share and speed of a table are all of this length.",
        persist_state="session",
    )
    length = length or usual
    st.markdown(f"#### {plain(kinds_verdict(content, length))}")
    here = table.loc[table["T"] == length].dropna(axis="columns", how="all").drop(columns="T")
    columns = {name: PERCENT for name in KINDS_SHARES} | {name: TIMES for name in KINDS_TIMES}
    columns |= {name: st.column_config.NumberColumn(format="%.4f") for name in KINDS_NATS}
    columns[CHANGE] = st.column_config.NumberColumn(
        format="percent", help="Of perplexity, from that of the untouched model."
    )
    origin = {"file": record.name, "model": content["model"]["name"], "date": record.date, "length": length}
    chart(
        kinds_frontier(here, dark=is_dark()),
        here,
        origin,
        name="quality-kinds-frontier",
        alt=f"KL of {len(here)} methods at {length:,} tokens against the share of distant pairs that they keep.",
        column_config=columns,
    )
    st.markdown("**Every method**")
    fitted_table(here, KINDS_COLUMNS, columns, key="kinds_rows")
    st.caption(
        "Kept: share of distant pairs. KL in nats per token, with the ends of its 95% interval. Model: speed of the "
        "whole model over the untouched one. The folded table under the chart has all columns and the sources."
    )
    kinds = by_kind(content, length)
    chart(
        kinds_map(kinds, dark=is_dark()),
        kinds,
        origin,
        name="quality-kinds",
        alt=f"KL of {len(kinds)} methods on {len(kinds.columns) - 1} kinds of text at {length:,} tokens.",
    )
    st.markdown("\n".join(f"- {plain(note)}" for note in kinds_notes(content)))
    made = content["made"]
    st.caption(
        plain(f"{content['model']['name']}; {made['device']}; {record.date[:10]}. Made by {VIEWS['kinds'].command}.")
    )


def _frontier_axis(table: pd.DataFrame) -> str:
    """The horizontal axis: the share of pairs kept, or a speed where one was measured at the record's length."""
    axes = {key: name for key, name in FRONTIER_AXES.items() if len(table) and bool(table[name].notna().any())}
    if len(axes) < 2:
        return DISTANT_KEPT
    state.choose("frontier_axis", list(axes))
    axis = st.segmented_control(
        "Against",
        list(axes),
        format_func=lambda key: "share of distant pairs kept" if axes[key] == DISTANT_KEPT else f"{axes[key]} tokens",
        key="frontier_axis",
        required=True,
        help="Share of distant pairs kept, or the measured speed-up of one attention call at this length, selection "
        "time excluded. Speeds of routers are those of random groups that keep about the same share. Speeds of "
        "baselines are understated until they are measured again.",
        persist_state="session",
    )
    return axes[axis or "kept"]


def _origin(record: Record) -> str:
    """Model, scale, texts, device and date of a record."""
    content = record.content
    made, settings = content.get("made") or {}, content.get("settings") or {}
    scale = settings.get("scale") or {
        name: settings[name] for name in ("steps", "length", "window", "blocks") if name in settings
    }
    texts = content.get("data") or settings.get("held_out") or []
    parts = [str(content["model"]["name"]), ", ".join(f"{name} {value}" for name, value in scale.items())]
    parts.append(", ".join(str(text["name"]) for text in texts if isinstance(text, dict) and "name" in text))
    return "; ".join(filter(None, [*parts, str(made.get("device", "")), record.date[:10]])) + "."


def _filtered(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of one model and text; others cannot be compared with them."""
    columns = zip(table["model"], table["text"], table["T"], table["w"])
    setups = table.assign(
        setup=[f"{model} · {text} · T={length}, w={window}" for model, text, length, window in columns]
    )
    names = list(dict.fromkeys(setups["setup"]))
    counts = setups["setup"].value_counts()
    if len(names) > 1:
        state.choose("evaluated", names)
    else:
        st.session_state["evaluated"] = names[0]
    chosen = st.selectbox(
        "Evaluated on",
        names,
        format_func=lambda name: f"{name} ({counts[name]} rows)",
        key="evaluated",
        help="Model, text, context length and window. Only rows that share them can be compared.",
        persist_state="session",
    )
    return setups.loc[setups["setup"] == chosen].drop(columns="setup").reset_index(drop=True)


def _missing(found: Found, files: list[Path]) -> None:
    have = {record.kind for record in find_records([*files, *run_files()])}
    lines = [
        f"**{view.label}**: none yet; `{view.command}` makes one."
        for kind, view in VIEWS.items()
        if kind not in have and not view.retired
    ]
    with st.expander("Evidence that is missing", icon=":material/rule:"):
        if lines:
            st.markdown("\n".join(f"- {line}" for line in lines))
        st.markdown("To add a perplexity, run `focus eval --data FILE --out results.json` and name its folder above.")
        st.markdown("For the published experiments, one command each, run `focus reproduce --list`.")
        if found.skipped:
            st.markdown("Files without a table of perplexities:")
            st.dataframe(pd.DataFrame(found.skipped, columns=["file", "reason"]), hide_index=True, key="skipped")


def _empty_state() -> None:
    st.info("**No recorded evaluation was found.**", icon=":material/query_stats:")
    st.markdown(
        "Run `focus eval --data FILE --out results.json` and name the file above. Or train routers on the page Train, "
        "which evaluates them at the end."
    )


with guarded():
    main()

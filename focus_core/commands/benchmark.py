"""`focus benchmark`: the evaluation harness under several routings, exposure beside every score."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from focus_core.commands.options import JsonOption, ModelOption, RoutersOption, print_json

SHORT = ["truthfulqa_mc1", "arc_easy", "piqa", "lambada_openai", "hellaswag", "gsm8k"]


def benchmark(
    data: Annotated[
        Path | None, typer.Option("--data", "-d", help="Folder with the task files; see docs/benchmarks.md.")
    ] = None,
    hub: Annotated[bool, typer.Option("--hub", help="Get the tasks from the Hugging Face hub instead.")] = False,
    task: Annotated[
        list[str] | None,
        typer.Option(
            "--task",
            "-t",
            help="May be repeated. NAME, NAME_long, lambada_openai_after_2048, needle_1024; NAME=20 for 20 items.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(help="Items per task, the first ones; 0 for all.")] = 100,
    model: ModelOption = "default",
    routers: RoutersOption = None,
    untrained: Annotated[bool, typer.Option("--untrained", help="Use untrained routers (seed 0).")] = False,
    top_k: Annotated[list[int] | None, typer.Option("--top-k", "-k", help="May be repeated. Default: 1 and 2.")] = None,
    soft: Annotated[bool, typer.Option(help="Also the soft gate of training.")] = True,
    filler: Annotated[
        list[Path] | None, typer.Option(help="Text put before passages and around needles. Default: the sample story.")
    ] = None,
    long_tokens: Annotated[int, typer.Option(help="Length of the few-shot prompts of NAME_long.")] = 1024,
    batch_size: Annotated[int, typer.Option(help="Requests per pass; 1 reuses what neighbours share.")] = 1,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    seed: Annotated[int, typer.Option(help="Of few-shot sampling, needles and bootstrap.")] = 0,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for results; a run can go on there.")] = Path(
        "runs/benchmark"
    ),
    record: Annotated[Path | None, typer.Option(help="Also write the summary, without items, to this file.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Benchmarks of the evaluation harness, untouched and routed.

    Beside every score stands how much of the items the gate can meet. Short
    items meet none of it: their scores are equal by construction and say
    nothing about routing. Differences carry paired bootstrap intervals.

    Example: focus benchmark --hub -t piqa -t piqa_long -t needle_1024 --limit 50
    Example: focus benchmark --data bench/ -t truthfulqa_mc1 -k 1 -k 2
    """
    import logging
    import os

    os.environ.setdefault("TQDM_DISABLE", "1")  # the harness's bars; ours says which task and routing
    from focus_core.errors import FocusError, require

    if hub == (data is not None):
        raise FocusError("Say where the tasks come from: --data FOLDER for local files, or --hub.")
    require("lm_eval", "eval")
    from focus_core.harness.model import FocusLM
    from focus_core.harness.scores import Setting, run_task, summary
    from focus_core.harness.tasks import load_task
    from focus_core.models import load_model
    from focus_core.progress import terminal_progress
    from focus_core.resources import data_dir
    from focus_core.results import record_run, stored_or_run, text_records
    from focus_core.routing.attach import attach
    from focus_core.routing.storage import routers_hash
    from focus_core.text import find_texts, read_text

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    fillers = find_texts(filler or [data_dir() / "samples" / "story.txt"])
    text = "\n\n".join(read_text(path) for path in fillers)
    with terminal_progress() as progress:
        loaded = load_model(model, device=device, progress=progress)
        focus = attach(loaded, routers, untrained=untrained)
        settings = [
            Setting("off"),
            *([Setting("soft")] if soft else []),
            *(Setting("hard", k) for k in top_k or (1, 2)),
        ]
        limits = task_limits(task or SHORT, limit)
        common = {
            "model": loaded.info.name,
            "revision": loaded.info.revision,
            "routers": routers_hash(focus.routers),
            "source": "hub" if hub else "local files",
            "seed": seed,
            "long_tokens": long_tokens,
            "filler": text_records(fillers),
            "config": focus.config,
        }
        results: dict[str, dict] = {}
        for number, (name, count) in enumerate(limits.items()):
            for step, setting in enumerate(settings):

                def show(share: float, before: int = number * len(settings) + step) -> None:
                    progress(f"{name}, {setting.name}", (before + share) / (len(limits) * len(settings)))  # noqa: B023

                show(0.0)

                def run(name=name, setting=setting, count=count, show=show) -> dict:
                    lm = FocusLM(
                        focus,
                        tokenizer=loaded.tokenizer,
                        mode=setting.mode,
                        top_k=setting.top_k,
                        balance=setting.balance,
                        batch_size=batch_size,
                    )
                    lm.on_progress = show
                    found = load_task(
                        name, loaded.tokenizer, data=data, filler=text, long_tokens=long_tokens, seed=seed
                    )
                    return run_task(lm, found, count, seed)

                path = out / f"{name}--{setting.name}.json"
                identity = {**_plain(common), "task": name, "limit": count, "setting": setting.name}
                results.setdefault(name, {})[setting.name] = stored_or_run(path, identity, run)
    report = {
        "model": {"name": loaded.info.name, "revision": loaded.info.revision},
        "settings": {**common, "routers_name": focus.name, "trained": focus.trained, "limits": limits},
        "harness": _versions(),
        "results": summary(results, settings, seed),
    }
    written = record_run(out / "summary.json", report)
    if record is not None:
        record_run(record, report)
    if json_output:
        print_json(written)
    else:
        _show(written["results"])


def task_limits(tasks: list[str], limit: int) -> dict[str, int | None]:
    """Items per task, None for all: "piqa" takes the common limit, "piqa=20" its own.

    Raises:
        FocusError: what stands after "=" is no number.
    """
    from focus_core.errors import FocusError

    found: dict[str, int | None] = {}
    for spelling in tasks:
        name, given, count = spelling.partition("=")
        if given and not count.isdecimal():
            raise FocusError(f"{spelling!r} is not a task with a number of items: write NAME or NAME=20.")
        found[name] = (int(count) if given else limit) or None
    return found


def _plain(values: dict) -> dict:
    from focus_core.results import stamp

    return {key: value for key, value in stamp(values).items() if key != "made"}


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("lm_eval", "datasets")}


def _show(rows: list[dict]) -> None:
    import rich

    from focus_core.commands.tables import plain_table

    title = "Scores, the gate's exposure, and differences from the untouched model (95% bootstrap)"
    names = ("task", "items", "routing", "metric", "score", "difference", "distant pairs", "removed", "reading")
    table = plain_table(title, *names, left=("task", "routing", "metric", "reading"))
    for row in rows:
        metric = row["headline"]
        gap = row.get("differences", {}).get(metric)
        table.add_row(
            row["task"],
            str(row["items_scored"]),
            row["setting"],
            metric,
            f"{row['metrics'][metric]:.3f}",
            "" if gap is None else f"{gap['difference']:+.3f} [{gap['low']:+.3f}, {gap['high']:+.3f}]",
            f"{row['exposure']['distant_share']:.1%}",
            f"{row['exposure']['removed_share']:.1%}",
            row["reading"],
        )
    rich.print(table)

"""`focus harness`: tasks of the evaluation harness under several routings, exposure beside every score."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from focus_core.commands.options import (
    MAX_COUNT,
    MAX_GROUPS,
    MAX_SEED,
    MAX_TOKENS,
    JsonOption,
    ModelOption,
    RoutersOption,
    device_name,
    print_json,
    refuse_given,
    show,
)


def harness(
    context: typer.Context,
    data: Annotated[
        Path | None, typer.Option("--data", "-d", help="Folder with the task files; see docs/benchmarks.md.")
    ] = None,
    hub: Annotated[bool, typer.Option("--hub", help="Get the tasks from the Hugging Face hub instead.")] = False,
    task: Annotated[
        list[str] | None,
        typer.Option(
            "--task",
            "-t",
            help="NAME, NAME_long, lambada_openai_after_2048, needle_1024 or pairs_1024; NAME=20 for 20 items, "
            "NAME=0 for all. Repeat for more.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, max=MAX_COUNT, help="Items per task, the first ones; 0 for all.")] = 100,
    model: ModelOption = "default",
    routers: RoutersOption = None,
    untrained: Annotated[bool, typer.Option("--untrained", help="Use untrained routers (seed 0).")] = False,
    top_k: Annotated[
        list[int] | None,
        typer.Option("--top-k", "-k", min=1, max=MAX_GROUPS, help="k; repeat. Default: 1, 2, or the share read."),
    ] = None,
    soft: Annotated[bool, typer.Option(help="Also the soft gate of training.")] = True,
    filler: Annotated[
        list[Path] | None, typer.Option(help="Text put before passages and around needles. Default: the sample story.")
    ] = None,
    long_tokens: Annotated[
        int, typer.Option(min=1, max=MAX_TOKENS, help="Length of the few-shot prompts of NAME_long.")
    ] = 1024,
    batch_size: Annotated[
        int, typer.Option(min=1, max=MAX_COUNT, help="Requests per pass; 1 reuses their common start.")
    ] = 1,
    device: Annotated[str, typer.Option(parser=device_name, help="cpu or cuda.")] = "cpu",
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of few-shot sampling, needles and pairs.")] = 0,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for results; repeat the command to resume.")] = Path(
        "runs/harness"
    ),
    record: Annotated[Path | None, typer.Option(help="Also write the summary, without items, to this file.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Score harness tasks, untouched and routed.

    Every score comes with the gate's exposure: the share of pairs that
    routing can remove. Short items have none, so their scores are equal by
    construction. Differences have paired t intervals.

    Example: focus harness --hub -t piqa -t piqa_long -t needle_1024 --limit 50
    Example: focus harness --data bench/ -t truthfulqa_mc1 -k 1 -k 2
    """
    import os

    from focus_core.errors import FocusError, require

    if hub == (data is not None):
        raise FocusError("Say where the tasks come from: --data FOLDER for local files, or --hub.")
    os.environ.setdefault("TQDM_DISABLE", "1")  # the harness's bars; ours says which task and routing
    require("lm_eval", "eval")
    from focus_core.commands.tables.harness import harness_table
    from focus_core.harness.retrieval import retrieval_of
    from focus_core.harness.run import TASKS, HarnessSettings, run_harness, task_limits
    from focus_core.harness.tasks import AFTER, LONG
    from focus_core.io.locks import claim_file
    from focus_core.progress import terminal_progress
    from focus_core.results import check_replaceable, record_run

    limits = task_limits(task or TASKS, limit)
    if all("=" in each for each in task or ("",)):
        refuse_given(context, ["limit"], "every task has a number of its own")
    if not any(LONG in each for each in limits):
        refuse_given(context, ["long_tokens"], "name a task NAME_long")
    if not any(AFTER in each or retrieval_of(each) == "needle" for each in limits):
        refuse_given(context, ["filler"], "name a task such as needle_1024")
    settings = HarnessSettings(
        data=data,
        limits=limits,
        top_k=None if top_k is None else tuple(top_k),
        soft=soft,
        filler=tuple(filler or ()),
        long_tokens=long_tokens,
        batch_size=batch_size,
        seed=seed,
    )
    with nullcontext() if record is None else claim_file(record):
        with terminal_progress() as progress:
            written = run_harness(
                settings, out, model=model, routers=routers, untrained=untrained, device=device, progress=progress
            )
        if record is not None:
            # The folder has the results, so nothing is lost. A record may get more tasks.
            check_replaceable(record, {name: written[name] for name in ("model", "settings")}, free=("limits",))
            record_run(record, written, device=device)
    if json_output:
        print_json(written)
    else:
        show(harness_table(written["results"]))

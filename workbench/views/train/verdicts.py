"""The sentences of the Train page: how a run stands, and its result."""

from __future__ import annotations

import numpy as np
import pandas as pd

from focus_core.training.log import Progress
from workbench.runs import jobs
from workbench.runs.jobs import Job
from workbench.views.quality.record_verdicts import ADAPTATION, few_blocks
from workbench.views.quality.tables import FUTURE, TRAINED, UNTRAINED
from workbench.views.quality.verdicts import blocks_of
from workbench.views.train.tables import RECENT_STEPS, duration, seconds_left
from workbench.widgets.page.markup import counted


def training_verdict(job: Job, progress: Progress, results: pd.DataFrame) -> str:
    """How a run stands, or its result."""
    if job.state == jobs.FINISHED:
        return finished_verdict(results, int(job.about["top_k"]), int(job.about.get("eval_blocks", 0)))
    if job.state == jobs.RUNNING:
        return _running_verdict(job, progress)
    done = progress.steps[-1].step if progress.steps else 0
    at = f"at step {done} of {job.about['steps']}"
    return {
        jobs.STOPPING: "Stopping: the checkpoint is being written.",
        jobs.STOPPED: f"Stopped {at}. Resume continues from there.",
        jobs.FAILED: f"The run ended with an error {at}.",
        jobs.LOST: f"The run's process ended {at} without a message.\n\nThe machine restarted, or the process was "
        "killed, perhaps because memory or disk space ran out. Resume continues from the last checkpoint.",
    }[job.state]


def _running_verdict(job: Job, progress: Progress) -> str:
    if progress.phase == "evaluating":
        return f"Trained. Evaluating on held-out text, setting {progress.done + 1} of {progress.total}."
    if progress.phase == "calibrating":
        return "All steps are done. Calibrating the potentials that make routing causal."
    if progress.phase != "training":
        return "Loading the model and the text."
    return _step_sentence(job, progress) if progress.steps else "The first step is running."


def _step_sentence(job: Job, progress: Progress) -> str:
    first, last = progress.steps[0], progress.steps[-1]
    sentence = (
        f"Step {last.step} of {job.about['steps']}: the loss is {last.loss:.3f} nats ({first.loss:.3f} at first).\n\n"
        f"The largest group of any layer holds {last.largest_group_share:.0%} of the tokens; an even split is "
        f"{1 / job.about['num_groups']:.1%}."
    )
    left = seconds_left(progress, job.about)
    if left is None:
        return f"{sentence} The time left can be estimated after the second step."
    counted = min(RECENT_STEPS, len(progress.steps))
    return (
        f"{sentence} The steps take about {duration(left)} more at the speed of the last {counted}. Evaluation follows."
    )


def finished_verdict(results: pd.DataFrame, top_k: int, asked_blocks: int = 0) -> str:
    """Perplexity and kept pairs on held-out text, with trained routers and with untrained ones.

    Args:
        results: from `workbench.views.train.tables.results_table`.
        top_k: k of the trained routing.
        asked_blocks: held-out blocks that the run was to evaluate; fewer where the text is short.
    """
    rows = results.loc[(results["routing"] == "hard") & (results["k"] == top_k) & (results["remark"] != FUTURE)]
    trained, untrained = rows.loc[rows["kind"] == TRAINED], rows.loc[rows["kind"] == UNTRAINED]
    if not len(trained):
        return "Finished, without an evaluation on held-out text."
    row, blocks = trained.iloc[0], blocks_of(trained)
    kept = f"k = {top_k} keeps {row['distant kept']:.0%} of the distant pairs"
    if pd.isna(row["relative low"]):
        fewer = f" of the {asked_blocks} asked for" if blocks < asked_blocks else ""
        parts = [
            f"Too little held-out text to tell a change of perplexity: {row['tokens']:,} tokens in "
            f"{counted(blocks, 'block')}{fewer}.\n\nThere {kept}, and perplexity is {row['perplexity']:.2f} "
            f"({row['perplexity'] / row['relative']:.2f} untouched), without an interval.",
        ]
    else:
        parts = [
            f"On {row['tokens']:,} held-out tokens, {kept} and changes perplexity by {_change(row)}.\n\n"
            f"Perplexity is {row['perplexity']:.2f}."
        ]
    parts.append(f"The largest group holds {row['largest group']:.0%} of the tokens.")
    if len(untrained):
        other = untrained.iloc[0]
        helped = "" if other["perplexity"] > row["perplexity"] else " So this training has not helped."
        change = "" if pd.isna(other["relative low"]) else f", {_change(other)},"
        parts.append(
            f"Untrained routers, calibrated alike: {other['perplexity']:.2f}{change} at "
            f"{other['distant kept']:.0%} kept.{helped}"
        )
    parts += [ADAPTATION] if row["relative"] < 1 and not pd.isna(row["relative low"]) else []
    return " ".join([*parts, *few_blocks(blocks)])


def _change(row: pd.Series) -> str:
    """A change of perplexity with its interval, paired over blocks."""
    ratios = np.asarray(row[["relative", "relative low", "relative high"]], dtype=float)
    change, low, high = (ratios - 1).tolist()
    return f"{change:+.1%} (95% interval {low:+.1%} to {high:+.1%})"

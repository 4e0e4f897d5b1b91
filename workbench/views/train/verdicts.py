"""The sentences that answer the question of the Train page."""

from __future__ import annotations

import pandas as pd

from focus_core.training.log import Progress
from workbench.runs import jobs
from workbench.runs.jobs import Job
from workbench.views.quality.tables import FUTURE, TRAINED, UNTRAINED
from workbench.views.train.tables import RECENT_STEPS, duration, seconds_left


def training_verdict(job: Job, progress: Progress, results: pd.DataFrame) -> str:
    """How a run stands, or what it has brought."""
    if job.state == jobs.FINISHED:
        return finished_verdict(results, int(job.about["top_k"]))
    if job.state == jobs.RUNNING:
        return _running_verdict(job, progress)
    done = progress.steps[-1].step if progress.steps else 0
    at = f"at step {done} of {job.about['steps']}"
    return {
        jobs.STOPPING: "Stopping: the checkpoint is being written.",
        jobs.STOPPED: f"Stopped {at}: resume goes on from there.",
        jobs.FAILED: f"It ended with an error {at}.",
        jobs.LOST: f"Its process ended {at} without a word: the machine restarted, or it was killed, perhaps because "
        "memory or the disk ran out. Resume goes on from the last checkpoint.",
    }[job.state]


def _running_verdict(job: Job, progress: Progress) -> str:
    if progress.phase == "evaluating":
        return f"Trained; evaluating on held-out text, setting {progress.done + 1} of {progress.total}."
    if progress.phase == "calibrating":
        return "All steps done; calibrating the potentials that make routing causal."
    if progress.phase != "training":
        return "Loading the model and the text."
    return _step_sentence(job, progress) if progress.steps else "The first step is under way."


def _step_sentence(job: Job, progress: Progress) -> str:
    first, last = progress.steps[0], progress.steps[-1]
    sentence = (
        f"Step {last.step} of {job.about['steps']}: the loss is {last.loss:.3f} nats ({first.loss:.3f} at first), and "
        f"the largest group of any layer holds {last.largest_group_share:.0%} of the tokens (an even split is "
        f"{1 / job.about['num_groups']:.1%})."
    )
    left = seconds_left(progress, job.about)
    if left is None:
        return f"{sentence} The time left is known after the second step."
    counted = min(RECENT_STEPS, len(progress.steps))
    return (
        f"{sentence} About {duration(left)} of steps left, at the pace of the last {counted}; evaluation comes after."
    )


def finished_verdict(results: pd.DataFrame, top_k: int) -> str:
    """What trained routers cost and keep on held-out text, beside untrained ones."""
    rows = results.loc[(results["routing"] == "hard") & (results["k"] == top_k) & (results["remark"] != FUTURE)]
    trained, untrained = rows.loc[rows["kind"] == TRAINED], rows.loc[rows["kind"] == UNTRAINED]
    if not len(trained):
        return "Finished, without an evaluation on held-out text."
    row = trained.iloc[0]
    sentence = (
        f"On {row['tokens']:,} held-out tokens, k = {top_k} keeps {row['distant kept']:.0%} of the distant pairs for a "
        f"perplexity of {row['perplexity']:.2f} ({row['relative'] - 1:+.1%} against the untouched model); the "
        f"largest group holds {row['largest group']:.0%}"
    )
    if not len(untrained):
        return f"{sentence}."
    other = untrained.iloc[0]
    better = "" if other["perplexity"] > row["perplexity"] else ": this training has not helped"
    return (
        f"{sentence}. Untrained routers, calibrated alike: {other['perplexity']:.2f} ({other['relative'] - 1:+.1%}) "
        f"at {other['distant kept']:.0%} kept{better}."
    )

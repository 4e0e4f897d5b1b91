"""The sentences that answer the questions of the pages on runs: Train, Speed and Quality."""

from __future__ import annotations

import pandas as pd

from focus_core.training.log import Progress
from workbench import jobs
from workbench.jobs import Job
from workbench.quality import FUTURE, TRAINED, UNTOUCHED, UNTRAINED
from workbench.training import RECENT_STEPS, duration, seconds_left


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


def quality_verdict(table: pd.DataFrame) -> str:
    """What causal routing with trained routers costs at each k, and how untrained routers compare.

    Args:
        table: rows of `workbench.quality` of one model, text, T and w.
    """
    causal = table.loc[(table["routing"] == "hard") & (table["remark"] != FUTURE)]
    trained = causal.loc[(causal["kind"] == TRAINED) & causal["relative"].notna()]
    if not len(trained):
        untouched = table.loc[table["kind"] == UNTOUCHED, "perplexity"]
        at = f" (untouched: {untouched.iloc[0]:.2f})" if len(untouched) else ""
        return f"No causal routing with trained routers has been recorded here{at}."
    parts = []
    for top_k in sorted(set(trained["k"].dropna())):
        rows = trained.loc[trained["k"] == top_k]
        best = rows.loc[rows["relative"].idxmin()]
        parts.append(
            f"k = {int(top_k)} changes perplexity by {best['relative'] - 1:+.1%} and keeps "
            f"{best['distant kept']:.0%} of the distant pairs (largest group {best['largest group']:.0%})"
        )
    sentence = f"With trained, causal routing {'; '.join(parts[:4])}."
    return sentence + _untrained_sentence(causal, trained)


def _untrained_sentence(causal: pd.DataFrame, trained: pd.DataFrame) -> str:
    """How untrained routers fare at the smallest k that both were measured at."""
    untrained = causal.loc[(causal["kind"] == UNTRAINED) & causal["relative"].notna()]
    common = sorted(set(untrained["k"].dropna()) & set(trained["k"].dropna()))
    if not common:
        return ""
    rows = untrained.loc[untrained["k"] == common[0]]
    best = rows.loc[rows["relative"].idxmin()]
    return (
        f" Untrained routers at k = {int(common[0])}: {best['relative'] - 1:+.1%}, at {best['distant kept']:.0%} kept "
        f"(largest group {best['largest group']:.0%})."
    )


def speed_verdict(crossover: pd.DataFrame, machine: dict[str, str], points: pd.DataFrame) -> str:
    """From which length on it pays, what it reaches of what is possible, and where it loses."""
    where = f"On {machine.get('device', 'an unnamed machine')}"
    if not len(crossover):
        return f"{where} nothing has been measured yet."
    winners = crossover.loc[crossover["faster from"].notna()]
    lost = sum(value <= 1 for value in points["speedup"])
    losses = f"Full attention was faster at {lost} of {len(points)} measured points."
    if not len(winners):
        return f"{where} it does not pay at any measured length. {losses}"
    best = winners.loc[winners["best speed-up"].idxmax()]
    never = len(crossover) - len(winners)
    more = f" {never} of {len(crossover)} series never become faster." if never else ""
    return (
        f"{where} it pays from {int(best['faster from']):,} tokens on with {best['series']}, which reaches "
        f"{best['best speed-up']:.1f}x of a possible {best['bound there']:.1f}x at {int(best['at tokens']):,}. "
        f"{losses}{more}"
    )


def model_speed_verdict(points: pd.DataFrame, model: str) -> str:
    """What routing does to the pace of a whole model, its losses included.

    Args:
        points: from `workbench.speed.read_model_speed`.
        model: its name.
    """
    parts = []
    for task in dict.fromkeys(points["task"]):
        rows = points.loc[(points["task"] == task) & points["k"].notna()]
        if len(rows):
            best = rows.loc[rows["speedup"].idxmax()]
            slower = sum(value <= 1 for value in rows["speedup"])
            parts.append(
                f"{task} is at best {best['speedup']:.2f}x as fast as untouched (k = {int(best['k'])}, "
                f"{int(best['tokens']):,} tokens, {best['kept share']:.0%} kept), and slower at {slower} of "
                f"{len(rows)} measured settings"
            )
    return f"{model}: {'; '.join(parts)}." if parts else f"{model}: no routed setting has been measured."

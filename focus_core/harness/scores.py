"""Scores of benchmarks under several routings, with gate exposure and paired differences from the untouched model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager
from scipy.special import log_softmax

from focus_core.errors import FocusError
from focus_core.evaluation.compare import mean_difference
from focus_core.evaluation.exposure import Exposure
from focus_core.harness.tasks import headline
from focus_core.routing.model import Mode


@dataclass(frozen=True)
class Setting:
    """One routing of a benchmark.

    Attributes:
        mode: "off", "soft" or "hard".
        top_k: k of hard routing.
        balance: "calibrated" or "sequence"; the routers' own when None.
    """

    mode: Mode
    top_k: int | None = None
    balance: str | None = None

    @property
    def name(self) -> str:
        """Name of the setting, such as "hard-k2"."""
        parts = [self.mode, f"k{self.top_k}" if self.top_k else "", self.balance or ""]
        return "-".join(part for part in parts if part)


def run_task(lm: Any, task: ConfigurableTask, limit: int | None, seed: int = 0) -> dict[str, Any]:
    """Evaluate one task and keep every item's scores and exposure to the gate.

    Args:
        lm: the model under one routing, a `FocusLM`.
        task: from `load_task`.
        limit: number of first items; None for all.
        seed: of few-shot sampling.

    Returns:
        `metrics` (means over items), `exposure` (means over items), `items`, `num_fewshot`.
    """
    name = task.task_name
    lm.exposures.clear()
    found: Any = simple_evaluate(
        lm,
        tasks=[task],
        limit=limit,
        bootstrap_iters=0,
        log_samples=True,
        task_manager=TaskManager(include_defaults=False),
        fewshot_random_seed=seed,
    )
    assert found is not None  # only processes other than the first get nothing
    items: dict[int, dict[str, Any]] = {}
    samples: Any = found["samples"]
    for sample in samples[name]:
        item = items.setdefault(sample["doc_id"], _item(sample, lm.exposures[sample["arguments"][0][0]], task))
        for metric in sample["metrics"]:
            key = metric if sample["filter"] == "none" else f"{metric},{sample['filter']}"
            item["scores"]["log_likelihood" if metric == "perplexity" else key] = float(sample[metric])
    rows = list(items.values())
    means = {metric: float(np.mean([row["scores"][metric] for row in rows])) for metric in rows[0]["scores"]}
    if "log_likelihood" in means:
        means["perplexity"] = float(np.exp(-means["log_likelihood"]))
    shares = {key: float(np.mean([row[key] for row in rows])) for key in ("tokens", "distant_share", "removed_share")}
    return {
        "task": name,
        "headline": headline(name),
        "items_scored": len(rows),
        "num_fewshot": task.config.num_fewshot or 0,
        "metrics": means,
        "exposure": {**shares, "longest": max(row["tokens"] for row in rows)},
        "items": rows,
    }


def _item(sample: dict[str, Any], pairs: Exposure, task: ConfigurableTask) -> dict[str, Any]:
    item: dict[str, Any] = {"doc_id": sample["doc_id"], "doc_hash": sample["doc_hash"], "scores": {}}
    if task.OUTPUT_TYPE == "multiple_choice":
        # The log-probability of the right choice among the choices changes where accuracy is too coarse.
        scores = np.array([float(answer[0]) for answer in sample["filtered_resps"]])
        item["scores"]["gold_log_probability"] = float(log_softmax(scores)[int(sample["target"])])
        item["chosen"] = int(scores.argmax())
    if "depth" in sample["doc"]:
        item["depth"] = sample["doc"]["depth"]
    shares = {"distant_share": pairs.distant_share, "removed_share": pairs.removed_share}
    return {**item, "tokens": pairs.tokens, **shares}


def compare(untouched: dict[str, Any], routed: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Routed minus untouched for every metric, paired over items.

    Args:
        untouched: from `run_task`.
        routed: of the same items.

    Returns:
        Per metric: as `paired_difference`.

    Raises:
        FocusError: not the same items.
    """
    if [row["doc_hash"] for row in untouched["items"]] != [row["doc_hash"] for row in routed["items"]]:
        raise FocusError(f"The two results of {untouched['task']} are over different items: run both again.")
    found = {}
    for metric in untouched["items"][0]["scores"]:
        one, two = (np.array([row["scores"][metric] for row in result["items"]]) for result in (untouched, routed))
        found[metric] = paired_difference(two - one)
    return found


def paired_difference(differences: np.ndarray) -> dict[str, Any]:
    """Mean of per-item differences with its 95% interval by Student's t.

    Args:
        differences: (N,), one for each item.

    Returns:
        `difference`; `low` and `high`, None for one item; `established`, see `evaluation.compare.Difference`;
        and `changed`, the share of items that differ by more than 1e-6.
    """
    return {**mean_difference(differences).to_dict(), "changed": float((np.abs(differences) > 1e-6).mean())}


def reading(result: dict[str, Any], setting: Setting) -> str:
    """One sentence on the meaning of the score, given its exposure."""
    shares = result["exposure"]
    if setting.mode == "off":
        return "untouched"
    if shares["distant_share"] == 0:
        return "equal by construction: no item is longer than the window"
    if setting.mode == "soft":
        return f"the gate weighs {shares['distant_share']:.0%} of the pairs"
    return f"{shares['removed_share']:.0%} of the pairs are removed"


def summary(results: dict[str, dict[str, dict[str, Any]]], settings: Sequence[Setting]) -> list[dict]:
    """Rows of the table: per task and setting the metrics, exposure, and differences from the first setting.

    Args:
        results: by task, then by name of the setting.
        settings: the others are compared with the first.
    """
    rows = []
    for task, found in results.items():
        for setting in settings:
            result = found[setting.name]
            row = {key: result[key] for key in ("headline", "items_scored", "num_fewshot", "metrics", "exposure")}
            row |= {"task": task, "setting": setting.name, **asdict(setting), "reading": reading(result, setting)}
            if setting is not settings[0]:
                row["differences"] = compare(found[settings[0].name], result)
                if "chosen" in result["items"][0]:
                    pairs = zip(found[settings[0].name]["items"], result["items"])
                    row["same_choice"] = float(np.mean([one["chosen"] == two["chosen"] for one, two in pairs]))
            if "depth" in result["items"][0]:
                depths = sorted({item["depth"] for item in result["items"]})
                row["by_depth"] = {
                    str(depth): float(np.mean([i["scores"]["acc"] for i in result["items"] if i["depth"] == depth]))
                    for depth in depths
                }
            rows.append(row)
    return rows

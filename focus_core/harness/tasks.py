"""Benchmark tasks of the harness, from the hub or from local files, and versions with items beyond the window.

Prompts, choices and metrics are the harness's own YAML; local rows are only renamed to the hub's columns. Where a data
set has no training split, its last rows are few-shot examples and never evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lm_eval
from datasets import Dataset
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import load_yaml  # TaskManager reads all 14,000 YAML files to find one

from focus_core.errors import FocusError
from focus_core.harness.retrieval import Row, cut, retrieval, retrieval_of
from focus_core.io.reading import parse_json, read_bytes

LONG, AFTER = "_long", "_after_"


@dataclass(frozen=True)
class Source:
    """Definition and data of a task.

    Attributes:
        yaml: the harness's definition.
        file: its local rows.
        columns: maps a local row to the hub's columns.
        changes: settings of the harness to change for local rows.
    """

    yaml: str
    file: str
    columns: Callable[[Row], Row]
    changes: Mapping[str, Any]


def _arc(row: Row) -> Row:
    letters = [chr(ord("A") + index) for index in range(len(row["choices"]))]
    choices = {"text": row["choices"], "label": letters}
    question = row["query"].removeprefix("Question: ").strip()
    return {"question": question, "choices": choices, "answerKey": letters[row["gold"]]}


def _piqa(row: Row) -> Row:
    first, second = row["choices"]
    return {
        "goal": row["query"].removeprefix("Question: ").strip(),
        "sol1": first,
        "sol2": second,
        "label": row["gold"],
    }


def _hellaswag(row: Row) -> Row:
    return {"query": row["centerpiece"], "choices": row["options"], "label": row["correct_options_idx"][0]}


def _truthfulqa(row: Row) -> Row:
    gold = row["correct_options_idx"][0]
    choices = [row["options"][gold], *(text for index, text in enumerate(row["options"]) if index != gold)]
    return {"question": row["centerpiece"], "mc1_targets": {"choices": choices}}


SOURCES = {
    "truthfulqa_mc1": Source("truthfulqa/truthfulqa_mc1.yaml", "truthfulqa_mc1.json", _truthfulqa, {}),
    "arc_easy": Source("arc/arc_easy.yaml", "arc_easy.jsonl", _arc, {}),
    "piqa": Source("piqa/piqa.yaml", "piqa.jsonl", _piqa, {}),
    "lambada_openai": Source(
        "lambada/lambada_openai.yaml",
        "lambada_openai.jsonl",
        lambda row: {"text": f"{row['context']} {row['continuation']}"},
        {},
    ),
    # These rows are already in the harness's processed form, without the activity label in front.
    "hellaswag": Source("hellaswag/hellaswag.yaml", "hellaswag_dev.json", _hellaswag, {"process_docs": None}),
    "gsm8k": Source(
        "gsm8k/gsm8k.yaml",
        "gsm8k.jsonl",
        lambda row: {"question": row["context"], "answer": f"{row['chain_of_thought']}\n#### {row['answer']}"},
        {},
    ),
}
"""Tasks by the harness's name."""

METRIC = {
    "truthfulqa_mc1": "acc",
    "lambada_openai": "acc",
    "gsm8k": "exact_match,flexible-extract",
    "needle": "acc",
    "pairs": "acc",
}
"""The metric to quote of each task; acc_norm for the others, as published."""


def base_name(name: str) -> str:
    """The task that a long version was made from: "lambada_openai_after_2048" to "lambada_openai"."""
    return retrieval_of(name) or name.partition(AFTER)[0].removesuffix(LONG)


def headline(name: str) -> str:
    """Name of the metric to quote for a task."""
    return METRIC.get(base_name(name), "acc_norm")


def check_task(name: str) -> None:
    """Refuse a task that does not exist, by its name alone.

    Raises:
        FocusError: there is no such task.
    """
    kind = retrieval_of(name)
    base, after, digits = name.partition(AFTER) if kind is None else (kind, "_", name.partition("_")[2])
    known = kind is not None or base.removesuffix(LONG) in SOURCES
    if known and after and not (digits.isascii() and digits.isdecimal() and 0 < int(digits[:10]) < 10**9):
        raise FocusError(f"{name!r} names no number of tokens, from 1 on: write it as {base}{after}1024.")
    if not known:
        raise FocusError(
            f"There is no task {name!r}: choose {', '.join(SOURCES)}; any of them with {LONG}, NAME{AFTER}2048, "
            "needle_1024 or pairs_1024."
        )


def load_task(
    name: str, tokenizer: Any, *, data: Path | None, filler: str, long_tokens: int = 1024, seed: int = 0
) -> ConfigurableTask:
    """One task, ready for the harness.

    Args:
        name: one of `SOURCES`. With "_long" after it, few-shot examples fill `long_tokens` tokens.
            "lambada_openai_after_N" puts N tokens of other text before every passage. "needle_N" hides a sentence in N
            tokens, and "pairs_N" asks for one of the numbers of N tokens of things and numbers.
        tokenizer: counts the tokens.
        data: folder with the local files; None for the hub.
        filler: text put before passages and around needles.
        long_tokens: length of the few-shot prompts of long versions.
        seed: of needles and pairs.

    Raises:
        FocusError: an unknown task, a missing or unreadable file, or too little filler.
    """
    check_task(name)
    if retrieval_of(name) is not None:
        return ConfigurableTask(config=retrieval(name, tokenizer, filler, seed))
    base, _, distance = name.partition(AFTER)
    long = base.endswith(LONG)
    base = base.removesuffix(LONG)
    source = SOURCES[base]
    config: dict[str, Any] = dict(load_yaml(Path(lm_eval.__file__).parent / "tasks" / source.yaml, resolve_func=True))
    for key in ("tag", "group"):
        config.pop(key, None)
    config["task"] = name
    if data is not None:
        config |= {**source.changes, **_local(base, source, data)}
    if long:
        config |= _few_shot(base, config, tokenizer, long_tokens)
    if distance:
        text = cut(filler, tokenizer, int(distance))
        config["description"] = "{% raw %}" + text + "{% endraw %}\n\n"
    return ConfigurableTask(config=config)


def task_files(name: str, data: Path | None) -> list[Path]:
    """The local file of a task; none from the hub, and where there is none yet."""
    source = SOURCES.get(base_name(name))
    path = None if source is None or data is None else data / source.file
    return [path] if path is not None and path.is_file() else []


def _local(base: str, source: Source, data: Path) -> dict[str, Any]:
    path = data / source.file
    if not path.is_file():
        raise FocusError(f"{data} has no {source.file}, which the task {base} needs: add it, or use --hub.")
    try:
        lines = read_bytes(path).decode("utf-8").splitlines()
        rows = [source.columns(parse_json(line, str(path))) for line in lines if line]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise FocusError(f"{path} is not in the format of {base}: every line is one JSON object.") from error
    held = min(200, len(rows) // 4)
    splits = {"test": Dataset.from_list(rows[: len(rows) - held]), "train": Dataset.from_list(rows[len(rows) - held :])}
    few_shot: dict[str, Any] = {"split": "train", "sampler": "first_n"}  # one prompt for all items
    if base == "truthfulqa_mc1":  # its examples have no prompt: the six fixed questions come once, with the item
        few_shot["doc_to_text"] = "Q: {{question}}\nA:"
    return {
        "custom_dataset": lambda **_: splits,
        "dataset_path": None,
        "dataset_name": None,
        "training_split": "train",
        "fewshot_split": "train",
        "validation_split": None,
        "test_split": "test",
        "fewshot_config": few_shot,
    }


def _few_shot(base: str, config: dict[str, Any], tokenizer: Any, long_tokens: int) -> dict[str, Any]:
    """As many examples as fit into `long_tokens`."""
    if config.get("training_split") is None:
        raise FocusError(f"{base} has no training split on the hub: give local files with --data for its long version.")
    sampler = {"fewshot_config": {"split": "train", "sampler": "first_n", **(config.get("fewshot_config") or {})}}
    probe = ConfigurableTask(config={**config, **sampler, "num_fewshot": 1})
    doc: Any = next(iter(probe.eval_docs))
    few, most = 1, len(list(probe.fewshot_docs()))
    while few < most and len(tokenizer(probe.fewshot_context(doc, few + 1), verbose=False)["input_ids"]) <= long_tokens:
        few += 1
    return {**sampler, "num_fewshot": few}

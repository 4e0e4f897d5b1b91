"""Low-rank adapters trained on the same text and steps as routers.

Adapters are on the query, key and value projections, as in the published comparison: on GPT-2 at rank 4 that gives its
147K parameters. Transformers' Trainer trains PEFT's model (https://huggingface.co/docs/peft).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from torch.utils.data import IterableDataset
from transformers import PreTrainedModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from focus_core.errors import FocusError
from focus_core.io.files import to_json, write_atomic
from focus_core.io.reading import read_json
from focus_core.io.schema import array, number

ADAPTER, LOSSES = "adapter", "losses.json"
PROJECTIONS = ({"q_proj", "k_proj", "v_proj"}, {"qkv_proj"}, {"query_key_value"}, {"c_attn"})
"""Names of the query, key and value projections in the families of Transformers; the first set found is used."""


@dataclass(frozen=True)
class LoraSettings:
    """One cell of the comparison.

    Attributes:
        rank: r of the adapters; their scale is 2 (alpha = 2r).
        learning_rate: peak rate; linear warm-up over 5% of the steps, then cosine to 10%.
        steps: optimiser steps.
        batch_size: blocks per step.
        seed: of adapters and order of text.
        save_every: steps between checkpoints, from which a stopped run resumes.
    """

    rank: int
    learning_rate: float
    steps: int = 200
    batch_size: int = 2
    seed: int = 0
    save_every: int = 25

    @property
    def name(self) -> str:
        """Name of the cell, such as "r4-lr1e-05"."""
        return f"r{self.rank}-lr{self.learning_rate:g}"


def target_modules(model: nn.Module) -> list[str]:
    """Names of the modules that get adapters.

    Raises:
        FocusError: a model without known query, key and value projections.
    """
    leaves = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    for names in PROJECTIONS:
        if names <= leaves:
            return sorted(names)
    raise FocusError(f"{type(model).__name__} has no query, key and value projections that LoRA knows: choose another.")


def train_lora(
    model: PreTrainedModel,
    stream: IterableDataset[dict[str, Tensor]],
    settings: LoraSettings,
    folder: Path,
    *,
    on_step: Callable[[int, float], None] | None = None,
) -> tuple[PeftModel, list[float]]:
    """Train adapters on the language-model loss; a stopped run resumes, and a finished one is read from its folder.

    Args:
        model: a decoder without routers. Its projections are replaced by PEFT's; its weights do not change.
        stream: blocks of tokens, each with its `input_ids`.
        settings: see `LoraSettings`.
        folder: for checkpoints and, at the end, the adapter (safetensors) and its losses.
        on_step: called with the step and its loss.

    Returns:
        The model with adapters, in eval mode, and the loss of every step in nats.

    Raises:
        FocusError: no projections to adapt, or no text.
    """
    if (folder / LOSSES).is_file():
        stored = PeftModel.from_pretrained(model, str(folder / ADAPTER), is_trainable=True)
        return stored.eval(), read_json(folder / LOSSES, array(number()))
    torch.manual_seed(settings.seed)
    adapted = get_peft_model(
        model,
        LoraConfig(
            r=settings.rank,
            lora_alpha=2 * settings.rank,
            lora_dropout=0.0,
            target_modules=target_modules(model),
            task_type="CAUSAL_LM",
        ),
    )
    on_cpu = not torch.cuda.is_available()
    arguments = TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        max_steps=settings.steps,
        per_device_train_batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": 0.1},
        warmup_steps=max(1, settings.steps // 20),
        weight_decay=0.0,
        max_grad_norm=1.0,
        seed=settings.seed,
        use_cpu=on_cpu,
        bf16=on_cpu or torch.cuda.is_bf16_supported(),  # as routers are trained; weights stay float32
        dataloader_pin_memory=not on_cpu,
        remove_unused_columns=False,
        logging_steps=1,
        save_steps=settings.save_every,
        save_total_limit=1,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=adapted,  # type: ignore[arg-type]
        args=arguments,
        train_dataset=stream,
        data_collator=_with_labels,
        callbacks=[_Steps(on_step)],
    )
    trainer.remove_callback(PrinterCallback)
    checkpoints = folder / "checkpoints"
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(checkpoints)) if checkpoints.is_dir() else None)
    adapted.save_pretrained(str(folder / ADAPTER))
    losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    write_atomic(folder / LOSSES, to_json(losses) + "\n")
    return adapted.eval(), losses  # type: ignore[return-value]


def _with_labels(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    input_ids = torch.stack([row["input_ids"] for row in rows])
    return {"input_ids": input_ids, "labels": input_ids.clone()}


class _Steps(TrainerCallback):
    """Calls a function with every step's loss."""

    def __init__(self, on_step: Callable[[int, float], None] | None) -> None:
        self.on_step = on_step

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if self.on_step is not None and logs and "loss" in logs:
            self.on_step(state.global_step, float(logs["loss"]))

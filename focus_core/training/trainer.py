"""Training through Transformers' Trainer, which provides several processes, FSDP and mixed precision.

Objectives, order of blocks and saved files are those of this package. Under `torchrun` or `accelerate launch` every
process runs this and takes its part of each batch. The result equals that of one process with the same batch, to float
tolerance.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from focus_core.errors import FocusError
from focus_core.io.reading import read_tensors, regular
from focus_core.routing.model import FocusModel
from focus_core.routing.storage import whole
from focus_core.training.calibrate import calibrate
from focus_core.training.checkpoints import CHECKPOINTS, checkpoint_to_resume, phase_key
from focus_core.training.loop import Step, check_moments
from focus_core.training.modes import Phase, TrainingTask
from focus_core.training.objectives import OBJECTIVES
from focus_core.training.parallel.processes import world_size
from focus_core.training.parallel.sharding import load_shards, save_shards, shard
from focus_core.training.stream import TokenStream

_BASE, _ROUTERS = "base.safetensors", "routers.safetensors"
_TRAINER_FILES = ("optimizer.pt", "scheduler.pt")
_CALIBRATION_BLOCKS = 16


@dataclass(frozen=True)
class TrainerSettings:
    """Settings of training through Trainer.

    Attributes:
        batch_size: blocks per optimiser step, over all processes.
        micro_batch: blocks per process and forward pass, with gradients accumulated; None for one pass per step.
        learning_rate: peak rate of the routers. AdamW, linear warm-up over 5% of the steps, cosine to 10%.
        base_learning_rate: peak rate of the base model's weights where these are trained.
        weight_decay: of AdamW on the base model's matrices.
        seed: of block order and dropout.
        save_every: steps between checkpoints.
        precision: "fp32" or "bf16" (autocast; master weights stay as they are).
    """

    batch_size: int = 8
    micro_batch: int | None = None
    learning_rate: float = 0.01
    base_learning_rate: float = 1e-5
    weight_decay: float = 0.0
    seed: int = 0
    save_every: int = 100
    precision: str = "fp32"

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.save_every < 1 or (self.micro_batch is not None and self.micro_batch < 1):
            raise FocusError("Batch sizes and the checkpoint interval must be at least 1.")
        if not (0 < self.learning_rate < math.inf and 0 < self.base_learning_rate < math.inf):
            raise FocusError("Learning rates must be greater than 0, and finite.")
        if self.precision not in ("fp32", "bf16"):
            raise FocusError(f"precision is {self.precision!r}: choose fp32 or bf16.")


def training_arguments(
    phase: Phase, settings: TrainerSettings, folder: Path, *, sharded: bool = False
) -> TrainingArguments:
    """Trainer's arguments for one phase. Creating them joins the other processes.

    Raises:
        FocusError: a batch that the processes cannot share evenly.
    """
    share, left = divmod(settings.batch_size, world_size())
    micro = settings.micro_batch or share
    if left or not share or share % micro:
        raise FocusError(
            f"A batch of {settings.batch_size} blocks cannot be shared by {world_size()} processes in passes of "
            f"{micro or 1}: choose a batch size that is a multiple of both."
        )
    on_cpu = not torch.cuda.is_available()
    return TrainingArguments(
        output_dir=str(folder / CHECKPOINTS / phase.name),
        max_steps=phase.steps,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=share // micro,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": 0.1},
        warmup_steps=max(1, phase.steps // 20),
        weight_decay=settings.weight_decay,
        max_grad_norm=1.0,
        seed=settings.seed,
        bf16=settings.precision == "bf16",
        use_cpu=on_cpu,
        ddp_backend="gloo" if on_cpu and world_size() > 1 else None,
        ddp_find_unused_parameters=False,
        # Every process reads the same stream and keeps its part of each batch.
        accelerator_config={"dispatch_batches": False, "split_batches": False},
        dataloader_pin_memory=not on_cpu,
        remove_unused_columns=False,
        logging_steps=1,
        save_steps=settings.save_every,
        save_total_limit=1,
        save_only_model=sharded,  # the optimizer's part is in the model's checkpoint then
        report_to=[],
        disable_tqdm=True,
        logging_nan_inf_filter=False,
    )


class FocusTrainer(Trainer):
    """A Trainer with one of this package's objectives as loss; its checkpoints hold the trained weights alone.

    Args:
        task: model, objective, and the choice to train the base.
        settings: see `TrainerSettings`.
        sharded: whether the weights are divided among the processes, and checkpoints are for any number of them.
        kwargs: Trainer's own.

    Raises:
        FocusError: Accelerate is configured to shard as well, or this version of Transformers cannot.
    """

    def __init__(self, task: TrainingTask, settings: TrainerSettings, *, sharded: bool = False, **kwargs: Any) -> None:
        super().__init__(model=task, **kwargs)
        if self.is_fsdp_enabled:
            raise FocusError("Sharding is asked for with --shard: launch without an FSDP configuration of Accelerate.")
        if sharded and not hasattr(self, "is_distributed_loading_by_transformers"):
            raise FocusError("This version of Transformers cannot train a sharded model: install 5.23 or a newer one.")
        self.task = task
        self.settings = settings
        self.sharded = sharded
        self.loss_is_scaled_for_ga = False  # each loss is the mean of its own blocks

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The task's loss; `model` is the task as DDP or FSDP wrapped it."""
        loss = model(**inputs)["loss"]
        return (loss, {}) if return_outputs else loss

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """AdamW with one rate for routers and one for the base model, matrices of the latter with weight decay."""
        if self.optimizer is None:
            task: Any = model if model is not None else self.task
            base = [parameter for parameter in task.focus.model.parameters() if parameter.requires_grad]
            matrices = [parameter for parameter in base if parameter.ndim > 1]
            vectors = [parameter for parameter in base if parameter.ndim <= 1]
            rate, decay = self.settings.base_learning_rate, self.settings.weight_decay
            groups = [
                {
                    "params": list(task.focus.routers.parameters()),
                    "lr": self.settings.learning_rate,
                    "weight_decay": 0.0,
                },
                {"params": matrices, "lr": rate, "weight_decay": decay},
                {"params": vectors, "lr": rate, "weight_decay": 0.0},
            ]
            self.optimizer = torch.optim.AdamW([group for group in groups if group["params"]], betas=(0.9, 0.95))
        return self.optimizer

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        if self.sharded:
            save_shards(Path(output_dir or str(self.args.output_dir)), self.task, self.optimizer)
            return
        if not self.args.should_save:
            return
        folder = Path(output_dir or str(self.args.output_dir))
        folder.mkdir(parents=True, exist_ok=True)
        save_file(_plain(self.task.focus.routers.state_dict()), folder / _ROUTERS)
        if self.task.everything:
            save_file(_plain(dict(self.task.focus.model.named_parameters())), folder / _BASE)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        if self.sharded:
            load_shards(Path(resume_from_checkpoint), self.task)
            return
        folder = Path(resume_from_checkpoint)
        try:
            self.task.focus.routers.load_state_dict(read_tensors(folder / _ROUTERS)[1])
            if self.task.everything:
                base = read_tensors(folder / _BASE)[1]
                self.task.focus.model.load_state_dict(base, strict=False)  # buffers are not saved
        except (RuntimeError, ValueError, OSError) as error:
            raise FocusError(f"{folder} is damaged: delete it to train from the start.") from error

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        if self.sharded:
            load_shards(Path(checkpoint), self.task, self.optimizer)
            self._catch_up(int(Path(checkpoint).name.rpartition("-")[2]))
            return
        try:
            for name in _TRAINER_FILES:  # Trainer itself would begin anew without them
                regular(Path(checkpoint) / name)
            super()._load_optimizer_and_scheduler(checkpoint)
            optimizer: Any = self.optimizer
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            state = {index: optimizer.state[each] for index, each in enumerate(parameters) if each in optimizer.state}
            check_moments(state, parameters)
        except (RuntimeError, ValueError, LookupError, TypeError, AttributeError, OSError, UnpicklingError) as error:
            raise FocusError(f"{checkpoint} is damaged: delete it to train from the start.") from error

    def _catch_up(self, steps: int) -> None:
        """Step the schedule of learning rates, a function of the step alone, to where a checkpoint was written."""
        schedule: Any = self.lr_scheduler
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a schedule that steps before its optimizer
            for _ in range(steps):
                schedule.scheduler.step() if hasattr(schedule, "scheduler") else schedule.step()


def _plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


class _Reporter(TrainerCallback):
    """Reports each step, and stops the run at a loss that is not finite."""

    def __init__(self, task: TrainingTask, tokens: int, on_step: Callable[[Step], None]) -> None:
        self.task, self.tokens, self.on_step = task, tokens, on_step
        self.started = time.perf_counter()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.started = time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not logs or "loss" not in logs:
            return
        loss = float(logs["loss"])
        if not math.isfinite(loss):
            raise FocusError(f"The loss became {loss} at step {state.global_step}: use a lower learning rate.")
        if state.is_world_process_zero:
            seconds = max(time.perf_counter() - self.started, 1e-9)
            self.on_step(Step(state.global_step, loss, self.task.largest_group_share, self.tokens / seconds))


def train_phase(
    focus: FocusModel,
    stream: TokenStream,
    phase: Phase,
    settings: TrainerSettings,
    folder: Path,
    on_step: Callable[[Step], None] = lambda step: None,
    *,
    sharded: bool = False,
) -> FocusTrainer:
    """Train one phase, resuming from its last checkpoint, and calibrate the routers' potentials.

    Args:
        focus: model with routers, changed in place; its base only if the phase trains everything.
        stream: training blocks.
        phase: the trained weights, the objective and the number of steps.
        settings: see `TrainerSettings`.
        folder: of the run; checkpoints go to a folder inside it.
        on_step: called after every step, in the main process.
        sharded: divide the weights among the processes, which ends the use of `focus` without them.

    Returns:
        The trainer, which holds the sharded model.

    Raises:
        FocusError: a checkpoint of other settings, a batch that cannot be shared, a loss that is not finite.
    """
    arguments = training_arguments(phase, settings, folder, sharded=sharded)
    checkpoints = Path(str(arguments.output_dir))
    key = phase_key(focus, stream, phase, settings, sharded=sharded)
    task = TrainingTask(focus, OBJECTIVES[phase.objective].loss, everything=phase.everything)
    if sharded:
        shard(task)
    trainer = FocusTrainer(task, settings, sharded=sharded, args=arguments, train_dataset=stream)
    tokens = settings.batch_size * stream.length
    trainer.add_callback(_Reporter(task, tokens, on_step))
    trainer.remove_callback(PrinterCallback)
    resume = checkpoint_to_resume(checkpoints, key)
    # In force for the whole phase, so that layers recomputed during the backward pass are routed alike.
    with focus.routing("soft", balance="sequence"):
        trainer.train(resume_from_checkpoint=resume)
    _calibrate(trainer, stream)
    focus.trained = True
    return trainer


def _calibrate(trainer: FocusTrainer, stream: TokenStream) -> None:
    """Estimate potentials through the wrapped module, so that sharded weights are gathered layer by layer."""
    task = trainer.task
    wrapped: Any = trainer.model_wrapped
    objective = task.objective
    blocks = stream.sample(_CALIBRATION_BLOCKS)

    def solve(focus: FocusModel, input_ids: Tensor) -> Tensor:
        # Hard routing refuses the mixed dtypes of autocast, which Trainer wraps around the forward.
        with torch.autocast(input_ids.device.type, enabled=False):
            calibrate(focus, input_ids)
        return torch.zeros((), device=input_ids.device)

    wrapped.eval()
    task.objective = solve
    try:
        with torch.no_grad():
            wrapped(input_ids=blocks.to(trainer.args.device))
    finally:
        task.objective = objective


def save(trainer: FocusTrainer, folder: Path, tokenizer: Any = None) -> None:
    """Write the routers, and the whole model where it was trained; all processes call this, one writes.

    `load_model(folder)` and `FocusModel.from_pretrained(model, folder)` load the trained model and routers. After
    centroid-only training the folder holds the routers alone.
    """
    focus = trainer.task.focus
    main = trainer.is_world_process_zero()
    if trainer.task.everything:
        state = {name: whole(tensor).detach().cpu() for name, tensor in focus.model.state_dict().items()}
        if main:
            focus.model.save_pretrained(folder, state_dict=state)
            if tokenizer is not None:
                tokenizer.save_pretrained(folder)
    focus.save_pretrained(folder, write=main)

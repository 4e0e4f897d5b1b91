"""The LoRA comparison: every cell trained, measured and stored, so that a stopped run resumes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from focus_core.evaluation.compare import perplexity_difference
from focus_core.evaluation.perplexity import evaluate
from focus_core.harness.model import FocusLM
from focus_core.harness.scores import compare, run_task
from focus_core.harness.tasks import load_task
from focus_core.models import LoadedModel
from focus_core.progress import Progress, silent
from focus_core.reproduce.studies.lora import LoraSettings, train_lora
from focus_core.results import stored_or_run
from focus_core.routing.model import retrofit
from focus_core.training.stream import TokenStream

SCHEMA = "focus-lora-cell/1"


@dataclass(frozen=True)
class Yardstick:
    """Text and tasks that measure every model of the comparison.

    Attributes:
        blocks: (N, T) int64 held-out tokens.
        tasks: names for `load_task`.
        data: folder with the task files.
        limit: items per task, None for all; or of each task by name.
        filler: text for long versions of tasks.
        seed: of few-shot sampling.
    """

    blocks: np.ndarray
    tasks: Iterable[str]
    data: Path | None
    limit: int | Mapping[str, int] | None
    filler: str
    seed: int = 0

    def measure(self, loaded: LoadedModel) -> dict[str, Any]:
        """Perplexity and benchmark results of a model without routers."""
        focus = retrofit(loaded.model, seed=0)
        try:
            row = evaluate(focus, self.blocks, routing="off", batch_size=2)
            lm = FocusLM(focus, tokenizer=loaded.tokenizer, mode="off")
            found = {}
            for name in self.tasks:
                task = load_task(name, loaded.tokenizer, data=self.data, filler=self.filler, seed=self.seed)
                limit = self.limit[name] if isinstance(self.limit, Mapping) else self.limit
                found[name] = run_task(lm, task, limit, self.seed)
        finally:
            focus.detach()
        return {"perplexity": row.perplexity, "block_nll": row.block_nll, "tokens": row.tokens, "benchmarks": found}


def run_grid(
    load: Callable[[], LoadedModel],
    stream: Callable[[], TokenStream],
    cells: Sequence[LoraSettings],
    yardstick: Yardstick,
    common: dict[str, Any],
    out: Path,
    *,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Train and measure every cell that is not stored yet.

    Args:
        load: loads a new model; adapters are merged into its weights.
        stream: starts the training text, the same for every cell.
        cells: ranks and learning rates.
        yardstick: text and tasks to measure.
        common: settings stored with every cell; a stored cell of other settings is refused.
        out: folder of the run.
        progress: told the cell, step and loss.

    Returns:
        `untouched`, and `results` with one row per cell: parameters, first and last loss, perplexity and scores with
        paired differences from the untouched model.

    Raises:
        FocusError: a folder of other settings; otherwise as `train_lora` and `load_task`.
    """

    def run(cell: LoraSettings, done: float) -> dict[str, Any]:
        loaded = load()

        def show(step: int, loss: float) -> None:
            progress(f"LoRA {cell.name}, step {step} of {cell.steps}, loss {loss:.3f}", done)

        adapted, losses = train_lora(loaded.model, stream(), cell, out / cell.name, on_step=show)
        trained = sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)
        progress(f"LoRA {cell.name}, measuring", done)
        merged: Any = adapted.merge_and_unload()  # type: ignore[operator]
        found = yardstick.measure(loaded._replace(model=merged))
        return {"trainable_parameters": trained, "losses": losses, **found}

    progress("Measuring the untouched model", 0.0)
    untouched = stored_or_run(out / "untouched.json", common, lambda: yardstick.measure(load()), schema=SCHEMA)
    rows = []
    for index, cell in enumerate(cells):
        done = index / len(cells)
        identity = {**common, "cell": asdict(cell)}
        path = out / f"{cell.name}.json"
        found = stored_or_run(path, identity, lambda cell=cell, done=done: run(cell, done), schema=SCHEMA)
        rows.append(_row(cell, found, untouched, yardstick))
    scores = {name: untouched["benchmarks"][name]["metrics"] for name in yardstick.tasks}
    return {"untouched": {"perplexity": untouched["perplexity"], "benchmarks": scores}, "results": rows}


def _row(cell: LoraSettings, found: dict[str, Any], untouched: dict[str, Any], yardstick: Yardstick) -> dict[str, Any]:
    benchmarks = {}
    for name in yardstick.tasks:
        result = found["benchmarks"][name]
        benchmarks[name] = {key: result[key] for key in ("metrics", "headline", "items_scored")}
        benchmarks[name]["differences"] = compare(untouched["benchmarks"][name], result)
    return {
        **asdict(cell),
        "name": cell.name,
        "trainable_parameters": found["trainable_parameters"],
        "first_loss": found["losses"][0],
        "final_loss": found["losses"][-1],
        "perplexity": found["perplexity"],
        "perplexity_difference": perplexity_difference(found["block_nll"], untouched["block_nll"], seed=yardstick.seed),
        "benchmarks": benchmarks,
    }

"""The experiments by name. A new one is a function that lists cells, one that measures a cell, and an entry here."""

from __future__ import annotations

from focus_core.reproduce.context import Scale
from focus_core.reproduce.experiments import adapted, adapters, collapse, machine, recipes, retrofits, texts
from focus_core.reproduce.runner import MOST_MODELS, Experiment

TEXT = ("held_out", "length", "blocks")
"""Options of experiments that measure text."""
TRAINED = ("data", *TEXT, "steps", "batch_size", "window")
"""Options of experiments that also train."""
ROUTED = ("data", *TEXT, "routers")

EXPERIMENTS: dict[str, Experiment] = {
    "retrofit": Experiment(
        "Retrofit of a frozen model: untouched, untrained, published recipe, ours",
        retrofits.retrofit_cells,
        retrofits.run_retrofit,
        retrofits.COLUMNS,
        Scale(steps=60, length=256, window=32),
        options=TRAINED,
        needs=("data",),
    ),
    "scale": Experiment(
        "The published recipe on models of several sizes and designs (repeat --model)",
        retrofits.scale_cells,
        retrofits.run_scale,
        ("model_name", "revision", "parameters", *retrofits.COLUMNS),
        Scale(steps=60, length=256, window=32),
        options=TRAINED,
        most_models=MOST_MODELS,
        needs=("data",),
    ),
    "lora": Experiment(
        "Routers beside LoRA of two ranks, each method at its best learning rate",
        adapters.lora_cells,
        adapters.run,
        adapters.TUNED_COLUMNS,
        Scale(steps=20, length=256, window=32, limit=3),
        options=(*TRAINED, "bench", "limit", "tasks", "ranks", "rates", "choose"),
        beside={"limit": "bench", "tasks": "bench"},
        needs=("data",),
    ),
    "adapted": Experiment(
        "Routers and baselines beside the model adapted to the same text with full attention",
        adapted.cells,
        adapted.run,
        adapted.COLUMNS,
        Scale(steps=20, length=512, window=128, blocks=16),
        options=(*TRAINED, "routers", "rates", "choose"),
        needs=("data",),
    ),
    "alignment": Experiment(
        "TruthfulQA and HellaSwag after routers and after LoRA at three learning rates",
        adapters.alignment_cells,
        adapters.run,
        adapters.COLUMNS,
        Scale(steps=40, length=256, window=32, limit=20),
        options=(*TRAINED, "bench", "limit"),
        needs=("data", "bench"),
    ),
    "finetune": Experiment(
        "Fine-tuning of all weights with full attention and with Focus",
        retrofits.finetune_cells,
        retrofits.run_finetune,
        retrofits.COLUMNS,
        Scale(steps=40, full_steps=40, length=256, window=32),
        options=(*TRAINED, "full_steps"),
        needs=("data",),
    ),
    "domains": Experiment(
        "Perplexity of texts of different kinds, untouched and routed",
        texts.domain_cells,
        texts.run_domain,
        ("length", *retrofits.COLUMNS),
        Scale(blocks=8),
        options=(*TEXT, "routers"),
        uses_routers=True,
    ),
    "lengths": Experiment(
        "Length transfer: trained on short blocks, evaluated on long ones",
        texts.length_cells,
        texts.run_length,
        ("length", *retrofits.COLUMNS),
        Scale(length=8192, blocks=1),
        options=ROUTED,
        instead={"data": "held_out"},
        uses_routers=True,
    ),
    "speed": Experiment(
        "Sparse over full attention by number of tokens",
        machine.speed_cells,
        machine.run_speed,
        machine.SPEED_COLUMNS,
        Scale(length=16384),
        options=("length",),
        most_models=0,
    ),
    "k-sweep": Experiment(
        "Perplexity and kept pairs by number of groups a token joins",
        texts.sweep_cells,
        texts.run_sweep,
        (*retrofits.COLUMNS, "speedup_bound"),
        Scale(blocks=16),
        options=ROUTED,
        instead={"data": "held_out"},
        uses_routers=True,
    ),
    "stability": Experiment(
        "Remedies against collapse: routers alone, then all weights",
        collapse.cells,
        collapse.run,
        collapse.COLUMNS,
        Scale(steps=10, full_steps=10, length=128, window=16, batch_size=2, blocks=8),
        options=(*TRAINED, "full_steps"),
        needs=("data",),
    ),
    "ablation": Experiment(
        "One setting at a time around the default recipe",
        retrofits.ablation_cells,
        retrofits.run_ablation,
        retrofits.COLUMNS,
        Scale(steps=10, length=128, window=16, batch_size=2, blocks=16),
        options=TRAINED,
        needs=("data",),
    ),
    "recipes": Experiment(
        "Changes of the recipe, compared at the same kept share",
        recipes.cells,
        recipes.run,
        recipes.COLUMNS,
        Scale(steps=40, length=256, window=32, batch_size=2, blocks=8),
        options=TRAINED,
        needs=("data",),
        compare=recipes.compare,
    ),
    "groups": Experiment(
        "The purest group for each published category of words",
        machine.group_cells,
        machine.run_groups,
        machine.GROUP_COLUMNS,
        Scale(blocks=16),
        options=(*TEXT, "treebank", "routers"),
        instead={"held_out": "treebank", "length": "treebank"},
        needs=("treebank",),
        uses_routers=True,
    ),
}

"""The tables of records of `focus reproduce`, as Markdown; tools/reproduction_card.py puts them into pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cards import direction, interval_of, table

from focus_core.evaluation.compare import few_blocks
from focus_core.harness.tasks import headline
from focus_core.reproduce.experiments.adapters import LORA_TASKS
from focus_core.reproduce.registry import EXPERIMENTS

SHARES = ("share", "exposure", "largest", "worst", "stability", "purity", "recall", "attainable", "base_rate")
HIDDEN = (
    "top_k",
    "balance",
    "low",
    "high",
    "established",
    "causal_kept_share",
    "tokens",
    "variant",
    "number",
    "words_chosen_on",
    "against_low",
    "against_high",
    *(f"{name}_{end}" for name in ("from_full", "kl", "kl_from_full") for end in ("low", "high")),
)
FEW = 16
"""A percentile bootstrap over fewer blocks than this excludes a true zero too often."""
NAMES = {
    "against_base": "against the base recipe at 40% (95%)",
    "kept_share": "distant kept",
    "largest_group_share": "largest group",
    "difference": "minus untouched (95%)",
    "from_full": "minus full attention, same weights (95%)",
    "kl": "KL(untouched \\|\\| this), nats (95%)",
    "kl_from_full": "KL(full, same weights \\|\\| this), nats (95%)",
    "speedup_bound": "bound on the speed-up",
    "largest": "largest, probe",
    "worst": "worst layer",
}
LIKELIHOODS = ("gold_log_probability", "log_likelihood")


def cell(name: str, value: Any) -> str:
    """One value as text."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if any(word in name for word in SHARES) and isinstance(value, float):
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def setting(row: dict[str, Any]) -> str:
    """Routing, k and balance in one cell."""
    parts = [str(row["routing"]), f"k = {row['top_k']}" if row.get("top_k") else ""]
    parts.append(str(row["balance"]) if row.get("balance") not in (None, "none") else "")
    return ", ".join(part for part in parts if part)


def difference(row: dict[str, Any]) -> str:
    """A difference with its interval."""
    if row.get("difference") is None:
        return ""
    interval = "" if row.get("low") is None else f" [{row['low']:+.2f}, {row['high']:+.2f}]"
    return f"{row['difference']:+.2f}{interval}"


def against_base(row: dict[str, Any]) -> str:
    """A difference from the base recipe with its interval."""
    return f"{row['against_base']:+.2f} [{row['against_low']:+.2f}, {row['against_high']:+.2f}]"


def with_interval(name: str, form: str) -> Callable[[dict[str, Any]], str]:
    """Prints a value of a row with the ends that are named after it."""

    def text(row: dict[str, Any]) -> str:
        low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
        ends = "" if low is None else f" [{low:{form}}, {high:{form}}]"
        return f"{row[name]:{form}}{ends}"

    return text


SPECIAL: dict[str, Callable[[dict[str, Any]], str]] = {
    "routing": setting,
    "difference": difference,
    "against_base": against_base,
    "learning_rate": lambda row: f"{row['learning_rate']:g}",
    "from_full": with_interval("from_full", "+.2f"),
    "kl": with_interval("kl", ".4f"),
    "kl_from_full": with_interval("kl_from_full", ".4f"),
}
"""Columns that are printed from more than their own value, or with other digits."""


def measured_table(record: dict[str, Any]) -> str:
    """The record's rows; a perplexity never without kept share and largest group."""
    rows = record["results"]
    columns = [name for name in record["columns"] if name not in HIDDEN]
    columns = [name for name in columns if any(row.get(name) is not None for row in rows)]
    tasks = list(dict.fromkeys(task for row in rows for task in row.get("benchmarks", {})))
    lines = []
    for row in rows:
        line = [
            SPECIAL[name](row) if name in SPECIAL and row.get(name) is not None else cell(name, row.get(name))
            for name in columns
        ]
        lines.append(line + [benchmark(row, task) for task in tasks])
    titles = []
    for task in tasks:
        found = {row["benchmarks"][task].get("items_scored") for row in rows if task in row.get("benchmarks", {})}
        titles.append(f"{task} (n = {', '.join(str(n) for n in found if n is not None)})")
    return table([(NAMES.get(name) or name.replace("_", " ")) for name in columns] + titles, lines)


def scores(record: dict[str, Any]) -> str:
    """How many benchmark scores differ from the untouched model's beyond their interval, adapters and routers apart."""
    counts: dict[tuple[str, str], list[int]] = {}
    for row in record["results"]:
        kind = "hard routing" if row.get("routing") == "hard" else "LoRA"
        for found in row.get("benchmarks", {}).values():
            for name, gap in found.get("differences", {}).items():
                if name in (found["headline"], *LIKELIHOODS):
                    what = "log-likelihoods of the right answer" if name in LIKELIHOODS else "scores"
                    count = counts.setdefault((kind, what), [0, 0, 0])
                    count[0] += 1
                    count[1] += direction(gap) < 0
                    count[2] += direction(gap) > 0
    lines = [
        f"- {kind}: {low} of {every} {what} are significantly lower than untouched, {high} higher."
        for (kind, what), (every, low, high) in counts.items()
    ]
    return "\n".join(["Benchmarks, not corrected for the number of comparisons:", "", *lines]) if lines else ""


def benchmark(row: dict[str, Any], task: str) -> str:
    """A score, its difference from the untouched model, and its exposure where that was counted."""
    found = row.get("benchmarks", {}).get(task)
    if found is None:
        return ""
    if "differences" not in found:
        return f"{found['metrics'][headline(task)]:.3f}"
    gap = found["differences"][found["headline"]]
    moved = interval_of(gap) if gap["changed"] else "every item equal"
    text = f"{found['metrics'][found['headline']]:.3f} ({moved})"
    shares = found.get("exposure")
    return text if shares is None else f"{text}, {shares['removed_share']:.0%} of pairs removed"


def command(name: str, record: dict[str, Any] | None) -> str:
    """The command that measures it, with the options of the record where there is one."""
    words = ["focus reproduce", name]
    if record is None:
        words += [
            "--data books/" if "data" in EXPERIMENTS[name].needs else "",
            "--held-out book.txt" if "held_out" in EXPERIMENTS[name].options else "",
        ]
        words += ["--bench bench/" if "bench" in EXPERIMENTS[name].needs else ""]
        return " ".join(word for word in words if word)
    settings, defaults = record["settings"], vars(EXPERIMENTS[name].scale)
    words += [f"--data {text['name']}" for text in settings["data"]]
    words += [f"--held-out {text['name']}" for text in settings["held_out"]]
    words += ["--bench bench/"] * any("benchmarks" in row for row in record["results"])
    tasks = list(record["cells"].get("untouched", {}).get("tasks", ())) if name == "lora" else []
    words += [f"-t {task}" for task in tasks] if not set(tasks) <= set(LORA_TASKS) else []
    models = list(dict.fromkeys(row["model_name"] for row in record["results"] if "model_name" in row))
    words += [f"--model {model}" for model in models] if len(models) > 1 else []
    words += [
        f"--{option.replace('_', '-')} {value}"
        for option, value in settings["scale"].items()
        if value != defaults[option]
    ]
    return " ".join(words)


def differs(record: dict[str, Any]) -> str:
    """Model, data and scale."""
    settings, made = record["settings"], record["made"]
    scale = ", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in settings["scale"].items())
    texts = settings["held_out"] or settings["data"]
    seconds = record.get("seconds", {})
    whole = set(seconds) >= set(record["dates"])  # cells of an older version were not timed
    took = f" It took {sum(seconds.values()) / 60:.0f} minutes." if whole else ""
    return (
        f"{record['model']['name']} (revision {record['model']['revision']}), "
        f"measured on {', '.join(text['name'] for text in texts) or 'the sample texts'}"
        + (f", trained on {len(settings['data'])} books" if settings["data"] else "")
        + f". Scale: {scale}; seed {settings['seed']}. {made['device']}, {made['threads']} threads, torch "
        f"{made['versions']['torch']}, transformers {made['versions']['transformers']}, {made['date'][:10]}.{took}"
    )


def interval_note(record: dict[str, Any]) -> str:
    """What the intervals are worth."""
    blocks, length = record["settings"]["scale"]["blocks"], record["settings"]["scale"]["length"]
    if record["experiment"] == "lengths":
        return f"All lengths cut the same {length:,} tokens. So the intervals speak about this one stretch of text."
    if any("established" in row for row in record["results"]):
        few = few_blocks(blocks)
        return f"Intervals: 95%, Student's t over {blocks} blocks, paired with the untouched model." + (
            f" {few.capitalize()}." if few else ""
        )
    if blocks >= FEW:
        return f"Intervals: 95% percentile bootstrap over {blocks} blocks, paired with the untouched model."
    return (
        f"Intervals: 95% percentile bootstrap over {blocks} blocks, paired with the untouched model. Over so few "
        "blocks they exclude a true zero in more than 5% of cases. The rows are many and uncorrected. So a difference "
        "about as large as its interval is not established."
    )

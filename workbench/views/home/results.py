"""Results that hold and claims that do not, as sentences whose figures are read from the shipped records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from focus_core.errors import FocusError
from focus_core.frontier.kinds.means import MeanRow, mean_rows
from focus_core.io.reading import read_json
from focus_core.io.schema import table
from focus_core.resources import data_dir
from workbench.views.speed.tables import faster_from, is_faster

KINDS, MODEL, ATTENTION = "frontier-kinds", "bench-model-narrow", "bench-narrow"
OTHER_MODELS = ("frontier-qwen", "frontier-gemma")
DTYPE = "float32"  # of the attention calls that are quoted, and of the page that a link opens


@dataclass(frozen=True)
class Result:
    """One result.

    Attributes:
        figure: the number, as it is shown large; empty in the list of what does not hold.
        claim: a few words.
        detail: a sentence with what it is compared with.
        page: file of the page with its evidence, without suffix.
        query: settings in the link to it.
        record: file with the measurement, in data/results.
    """

    figure: str
    claim: str
    detail: str
    page: str
    record: str
    query: dict[str, str] = field(default_factory=dict)


def holding() -> list[Result]:
    """The results that the records support; one that they no longer support is left out."""
    return [found for make in (_close, _decoding, _attention) if (found := _made(make)) is not None]


def failing() -> list[Result]:
    """What the records do not support, said as plainly."""
    others = (partial(_on_another_model, name) for name in OTHER_MODELS)
    makers = (_prefill, _closer, *others, _gain, _short, _machines)
    return [found for make in makers if (found := _made(make)) is not None]


def _made(make: Callable[[], Result | None]) -> Result | None:
    try:
        return make()
    except (OSError, FocusError, KeyError, IndexError, TypeError, ValueError, StopIteration):
        return None  # no such record here, or one of another form


def _record(name: str) -> dict[str, Any]:
    return read_json(data_dir() / "results" / f"{name}.json", table())


def _rows() -> tuple[int, list[MeanRow], MeanRow]:
    record = _record(KINDS)
    lengths = sorted({point["length"] for point in record["points"] if point["kind"] == "baseline"}, reverse=True)
    found = [(length, mean_rows(record, length)) for length in lengths]
    # The longest texts on which others are measured too, with blocks enough to establish something.
    length, rows = next((each for each in found if any(row.established for row in each[1])), found[0])
    return length, rows, next(row for row in rows if row.ours)


def _evidence(length: int, record: str = KINDS) -> dict[str, str]:
    return {"evidence": "kinds", "record": record, "kinds_length": str(length)}


def _close() -> Result | None:
    length, rows, ours = _rows()
    window = next(row for row in rows if row.kind == "baseline" and row.series.startswith("window"))
    gap = window.against
    if ours.kl is None or ours.kept_share is None or window.kl is None or gap is None or not window.established:
        return None
    if gap.difference >= 0:
        return None
    return Result(
        f"{ours.kept_share:.0%} of distant pairs",
        "and predictions stay close to the untouched model's.",
        f"Divergence {ours.kl.difference:.4f} nats per token at {length:,} tokens ({ours.kl.low:.4f} to "
        f"{ours.kl.high:.4f}). A window with as many pairs: {window.kl.difference:.4f}, significantly farther. "
        "The default is fitted without a training step.",
        "quality",
        KINDS,
        _evidence(length),
    )


def _speed(task: str) -> dict[str, Any]:
    rows = [row for row in _record(MODEL)["results"] if row["task"] == task and row["routing"] == "hard"]
    return max(rows, key=lambda row: row["tokens"])


def _decoding() -> Result | None:
    row = _speed("decode")
    if row["speedup"] <= 1:
        return None
    return Result(
        f"{row['speedup']:.2f}x as fast",
        f"at decoding a token after {row['tokens']:,} others.",
        f"{row['tokens_per_second']:.0f} tokens per second on {_cores(_record(MODEL))}. The untouched model is the "
        "measure, and the choice of pairs is included.",
        "speed",
        MODEL,
        {"speed": MODEL},
    )


def _calls() -> list[dict[str, Any]]:
    """Attention calls in float32, at lengths that the model has been measured at too: longer ones say nothing of it."""
    longest = _speed("prefill")["tokens"]
    points = _record(ATTENTION)["points"]
    return [point for point in points if point["dtype"] == DTYPE and point["tokens"] <= longest]


def _attention() -> Result | None:
    points = sorted(_calls(), key=lambda point: point["tokens"])
    best = max(points, key=lambda point: point["speedup_with_choice"])
    faster = faster_from(*zip(*((point["tokens"], point["speedup_with_choice"]) for point in points)))
    if faster is None:
        return None
    return Result(
        f"{best['speedup_with_choice']:.2f}x as fast",
        f"for one attention call over {best['tokens']:,} tokens.",
        f"Faster from {faster:,} tokens on, {DTYPE}, {_cores(_record(ATTENTION))}; the choice of pairs is included.",
        "speed",
        ATTENTION,
        {"speed": ATTENTION, "speed_dtype": DTYPE},
    )


def _cores(record: dict[str, Any]) -> str:
    made = record["made"]
    return f"{made['cores']} CPU cores" if "cores" in made else str(made["device"])


def _prefill() -> Result | None:
    row = _speed("prefill")
    if row["speedup"] > 1:
        return None
    return Result(
        "",
        "Faster prefill of a whole model.",
        f"At {row['tokens']:,} tokens it runs at {row['speedup']:.2f}x of the untouched model.",
        "speed",
        MODEL,
        {"speed": MODEL},
    )


def _closer() -> Result | None:
    length, rows, ours = _rows()
    # Whoever is not established to be farther may be as close.
    rivals = [r for r in rows if r.against is not None and not (r.established and r.against.difference < 0)]
    if not rivals or ours.kl is None:
        return None
    best = min(rivals, key=lambda row: row.kl.difference if row.kl else 0)
    settled = "" if best.established else "; the difference is not established"
    return Result(
        "",
        "Closest of all.",
        f"{best.series} diverges by {best.kl.difference if best.kl else 0:.4f} at {length:,} tokens, routing by "
        f"{ours.kl.difference:.4f}{settled}.",
        "quality",
        KINDS,
        _evidence(length),
    )


def _on_another_model(name: str) -> Result | None:
    """The nearest baseline on another model, over the longest texts that have one, where it is nearer than routing."""
    record = _record(name)
    length = max(point["length"] for point in record["points"] if point["kind"] == "baseline")
    rows = [row for row in mean_rows(record, length) if row.kl is not None]
    ours = next(row for row in rows if row.ours)
    best = min((row for row in rows if row.against is not None), key=lambda row: row.kl.difference if row.kl else 0)
    if ours.kl is None or best.kl is None or best.kl.difference >= ours.kl.difference:
        return None
    blocks = sum(len(point["block_kl"]) for point in ours.points.values())
    settled = "" if best.established else f" ({blocks} blocks: not established)"
    return Result(
        "",
        f"Closest on {record['model']['name'].removesuffix('.gguf')}.",
        f"{best.series} diverges by {best.kl.difference:.4f} at {length:,} tokens, routing by "
        f"{ours.kl.difference:.4f}{settled}.",
        "quality",
        name,
        _evidence(length, name),
    )


def _gain() -> Result | None:
    length, _, ours = _rows()
    if ours.loss.low is None or ours.loss.low <= 0:
        return None
    return Result(
        "",
        "A gain over the untouched model.",
        f"Perplexity rises by {ours.relative - 1:.2%} at {length:,} tokens, on the mean over kinds of text.",
        "quality",
        KINDS,
        _evidence(length),
    )


def _short() -> Result | None:
    slow = max((point["tokens"] for point in _calls() if not is_faster(point["speedup_with_choice"])), default=0)
    if not slow:
        return None
    return Result(
        "",
        "Faster attention over short texts.",
        f"Up to {slow:,} tokens full attention is as fast or faster.",
        "speed",
        ATTENTION,
        {"speed": ATTENTION, "speed_dtype": DTYPE},
    )


def _machines() -> Result | None:
    device = str(_record(MODEL)["made"]["device"])
    return Result(
        "",
        "Speeds elsewhere.",
        f"The figures above are of one {device}. Other CPUs give others, and no GPU was timed.",
        "speed",
        MODEL,
    )

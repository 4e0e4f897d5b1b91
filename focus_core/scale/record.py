"""What `focus bench scale` does: measure the constants of this machine, predict with them, and measure the same."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from focus_core.errors import FocusError
from focus_core.io.locks import claims_file
from focus_core.models import LoadedModel
from focus_core.progress import Progress, silent
from focus_core.resources import data_dir
from focus_core.results import check_replaceable, record_run, text_records
from focus_core.routing.attach import attached
from focus_core.routing.config import FocusConfig
from focus_core.routing.model import FocusModel, Mode
from focus_core.scale.kernels import Lengths, matmul_rates, prefill_rates, step_rates
from focus_core.scale.measure import (
    Subject,
    dense_rate,
    fit_rates,
    fit_times,
    pass_rates,
    prefill_time,
    step_time,
    together,
    trace_rates,
    trace_time,
    training_time,
)
from focus_core.scale.rates import Rates
from focus_core.scale.shapes import shape_of
from focus_core.scale.times import (
    Cluster,
    FitRates,
    decode_seconds,
    fit_seconds,
    prefill_seconds,
    trace_seconds,
    training_seconds,
)
from focus_core.text import encode, read_text

SCHEMA = "focus-bench-scale/1"
LONGEST_FIT, LONGEST_MASS, LONGEST_LM = 2048, 2048, 512
"""Tokens up to which `focus fit` and training are checked: their time or memory grows with the square."""


CONSTANTS = {
    name: {"unit": unit, "how": how}
    for name, unit, how in (
        ("matmul", "FLOP/s", "1,024 tokens through the matrices of four layers"),
        ("attention", "FLOP/s", "full causal attention of one layer, 4,096 tokens"),
        ("exact", "FLOP/s", "pairs of narrow groups: two shares at 4,096 tokens"),
        ("pages", "FLOP/s", "(query, page) pairs, choosing included: the same calls"),
        ("assign", "FLOP/s", "groups of 4,096 keys"),
        ("step_attention", "FLOP/s", "decode of the untouched model after 4,096 tokens less that after 64"),
        ("step_exact", "FLOP/s", "pairs of narrow groups in decode: two shares after 4,096 tokens, all layers"),
        ("step_pages", "FLOP/s", "(query head, page) pairs in decode: the same calls less those of a short cache"),
        ("bandwidth", "bytes/s", "one token through the matrices of all layers"),
        ("token_s", "s", "the rest of prefill at 1,024 tokens, for each token and layer"),
        ("routed_token_s", "s", "more of it with narrow groups"),
        ("step_s", "s", "the rest of decode after 64 tokens, for each layer"),
        ("routed_step_s", "s", "more of it with narrow groups, after 1,024 tokens"),
        ("trace_s", "s", "the rest of traces of 1,024 and 3,072 tokens, for each token and layer"),
        ("trace_page_s", "s", "the same, for each (query, page) pair of one query head"),
        ("cluster_s", "s", "first pass of `focus fit` on 1,024 tokens, for each key of one head"),
        ("spread_s", "s", "second pass, for each (query, key) pair of one query head"),
        ("dense_mass", "FLOP/s", "pairs of a training step, objective mass, 1,024 tokens"),
        ("dense_lm", "FLOP/s", "pairs of a training step, objective lm, 256 tokens"),
        ("read_together", "share", "distant keys that the query heads of a key/value head read, after 3,072 tokens"),
        ("read_together_independent", "share", "the same, if they chose independently"),
    )
}
"""Unit of each constant, and what is timed for it with the default lengths."""


@dataclass(frozen=True)
class ScaleSettings:
    """Lengths of `focus bench scale`, none of which may be both measured and checked.

    Attributes:
        checked: tokens at which predictions are compared with measurements.
        measured: tokens at which constants are measured.
        lm: tokens of the block that gives the constant of the objective "lm", which needs much memory.
        repetitions: of each part, after one warm-up; passes of the whole model take fewer.
    """

    checked: tuple[int, ...] = (512, 2048, 8192)
    measured: Lengths = field(default_factory=Lengths)
    lm: int = 256
    repetitions: int = 5

    def __post_init__(self) -> None:
        both = set(self.checked) & {self.measured.short, self.measured.long, 3 * self.measured.short, self.lm}
        if both:
            raise FocusError(f"{min(both):,} tokens are used to measure constants: check another length.")


@claims_file()
def record_scale(
    out: str | Path,
    *,
    model: str | Path | LoadedModel = "default",
    routers: str | Path | None = None,
    settings: ScaleSettings | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Measure constants, check predictions and write the record; on a CPU in float32.

    Args:
        out: the JSON file.
        model: of Llama's form: a loaded model, or a name that `load_model` accepts.
        routers: narrow routers with a share; those shipped for the model when None.
        settings: lengths; the defaults when None.
        progress: told each part.

    Returns:
        The record: ``schema``, ``made``, ``model`` with its ``shape``, ``settings``, ``data``, ``constants`` (name,
        value, unit, and how it was measured) and ``results`` (task, tokens, routing, predicted and measured seconds,
        and ``error``, predicted over measured less 1).

    Raises:
        FocusError: a model of another form or with too few positions, routers that are not narrow, or a file that holds
            another result.
        OSError: the file cannot be written.
    """
    settings = settings or ScaleSettings()
    file = data_dir() / "samples" / "story.txt"
    torch.manual_seed(0)
    with attached(model, routers, progress=progress) as (loaded, focus):
        if focus.config.read_share is None:
            raise FocusError("The costs are those of narrow groups with a share: name such routers with --routers.")
        subject, config = _subject(loaded, read_text(file), settings), focus.config
        report = {
            "schema": SCHEMA,
            "model": {**loaded.info.identity, "shape": asdict(subject.shape)},
            "settings": {"measured": settings, "config": config, "routers": focus.name, "dtype": "float32"},
            "data": text_records([file]),
        }
        check_replaceable(out, report)
        constants, results = _served(focus, subject, settings, progress)
    _fitted(subject, config, settings, constants, results, progress)
    _trained(subject, settings, constants, results, progress)
    measured = [{"name": name, "value": value, **CONSTANTS[name]} for name, value in constants.items()]
    return record_run(Path(out), {**report, "constants": measured, "results": results})


def _subject(loaded: LoadedModel, text: str, settings: ScaleSettings) -> Subject:
    """The model, and a text that is repeated until it is long enough."""
    longest = max(*settings.checked, settings.measured.long, 3 * settings.measured.short)
    limit = getattr(loaded.model.config.get_text_config(), "max_position_embeddings", None)
    if limit is not None and longest > limit:
        raise FocusError(f"{longest:,} tokens are more than the {limit:,} positions of this model: check fewer.")
    tokens = len(encode(loaded.tokenizer, text).input_ids)
    whole = "\n\n".join([text] * (1 + longest // tokens))
    return Subject(
        loaded, shape_of(loaded.model.config, loaded.info.name), whole, encode(loaded.tokenizer, whole, opening=True)
    )


def _served(
    focus: FocusModel, subject: Subject, settings: ScaleSettings, progress: Progress
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Constants and checks of prefill, decode and traces."""
    shape, lengths, config = subject.shape, settings.measured, focus.config
    progress("Measuring the parts of a layer", 0.0)
    parts = matmul_rates(focus, lengths.short, settings.repetitions)
    parts |= prefill_rates(shape, config, lengths, settings.repetitions)
    parts |= step_rates(shape, config, lengths, settings.repetitions)
    progress("Measuring passes of the model", 0.1)
    rates = pass_rates(focus, subject, parts, lengths)
    trace_s, trace_page_s = trace_rates(focus, subject, rates, lengths)
    read, independent = together(focus, subject, 3 * lengths.short)
    constants = {name: value for name, value in asdict(rates).items() if name in CONSTANTS}
    constants |= {"trace_s": trace_s, "trace_page_s": trace_page_s}
    constants |= {"read_together": read, "read_together_independent": independent}
    on, fit, results = Cluster(rates), FitRates(0, 0, trace_s, trace_page_s), []
    for place, tokens in enumerate(settings.checked):
        progress(f"Checking {tokens:,} tokens", 0.2 + 0.4 * place / len(settings.checked))
        modes: tuple[tuple[Mode, FocusConfig | None], ...] = ("off", None), ("hard", config)
        for routing, own in modes:
            with focus.routing(routing):
                taken, cache = prefill_time(focus, subject.ids(tokens))
                results.append(_row("prefill", tokens, routing, prefill_seconds(shape, tokens, on, own), taken))
                step = step_time(focus, cache)
                results.append(_row("decode", tokens, routing, decode_seconds(shape, tokens, on, own), step))
        taken = trace_time(focus, subject, tokens)
        results.append(_row("trace", tokens, "hard", trace_seconds(shape, tokens, on, config, fit), taken))
    return constants, results


def _fitted(
    subject: Subject,
    config: FocusConfig,
    settings: ScaleSettings,
    constants: dict[str, float],
    results: list[dict[str, Any]],
    progress: Progress,
) -> None:
    """Add constants and checks of `focus fit`."""
    progress("Measuring the passes of focus fit", 0.6)
    on = Cluster(Rates.of_constants(constants))
    cluster_s, spread_s = fit_rates(subject, config, on.rates, settings.measured.short)
    constants |= {"cluster_s": cluster_s, "spread_s": spread_s}
    fit = FitRates(cluster_s, spread_s, 0, 0)
    for tokens in (each for each in settings.checked if each <= LONGEST_FIT):
        predicted = fit_seconds(subject.shape, tokens, on, config, fit)
        results.append(_row("fit", tokens, "hard", predicted, sum(fit_times(subject, config, tokens))))


def _trained(
    subject: Subject,
    settings: ScaleSettings,
    constants: dict[str, float],
    results: list[dict[str, Any]],
    progress: Progress,
) -> None:
    """Add constants and checks of a training step."""
    on = Cluster(Rates.of_constants(constants))
    for objective, tokens, longest in (
        ("mass", settings.measured.short, LONGEST_MASS),
        ("lm", settings.lm, LONGEST_LM),
    ):
        progress(f"Measuring a step of training, objective {objective}", 0.9)
        dense = constants[f"dense_{objective}"] = dense_rate(subject, objective, on.rates, tokens)
        for checked in (each for each in settings.checked if each <= longest):
            predicted = training_seconds(subject.shape, checked, on, objective, dense)
            taken = training_time(subject, objective, checked)
            results.append(_row(f"train, {objective}", checked, "soft", predicted, taken))


def _row(task: str, tokens: int, routing: str, predicted: float, measured: float) -> dict[str, Any]:
    return {
        "task": task,
        "tokens": tokens,
        "routing": routing,
        "predicted_s": predicted,
        "measured_s": measured,
        "error": predicted / measured - 1,
    }

"""A whole evaluation: texts in, perplexities and a record out. `focus eval` and notebooks call the same function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from focus_core.evaluation.compare import Leak, leaks
from focus_core.evaluation.exposure import check_exposed
from focus_core.evaluation.lengths import LengthRow, length_transfer
from focus_core.evaluation.perplexity import Evaluation, evaluate, settings_for
from focus_core.evaluation.retention import Untouched
from focus_core.locks import claims_file
from focus_core.models import LoadedModel
from focus_core.progress import Progress, silent
from focus_core.results import record_run, stamp, text_records
from focus_core.routing.attach import attached
from focus_core.routing.model import FocusModel
from focus_core.text import find_texts, opening_tokens, read_text, token_blocks, token_windows

SCHEMA = "focus-eval/1"


@dataclass(frozen=True)
class TextEvaluation:
    """Perplexities of texts under every routing.

    Attributes:
        results: one entry per setting, the untouched model first.
        leaks: sequence Sinkhorn against calibrated routing, one entry per k; see `focus_core.evaluation.compare`.
        lengths: one entry per length and setting; empty if no lengths were given.
        length_tokens: tokens that every length was evaluated on.
        record: everything as plain values, with model, settings and texts.
    """

    results: tuple[Evaluation, ...]
    leaks: tuple[Leak, ...]
    lengths: tuple[LengthRow, ...]
    length_tokens: int
    record: dict[str, Any]


@claims_file()
def evaluate_texts(
    texts: str | Path | Iterable[str | Path],
    *,
    model: str | Path | LoadedModel = "default",
    routers: str | Path | FocusModel | None = None,
    untrained: bool = False,
    length: int = 512,
    stride: int | None = None,
    blocks: int | None = 32,
    top_k: Sequence[int] | None = None,
    window: int | None = None,
    lengths: Sequence[int] = (),
    length_blocks: int = 2,
    out: str | Path | None = None,
    progress: Progress = silent,
) -> TextEvaluation:
    """Measure retention and perplexity of texts, untouched and routed, with the share of pairs that routing keeps.

    Args:
        texts: text files and folders.
        model: a loaded model, or a name that `load_model` accepts.
        routers: a folder, a shipped name, or a `FocusModel` of the loaded model; None for those shipped for the model.
        untrained: use untrained routers instead.
        length: T, tokens per block.
        stride: tokens scored at the end of each block; the length when None.
        blocks: evenly spaced blocks to use; None for all.
        top_k: k of hard routing; see `settings_for` when None.
        window: w; the routers' own when None.
        lengths: also evaluate causal routing at these lengths, on the same tokens; each divides the longest.
        length_blocks: blocks of the longest length for this.
        out: also write the record to this file.
        progress: told of every setting.

    Raises:
        FocusError: texts, routers or settings that cannot be used.
        OSError: the file cannot be written.
    """
    files = find_texts(texts)
    contents = [read_text(path) for path in files]
    changes: dict[str, Any] = {} if window is None else {"window": window}
    with attached(model, routers, untrained=untrained, progress=progress) as (loaded, focus):
        sample = token_windows(
            loaded.tokenizer, contents, length, length if stride is None else stride, max_blocks=blocks
        )
        with focus.routing("hard", **changes):
            config = focus.current.config
        for each in (length, *lengths):
            check_exposed(each, config, focus.sliding_windows)
        plan = settings_for(config, top_k)
        results, untouched = [], Untouched(sample)
        for index, (mode, k, balance) in enumerate(plan):
            progress(f"Evaluating {mode}{f' k={k}' if k else ''} ({index + 1} of {len(plan)})", index / len(plan))
            row = evaluate(
                focus, sample, routing=mode, top_k=k, balance=balance, stride=stride, untouched=untouched, **changes
            )
            results.append(row)
        by_length, length_tokens = [], 0
        if lengths:
            longest = token_blocks(loaded.tokenizer, contents, max(lengths), max_blocks=length_blocks)
            length_tokens = longest.size
            causal = [row for row in plan if row[0] == "off" or row[2] == "calibrated"]
            opening = opening_tokens(loaded.tokenizer)
            by_length = length_transfer(
                focus, longest, sorted(set(lengths)), causal, opening=opening, progress=progress
            )
        report = {
            "schema": SCHEMA,
            "model": {"name": loaded.info.name, "revision": loaded.info.revision},
            "settings": {
                "config": config,
                "routers": focus.name,
                "trained": focus.trained,
                "length": length,
                "stride": stride or length,
                "blocks": len(sample),
                "lengths": sorted(set(lengths)),
                "length_blocks": length_blocks if lengths else 0,
            },
            "data": text_records(files),
            "results": results,
            "leak": leaks(results),
            "length_transfer": by_length,
        }
    record = stamp(report) if out is None else record_run(Path(out), report)
    return TextEvaluation(tuple(results), tuple(report["leak"]), tuple(by_length), length_tokens, record)

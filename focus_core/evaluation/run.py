"""A whole evaluation: texts in, perplexities and a record out. `focus eval` and notebooks call the same function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from focus_core.cluster import Cluster
from focus_core.evaluation.compare import Leak, leaks
from focus_core.evaluation.exposure import check_exposed
from focus_core.evaluation.lengths import LengthRow, at_lengths, length_rows
from focus_core.evaluation.perplexity import Evaluation, settings_for
from focus_core.evaluation.work import Asked, measured, measurement_key
from focus_core.io.remote import claims_record
from focus_core.io.unfinished import unfinished
from focus_core.models import LoadedModel, check_positions
from focus_core.progress import Progress, silent
from focus_core.report.corpora.corpus import scan
from focus_core.results import check_replaceable, record_run, stamp
from focus_core.routing.attach import attached
from focus_core.routing.model import FocusModel
from focus_core.text import opening_tokens, token_blocks, token_windows

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


@claims_record()
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
    cluster: Cluster | None = None,
    out: str | Path | None = None,
    progress: Progress = silent,
) -> TextEvaluation:
    """Measure retention and perplexity of texts, untouched and routed, with the share of pairs that routing keeps.

    A second call with the same arguments resumes an interrupted one.

    Args:
        texts: text files and folders, or addresses of a store. Those that cannot be read are listed in the record.
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
        cluster: workers of Ray that evaluate blocks, with the model by name; None for this process.
        out: also write the record to this file, or to this address of a store.
        progress: told of the blocks that are done.

    Raises:
        FocusError: texts, routers or settings that cannot be used.
        OSError: the file cannot be written.
    """
    corpus = scan(texts)
    origin = {"data": corpus.records(), "failed": [each._asdict() for each in corpus.unread]}
    changes: dict[str, Any] = {} if window is None else {"window": window}
    with ExitStack() as held:
        chosen = attached(model, routers, untrained=untrained, progress=progress)
        loaded, focus = held.enter_context(chosen)
        check_positions(loaded, length, *lengths)
        sample = token_windows(
            loaded.tokenizer, corpus.texts(), length, length if stride is None else stride, max_blocks=blocks
        )
        with focus.routing("hard", **changes):
            config = focus.current.config
        for each in (length, *lengths):
            check_exposed(each, config, focus.sliding_windows)
        plan = settings_for(config, top_k)
        asked, length_tokens = [Asked(sample, plan, stride, changes, retention=True)], 0
        if lengths:
            longest = token_blocks(loaded.tokenizer, corpus.texts(), max(lengths), max_blocks=length_blocks)
            length_tokens = longest.size
            causal = [row for row in plan if row[0] == "off" or row[2] == "calibrated"]
            opening = opening_tokens(loaded.tokenizer)
            asked += at_lengths(longest, sorted(set(lengths)), causal, opening=opening, changes=changes)
        described = {
            "schema": SCHEMA,
            "model": loaded.info.identity,
            "settings": {
                "config": config,
                "routers": focus.name,
                "trained": focus.trained,
                "length": length,
                "stride": stride or length,
                "blocks": len(sample),
                "top_k": list(dict.fromkeys(k for _, k, _ in plan if k is not None)),
                "lengths": sorted(set(lengths)),
                "length_blocks": length_blocks if lengths else 0,
            },
            **origin,
        }
        if out is not None:
            check_replaceable(out, described)
        folder = held.enter_context(unfinished(measurement_key(focus, asked)))
        found = measured(focus, asked, folder=folder, cluster=cluster, model=model, progress=progress)
        results = asked[0].evaluations(focus, found[0])
        by_length = length_rows(focus, asked[1:], found[1:], min(lengths)) if lengths else []
        report = {
            **described,
            "results": results,
            "leak": leaks(results),
            "length_transfer": by_length,
        }
        record = stamp(report) if out is None else record_run(out, report)
    return TextEvaluation(tuple(results), tuple(report["leak"]), tuple(by_length), length_tokens, record)

"""What `focus fit` does: narrow routers for a model and texts, without training, recorded in a folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from focus_core.errors import FocusError
from focus_core.io.locks import claims_folder
from focus_core.io.unfinished import unfinished
from focus_core.models import LoadedModel, load_model
from focus_core.models.heads import head_dim_of
from focus_core.models.positions import positions_of
from focus_core.progress import Progress, silent
from focus_core.results import record_run, text_records
from focus_core.routing.config import FocusConfig
from focus_core.routing.narrow.directions import DIRECTIONS
from focus_core.routing.narrow.fitting.fit import fit_narrow
from focus_core.routing.narrow.fitting.groups import QUERY_POWER
from focus_core.routing.narrow.fitting.thresholds import places_of
from focus_core.routing.portable import model_key
from focus_core.routing.storage import check_elsewhere
from focus_core.shipped import RECORD
from focus_core.text import CORPUS_SUFFIXES, TooShortError, find_texts, token_blocks
from focus_core.training.run import check_unlike
from focus_core.training.stream import Source, documents

SCHEMA = "focus-fit/1"
LENGTH = 1024
"""Tokens of a block on which groups are fitted, where the model has as many positions."""
NEED_LENGTHS = (2048, 8192, 16384, 32768)
"""Tokens of the blocks on which heads are measured, where the model has as many positions; spread on the first."""
SHORT = 4
"""Texts of less than the model's positions over this may keep more than the share of their pairs."""
PAGE_SIZES = (16, 8)
"""Keys of a page that `focus fit` tries in this order. Small pages cost more to rank and to sum up."""
GROUPS = (64, 256)
"""Groups of a key/value head where their number is not given, at least and at most."""
LONG_TOKENS = 32768
"""Tokens of longer blocks together: each block takes minutes."""
PLANNED_BLOCKS = 8
"""Longer blocks, where heads are measured in them: one or two kinds of text do not show what all heads are for."""


def narrow_config(**changes: Any) -> FocusConfig:
    """The default settings of narrow routers: 64 groups, pages of 16 keys, 15% of the keys beyond the window.

    Without `count_spread` there are no directions of spread, unless they are asked for.
    """
    usual: dict[str, Any] = {
        "router": "narrow", "num_groups": 64, "top_k": 1, "window": 128, "read_share": 0.15, "score": "dot",
        "count_weight": 1.0, "chunk": 16, "by_error": True, "count_spread": True,
    }  # fmt: skip
    directions = DIRECTIONS if changes.get("count_spread", True) else 0
    return FocusConfig(**{**usual, "spread_directions": directions, **changes})


def usual_groups(model: PreTrainedModel) -> int:
    """Groups of a key/value head where their number is not given: as many as its keys have dimensions, within `GROUPS`.

    Keys that spread over more dimensions need more groups to be alike within one.
    """
    fewest, most = GROUPS
    return min(max(fewest, head_dim_of(model)), most)


@claims_folder()
def fit_routers(
    texts: str | Path | Iterable[str | Path],
    out: str | Path,
    *,
    model: str | Path | LoadedModel = "default",
    config: FocusConfig | None = None,
    tokens: int = 24576,
    one_threshold: bool = False,
    recall: bool | None = None,
    page_sizes: Sequence[int] = (),
    query_power: float = QUERY_POWER,
    seed: int = 0,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Fit narrow routers to a model in one pass over a sample of texts.

    A fit that was interrupted goes on where it was, if the same one is asked for again. A folder with finished routers
    of other settings, texts or models is refused.

    Args:
        texts: files and folders, of plain text or of tables (JSON Lines, Parquet) with a text in each row; as many
            blocks are taken from each file, spread over it.
        out: folder for the routers and `training.json`.
        model: a loaded model, or a name that `load_model` accepts.
        config: settings with router="narrow"; `narrow_config` with `usual_groups` when None. `shares_at` is what the
            texts allow.
        tokens: in the sample, about.
        one_threshold: see `fit_narrow`.
        recall: see `fit_narrow`; None for True where each head has a threshold of its own.
        page_sizes: see `fit_narrow`; only with `by_error`, and without `one_threshold`.
        query_power: see `fit_narrow`.
        seed: of k-means.
        progress: told the share done.

    Returns:
        The record, as in `training.json`: ``schema``, ``made``, ``model``, ``settings``, ``data``, and with `by_error`
        ``expected``: for each page size that was tried, the last one kept, ``page_size`` and ``kl``, pairs of a mean
        share and the KL that `plan_thresholds` returns for it. With `recall` also ``recall``: of every layer that reads
        pages, ``layer`` and ``attention``, what `recall_scores` returns for its query heads.

    Raises:
        FocusError: a text is shorter than a block, or settings that cannot be used.
        OSError: the folder cannot be written.
    """
    out, files = Path(out), find_texts(texts, suffixes=CORPUS_SUFFIXES)
    check_elsewhere(out)
    loaded = model if isinstance(model, LoadedModel) else load_model(model, progress=progress)
    config = narrow_config(num_groups=usual_groups(loaded.model)) if config is None else config
    if recall is None:
        recall = config.by_error and not one_threshold
    length = min(LENGTH, positions_of(loaded.model) or LENGTH)
    each = max(1, round(tokens / length / len(files)))
    blocks = np.concatenate([_blocks(loaded, path, length, each) for path in files])
    measured = config.by_error or config.count_spread or config.spread_directions
    need = _need_blocks(loaded, files, config) if measured else []
    lengths = lengths_at_share([each.shape[1] for each in need], positions_of(loaded.model)) if config.by_error else []
    places = places_of(lengths, config.window) if lengths else ()
    config = config.replace(shares_at=places)
    how: dict[str, Any] = {"one_threshold": True} if one_threshold else {}
    how |= {"recall": True} if recall else {}
    how |= {"page_sizes": page_sizes} if page_sizes else {}
    how |= {"query_power": query_power} if config.score == "dot" else {}
    report = {
        "schema": SCHEMA,
        "model": loaded.info.identity,
        "settings": {"config": config, "length": length, "blocks": len(blocks), "seed": seed, **how}
        | ({"need": [{"length": each.shape[1], "blocks": len(each)} for each in need]} if need else {}),
        "data": text_records(files),
    }
    check_unlike(out, report)
    expected: list[dict[str, Any]] = []

    def note(page_size: int | None, kl: dict[float, float]) -> None:
        expected.append({"page_size": page_size, "kl": [list(each) for each in sorted(kl.items())]})

    def note_recall(scores: dict[int, np.ndarray]) -> None:
        found = [{"layer": layer, "attention": own.round(4).tolist()} for layer, own in scores.items()]
        report.update({"recall": found} if found else {})

    how |= {"on_expected": note, "on_recall": note_recall, "seed": seed, "progress": progress}
    with unfinished(model_key(loaded.model, blocks=blocks, need=need, settings=report["settings"])) as folder:
        focus = fit_narrow(loaded.model, blocks, config, need=need, folder=folder, **how)
    if expected:
        report["expected"] = expected
    try:
        focus.save_pretrained(out)
    finally:
        focus.detach()
    return record_run(out / RECORD, report)


def lengths_at_share(lengths: Sequence[int], positions: int | None) -> list[int]:
    """Those of these lengths whose texts are to keep the share of their pairs that is asked for.

    The first is a fourth of the model's positions: 8,192 tokens, where the model has 32,768. Early tokens have few keys
    before them, so what they read costs a long text little, and shorter texts may keep more.

    Args:
        lengths: rising; those that heads and pages are measured at.
        positions: of the model; None for any number.
    """
    first = NEED_LENGTHS[1] if positions is None else min(NEED_LENGTHS[1], positions // SHORT)
    return [length for length in lengths if length >= first] or list(lengths[-1:])


def _blocks(loaded: LoadedModel, path: Path, length: int, most: int) -> np.ndarray:
    """Blocks of a text, spread over it."""
    try:
        return token_blocks(loaded.tokenizer, documents([Source(path)]), length, max_blocks=most)
    except TooShortError as error:
        raise FocusError(
            f"The longest text of {path} has {error.longest:,} tokens, and groups are fitted on blocks of {length:,}: "
            "give a longer one, or leave it out."
        ) from error


def _need_blocks(loaded: LoadedModel, files: Sequence[Path], config: FocusConfig) -> list[np.ndarray]:
    """Blocks that spread and need are measured on, shorter ones first: one of each file that is long enough.

    The longer ones only where they decide something, and of some files. What is longer than the model's positions, or
    than every file, is left out.
    """
    positions, (first, *longer) = positions_of(loaded.model), NEED_LENGTHS
    lengths = [min(first, positions or first)]
    if config.by_error:
        lengths += [length for length in longer if positions is None or length <= positions]
    found: list[np.ndarray] = []
    for length in lengths:
        blocks = []
        for path in files:
            with suppress(TooShortError):
                blocks.append(token_blocks(loaded.tokenizer, documents([Source(path)]), length, max_blocks=1))
        if not blocks:
            break
        found.append(np.concatenate(blocks))
    planned = lengths_at_share([each.shape[1] for each in found], positions)[0] if found else 0
    for place, blocks in enumerate(found[1:], 1):
        length = blocks.shape[1]
        most = PLANNED_BLOCKS if length == planned else max(1, LONG_TOKENS // length)
        found[place] = blocks[np.linspace(0, len(blocks) - 1, min(most, len(blocks))).round().astype(int)]
    return found

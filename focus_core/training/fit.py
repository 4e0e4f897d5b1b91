"""What `focus fit` does: narrow routers for a model and texts, without training, recorded in a folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from focus_core.errors import FocusError
from focus_core.locks import claims_folder
from focus_core.models import LoadedModel, load_model
from focus_core.models.positions import positions_of
from focus_core.progress import Progress, silent
from focus_core.results import record_run, text_records
from focus_core.routing.config import FocusConfig
from focus_core.routing.narrow.fit import fit_narrow
from focus_core.routing.storage import check_elsewhere
from focus_core.text import CORPUS_SUFFIXES, find_texts, token_blocks
from focus_core.training.run import RECORD
from focus_core.training.stream import Source, documents

SCHEMA = "focus-fit/1"
LENGTH = 1024
"""Tokens of a block on which groups are fitted, where the model has as many positions."""
NEED_LENGTH = 2048
"""Tokens of a block on which spread and need of heads are measured, where the model has as many positions."""
SHARES_AT = (NEED_LENGTH, 4096)
"""Keys beyond the window up to which needs in such blocks hold, and from which on those in longer ones do."""


def narrow_config(**changes: Any) -> FocusConfig:
    """The default settings of narrow routers: 64 groups, pages of 16 keys, 15% of the keys beyond the window."""
    usual: dict[str, Any] = {
        "router": "narrow", "num_groups": 64, "top_k": 1, "window": 128, "read_share": 0.15, "score": "dot",
        "count_weight": 1.0, "chunk": 16, "shares_by_need": True,
        "count_spread": True, "shares_at": SHARES_AT,
    }  # fmt: skip
    return FocusConfig(**{**usual, **changes})


@claims_folder()
def fit_routers(
    texts: str | Path | Iterable[str | Path],
    out: str | Path,
    *,
    model: str | Path | LoadedModel = "default",
    config: FocusConfig | None = None,
    tokens: int = 24576,
    seed: int = 0,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Fit narrow routers to a model in one pass over a sample of texts.

    Args:
        texts: files and folders, of plain text or of tables (JSON Lines, Parquet) with a text in each row; as many
            blocks are taken from each file, spread over it.
        out: folder for the routers and `training.json`.
        model: a loaded model, or a name that `load_model` accepts.
        config: settings with router="narrow"; `narrow_config` when None.
        tokens: in the sample, about.
        seed: of k-means.
        progress: told the share done.

    Returns:
        The record, as in `training.json`: ``schema``, ``made``, ``model``, ``settings`` and ``data``.

    Raises:
        FocusError: a text is shorter than a block, or settings that cannot be used.
        OSError: the folder cannot be written.
    """
    out, files = Path(out), find_texts(texts, suffixes=CORPUS_SUFFIXES)
    check_elsewhere(out)
    loaded = model if isinstance(model, LoadedModel) else load_model(model, progress=progress)
    config = narrow_config() if config is None else config
    length = min(LENGTH, positions_of(loaded.model) or LENGTH)
    each = max(1, round(tokens / length / len(files)))
    pools = [token_blocks(loaded.tokenizer, documents([Source(path)]), length, max_blocks=each) for path in files]
    blocks = np.concatenate(pools)
    need = _need_blocks(loaded, files, config) if config.shares_by_need or config.count_spread else []
    # Of one length alone the shares hold for all.
    config = config.replace(shares_at=config.shares_at[: len(need)] if len(need) > 1 else ())
    focus = fit_narrow(loaded.model, blocks, config, need=need, seed=seed, progress=progress)
    try:
        focus.save_pretrained(out)
    finally:
        focus.detach()
    report = {
        "schema": SCHEMA,
        "model": loaded.info.identity,
        "settings": {"config": config, "length": length, "blocks": len(blocks), "seed": seed}
        | ({"need": [{"length": each.shape[1], "blocks": len(each)} for each in need]} if need else {}),
        "data": text_records(files),
    }
    return record_run(out / RECORD, report)


def _need_blocks(loaded: LoadedModel, files: Sequence[Path], config: FocusConfig) -> list[np.ndarray]:
    """Blocks that need is measured on, for each of the config's `shares_at`: one of each file that is long enough.

    A block for the later of them has twice as many tokens, since half of a block is before a query in the mean. What
    is longer than the model's positions, or than every file, is left out.
    """
    positions = positions_of(loaded.model)
    lengths = [min(NEED_LENGTH, positions or NEED_LENGTH)]
    if config.shares_by_need:
        lengths += [2 * keys for keys in config.shares_at[1:] if positions is None or 2 * keys <= positions]
    found = []
    for length in lengths:
        blocks = []
        for path in files:
            with suppress(FocusError):  # shorter than a block
                blocks.append(token_blocks(loaded.tokenizer, documents([Source(path)]), length, max_blocks=1))
        if not blocks:
            break
        found.append(np.concatenate(blocks))
    return found

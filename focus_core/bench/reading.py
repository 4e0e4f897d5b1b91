"""A model and a text, for benchmarks that need queries, keys and values of real tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from focus_core.baselines.learned import Learner
from focus_core.baselines.learned.train import LearnedSettings, learned
from focus_core.bench.heads import Head, check_heads, heads_reading, spread_heads
from focus_core.models import LoadedModel, check_positions, load_model
from focus_core.models.positions import positions_of
from focus_core.progress import Progress, silent
from focus_core.resources import data_dir
from focus_core.results import text_records
from focus_core.routing.config import FocusConfig
from focus_core.routing.model import FocusModel, retrofit
from focus_core.text import encode, find_texts, read_text, token_blocks

TAUGHT = 1024
"""Tokens of a block of text that learned baselines are trained on, where the model has as many positions."""


class Reading(NamedTuple):
    """A model and its input text.

    Attributes:
        focus: the model; its routers are not used.
        input_ids: (T,) int64.
        heads: layer and query head of each head that is measured.
        source: model and text, for the record.
        tokenizer: of the model.
        learned: learners of every layer by name of the baseline.
    """

    focus: FocusModel
    input_ids: Tensor
    heads: tuple[tuple[int, int], ...]
    source: dict[str, Any]
    tokenizer: Any
    learned: Mapping[str, Mapping[int, Learner]] = MappingProxyType({})

    @property
    def positions(self) -> int | None:
        """The number of positions of the model; None where its settings name none."""
        return positions_of(self.focus.model)

    def heads_at(self, tokens: int, fitted_tokens: int) -> list[Head]:
        """The heads of the model with `tokens` tokens as input, and later tokens to fit baselines on."""
        return heads_reading(self.focus, self.input_ids, self.heads, tokens, fitted_tokens, self.learned)

    def taught(self, train: Path, folder: Path, settings: LearnedSettings, progress: Progress = silent) -> Reading:
        """The same with learned baselines, trained on a text or read from the folder.

        Args:
            train: text file or folder.
            folder: of the trained weights; created if needed.
            settings: names and sizes of what is learned.
            progress: told of every block.

        Raises:
            FocusError: there is no such text, it is too short, or a baseline does not converge.
            OSError: the weights cannot be written.
        """
        files = find_texts([train])
        length = min(TAUGHT, self.positions or TAUGHT)
        blocks = token_blocks(self.tokenizer, map(read_text, files), length)
        found = learned(self.focus, blocks, folder, settings, progress)
        source = {**self.source, "learned": {"tokens": settings.tokens, "data": text_records(files)}}
        return self._replace(source=source, learned=found.layers)


def read_text_with(
    model: str,
    *,
    data: Path | None = None,
    heads: Sequence[tuple[int, int]] = (),
    sizes: Sequence[int] = (),
    device: str = "cpu",
    progress: Progress = silent,
) -> Reading:
    """Load a model and its input text.

    Args:
        model: as in `load_model`.
        data: text file or folder; None for the sample story.
        heads: layer and query head of each; none for one at each quarter of layers and heads.
        sizes: numbers of tokens that it will read at once.
        device: "cpu" or "cuda".
        progress: told the state of loading.

    Raises:
        FocusError: the model, the text or a head is missing, or a size is past the model's positions.
    """
    loaded = load_model(model, device=device, progress=progress)
    focus = retrofit(loaded.model, FocusConfig())
    check_heads(focus, heads)
    check_positions(loaded, *sizes)
    ids, texts = text_ids(loaded, data)
    model_record = {**loaded.info.identity, "positions": positions(loaded)}
    source = {"model": model_record, "data": texts}
    return Reading(focus, ids, tuple(heads) or spread_heads(focus), source, loaded.tokenizer)


def text_ids(loaded: LoadedModel, data: Path | None) -> tuple[Tensor, list[dict[str, Any]]]:
    """Token ids (T,) of a text and its `text_records`; the sample story without a text.

    Raises:
        FocusError: there is no such text.
    """
    files = [data_dir() / "samples" / "story.txt"] if data is None else find_texts([data])
    text = "\n\n".join(read_text(file) for file in files)
    return torch.from_numpy(encode(loaded.tokenizer, text, opening=True).input_ids), text_records(files)


def positions(loaded: LoadedModel) -> int | None:
    """The number of positions of a model; None where its settings name none."""
    return positions_of(loaded.model)

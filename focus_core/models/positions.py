"""The positions of a model: the longest text that it can read at once."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

from focus_core.errors import FocusError
from focus_core.models.loading import LoadedModel


def positions_of(model: PreTrainedModel) -> int | None:
    """The number of positions that a model's configuration names; None where it names none."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


def check_positions(loaded: LoadedModel, *lengths: int) -> None:
    """Refuse texts of more tokens than the model has positions, before any work.

    Beyond them a table of positions has no entry, and other models were not trained to read.

    Raises:
        FocusError: the longest of these lengths is one.
    """
    positions, longest = positions_of(loaded.model), max(lengths, default=0)
    if positions is not None and longest > positions:
        raise FocusError(
            f"{loaded.info.name} has {positions:,} positions, so it cannot read {longest:,} tokens at once: "
            "choose a shorter length."
        )


def has_position_table(model: PreTrainedModel) -> bool:
    """Whether positions are looked up in a learned table, so that the model cannot run beyond them at all."""
    positions, tokens = positions_of(model), model.get_input_embeddings()
    tables = [part for part in model.modules() if isinstance(part, nn.Embedding) and part is not tokens]
    return positions is not None and any(0 <= part.num_embeddings - positions <= 2 for part in tables)

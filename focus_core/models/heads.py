"""The heads of a model's attention."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel


def head_dim_of(model: PreTrainedModel) -> int:
    """Dimensions of a query or key of one head."""
    text: Any = model.config.get_text_config()
    return getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads

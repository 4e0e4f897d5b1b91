"""The sizes of a decoder that decide what it costs, and those of models that are too large to run here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from focus_core.errors import FocusError


@dataclass(frozen=True)
class ModelShape:
    """A decoder of Llama's form: grouped queries, a gated MLP of three matrices, no biases.

    Attributes:
        name: of the model.
        layers: L.
        width: d, of the hidden states.
        heads: H, query heads.
        kv_heads: Hkv, key/value heads.
        head_dim: D, of keys and of values.
        mlp: width inside the MLP.
        vocabulary: V.
        tied: the output projection is the embedding.
    """

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocabulary: int
    tied: bool

    @property
    def layer_weights(self) -> int:
        """Numbers in the matrices of a layer: queries and output, keys and values, MLP."""
        attention = 2 * self.heads * self.head_dim + 2 * self.kv_heads * self.head_dim
        return self.width * (attention + 3 * self.mlp)

    @property
    def head_weights(self) -> int:
        """Numbers in the output projection, tied or not."""
        return self.vocabulary * self.width

    @property
    def parameters(self) -> int:
        """All numbers of the model, two norms a layer and the last one included."""
        tables = self.head_weights * (1 if self.tied else 2)
        return self.layers * (self.layer_weights + 2 * self.width) + self.width + tables

    @property
    def sharing(self) -> int:
        """G, query heads of a key/value head."""
        return self.heads // self.kv_heads


SHAPES = {
    "135m": ModelShape("SmolLM2-135M", 30, 576, 9, 3, 64, 1536, 49152, tied=True),
    "8b": ModelShape("Llama-3.1-8B", 32, 4096, 32, 8, 128, 14336, 128256, tied=False),
    "70b": ModelShape("Llama-3.1-70B", 80, 8192, 64, 8, 128, 28672, 128256, tied=False),
}
"""Shapes by short name, as the published configurations have them."""


def shape_of(config: Any, name: str = "") -> ModelShape:
    """The shape in a Transformers configuration.

    Args:
        config: of a causal language model.
        name: of the model.

    Raises:
        FocusError: the model has another form than Llama's.
    """
    text = config.get_text_config()
    try:
        heads, width = text.num_attention_heads, text.hidden_size
        return ModelShape(
            name or text.model_type,
            text.num_hidden_layers,
            width,
            heads,
            getattr(text, "num_key_value_heads", None) or heads,
            getattr(text, "head_dim", None) or width // heads,
            text.intermediate_size,
            text.vocab_size,
            tied=bool(text.tie_word_embeddings),
        )
    except AttributeError as error:
        raise FocusError(f"The costs of a {text.model_type} are not known: choose a model of Llama's form.") from error


def find_shape(model: str) -> ModelShape:
    """A shape by its short name, or that of a model.

    Args:
        model: a name of `SHAPES`, "default", a folder or JSON file with a configuration, or a hub id.

    Raises:
        FocusError: there is no such model, or it has another form than Llama's.
    """
    if model.lower() in SHAPES:
        return SHAPES[model.lower()]
    from focus_core.training.parallel.plan import model_configuration

    return shape_of(model_configuration(model), Path(model).name)

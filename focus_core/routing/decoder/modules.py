"""The attention modules of a Transformers decoder, and what they say of themselves."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn
from transformers import PreTrainedModel

from focus_core.errors import FocusError
from focus_core.routing.decoder.interface import NAME


def decoder_layers(model: PreTrainedModel, attention: Mapping[int, nn.Module]) -> dict[int, nn.Module]:
    """The modules that hold those of attention, by layer index."""
    names = {module: name for name, module in model.named_modules()}
    return {layer: model.get_submodule(names[module].rpartition(".")[0]) for layer, module in attention.items()}


def attention_modules(model: PreTrainedModel) -> dict[int, nn.Module]:
    """The causal self-attention modules of a decoder by layer index.

    Transformers marks them: every module that calls the attention interface has `layer_idx` and `is_causal`.

    Raises:
        FocusError: a model that cannot be retrofitted, or already is.
    """
    name = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        # What load_model returns, or a model with routers.
        if isinstance(getattr(model, "model", None), PreTrainedModel):
            raise FocusError(f"{name} holds a model and is none: give its .model.")
        raise FocusError(f"{name} is not a Transformers model: load one with focus_core.load_model.")
    if model.config._attn_implementation == NAME:
        raise FocusError(f"This {name} already has routers: detach them first.")
    if getattr(model.config, "is_encoder_decoder", False):
        raise FocusError(f"{name} is an encoder-decoder model: Focus needs a decoder-only language model.")
    if not model._supports_attention_backend:
        raise FocusError(
            f"{name} does not support the Transformers attention interface, so Focus cannot route it: "
            "choose another model family, such as Llama, GPT-2, Mistral, Qwen2 or Gemma."
        )
    modules: dict[int, nn.Module] = {}
    for module in model.modules():
        layer = getattr(module, "layer_idx", None)
        if isinstance(layer, int) and getattr(module, "is_causal", None) is True:
            if any(getattr(child, "is_causal", None) is not None for child in module.children()):
                continue
            modules[layer] = module
    if not modules:
        raise FocusError(f"{name} has no causal self-attention layers: Focus needs a decoder-only language model.")
    return dict(sorted(modules.items()))

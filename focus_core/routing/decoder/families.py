"""What attention modules of some families of models do otherwise than others."""

from __future__ import annotations

from torch import nn

_ROTATE_IN_WINDOWS = ("Afmoe", "Cohere2", "Exaone4", "ExaoneMoe", "Flint", "Kolibri1")
"""Families that rotate no keys in layers without a window, where other layers have one."""


def own_window(module: nn.Module) -> int | None:
    """The sliding window of an attention module, in tokens; None without.

    Settings with a list of layer types say which layers have one: a module may hold the window of others (EXAONE 4), or
    leave it to its mask (Phi-MoE). Without a list most modules say it themselves; the others (Mistral, Phi-3) read it
    from their settings.
    """
    config = getattr(module, "config", None)
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        window = module.__dict__.get("sliding_window", window)
    elif kinds[module.layer_idx] != "sliding_attention":
        return None
    return window or None


def rotates(module: nn.Module) -> bool:
    """Whether an attention module turns its queries and keys by the rotary embedding that it is given."""
    if type(module).__name__.startswith(_ROTATE_IN_WINDOWS) and not getattr(module, "force_rope", False):
        return own_window(module) is not None or getattr(module.config, "sliding_window", None) is None
    return getattr(module, "use_rope", True)  # SmolLM3 and Llama 4 have layers without

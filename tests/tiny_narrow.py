"""Tiny models with attention that matters, and what holds for narrow groups on any of them."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from focus_core import FocusConfig, FocusModel
from focus_core.routing.cache import given_cache
from focus_core.routing.narrow.fitting.fit import fit_narrow
from focus_core.routing.rules import AttentionCall, Rule, attend_fully, hard_groups

SMALL: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0,
}  # fmt: skip
FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=256)),
}


def model(name: str = "llama") -> Any:
    """One of the `FAMILIES`, with weights four times as large as usual."""
    torch.manual_seed(0)
    found = FAMILIES[name]().eval()
    for parameter in found.parameters():
        parameter.data.mul_(4)
    return found


def blocks(number: int = 2, length: int = 120, seed: int = 1) -> np.ndarray:
    """(number, length) random tokens."""
    return torch.randint(2, 95, (number, length), generator=torch.Generator().manual_seed(seed)).numpy()


_FITTED = TemporaryDirectory()


def fitted(model: Any, ids: np.ndarray, config: FocusConfig) -> FocusModel:
    """`fit_narrow`; what an earlier test of this process fitted to such a model and text is attached again."""
    digest = sha256(repr(config).encode() + np.ascontiguousarray(ids).tobytes())
    for name, parameter in model.state_dict().items():
        digest.update(name.encode() + parameter.float().numpy().tobytes())
    folder = Path(_FITTED.name, digest.hexdigest())
    if folder.exists():
        return FocusModel.from_pretrained(model, folder)
    focus = fit_narrow(model, ids, config)
    focus.save_pretrained(folder)
    return focus


def calls_of(focus: FocusModel, ids: torch.Tensor) -> dict[int, AttentionCall]:
    """The attention call of every layer, under full attention."""
    calls = {}

    def attend(call: AttentionCall) -> Any:
        calls[call.layer] = call
        return attend_fully(call)

    with torch.no_grad(), focus.routing("hard", rule=Rule(attend, hard_groups)):
        focus.model.base_model(input_ids=ids, use_cache=False)
    return calls


def assert_a_share_of_one_is_the_untouched_model(focus: FocusModel) -> None:
    """Whatever decides what is read, all pairs are all pairs."""
    ids = torch.from_numpy(blocks(1, seed=7))
    with torch.no_grad():
        with focus.routing("off"):
            expected = focus(ids, use_cache=False).logits
        with focus.routing("hard", read_share=1.0):
            assert torch.allclose(focus(ids, use_cache=False).logits, expected, atol=2e-4)


def assert_padding_and_a_cache_change_nothing(focus: FocusModel) -> None:
    """In front of a text, and with eight tokens that follow it one by one."""
    ids = torch.from_numpy(blocks(2, 90, seed=3))
    mask = torch.ones_like(ids)
    mask[0, :17] = 0
    with torch.no_grad():
        expected = focus(ids[:1, 17:], use_cache=False).logits
        found = focus(ids, attention_mask=mask, use_cache=False).logits[:1, 17:]
        assert torch.allclose(found, expected, atol=2e-4)
        expected = focus(ids[1:], use_cache=False).logits[:, -8:]
        first = focus(ids[1:, :-8], use_cache=True)
        steps = [
            focus(ids[1:, place : place + 1], past_key_values=given_cache(first), use_cache=True).logits
            for place in range(82, 90)
        ]
        assert torch.allclose(torch.cat(steps, 1), expected, atol=2e-4)

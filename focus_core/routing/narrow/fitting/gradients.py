"""How predictions move with the output of each attention call: gradients of drawn next tokens, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from focus_core.attention import AttentionOutput
from focus_core.routing.model import FocusModel
from focus_core.routing.rules import AttentionCall, Rule, attend_fully, hard_groups

if TYPE_CHECKING:
    from jaxtyping import Float, Int

MOST_LOGITS = 2**28
"""Logits that are held at once, 1 GiB of them in float32; in longer texts predictions of fewer tokens are drawn."""


def calls_with_gradients(
    focus: FocusModel, ids: Int[Tensor, "1 T"], *, generator: torch.Generator
) -> Iterator[tuple[AttentionCall, Float[Tensor, "N Hq T Dv"]]]:
    """Attention calls of one text, the last layer first, each with a gradient with respect to its output.

    The gradient is that of the log-likelihood of next tokens drawn from the model's own predictions. For a small change
    d of an output, E[(gradient . d)^2] / 2 is the divergence of the predictions, KL(before || after), summed over the
    tokens of the text: the gradients' second moment is the Fisher information. All calls are of full attention.

    The layers run once more for the backward pass, one after another, so memory holds the activations of one layer. The
    order of layers is that of the modules beside them, and each is taken to see the output of the one before alone.

    Args:
        focus: routers; their groups are in the calls, and change nothing.
        ids: one text.
        generator: of the drawn tokens, on the device of the ids.
    """
    blocks = _blocks(focus)
    inputs: dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]] = {}
    calls: dict[str, tuple[AttentionCall, Tensor]] = {}

    def attend(call: AttentionCall) -> AttentionOutput:
        found = _attend(call)
        calls["now"] = call, found.output
        return found

    def remember(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs[block] = args, kwargs

    with ExitStack() as hooks, torch.enable_grad(), focus.routing("hard", rule=Rule(attend, hard_groups)):
        ends: list[Tensor] = []

        def cut(_: nn.Module, __: Any, output: Any) -> Any:
            ends.append(_first(output).detach().requires_grad_())
            return (ends[0], *output[1:]) if isinstance(output, tuple) else ends[0]

        handles = [block.register_forward_pre_hook(remember, with_kwargs=True) for block in blocks]
        for handle in (*handles, blocks[-1].register_forward_hook(cut)):
            hooks.callback(handle.remove)
        gradient = _drawn(focus, ids, ends, generator)
    for block in reversed(blocks):
        args, kwargs = inputs.pop(block)
        states = (args[0] if args else kwargs["hidden_states"]).detach().requires_grad_()
        args, kwargs = ((states, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": states})
        calls.clear()
        with torch.enable_grad(), focus.routing("hard", rule=Rule(attend, hard_groups)):
            output = _first(block(*args, **kwargs))
            call, attended = calls.get("now", (None, states))
            gradient, moves = torch.autograd.grad(output, (states, attended), gradient)
        if call is not None:
            yield call, moves


def _drawn(focus: FocusModel, ids: Tensor, ends: list[Tensor], generator: torch.Generator) -> Tensor:
    """(1, T, d): the gradient with respect to the last layer's output, which `ends` holds after the forward pass."""
    length = ids.shape[1]
    # One token of `every`: its gradient stands for the others, so its square must count `every` times.
    every = -(-length * focus.model.config.get_text_config().vocab_size // MOST_LOGITS)
    places = torch.arange(length - 1, -1, -every, device=ids.device).flip(0)
    logits = focus.model(input_ids=ids, use_cache=False, logits_to_keep=places).logits
    chances = logits[0].float().log_softmax(-1)
    tokens = torch.multinomial(chances.detach().exp(), 1, generator=generator)
    return torch.autograd.grad(chances.gather(-1, tokens).sum() * every**0.5, ends[0])[0]


def _attend(call: AttentionCall) -> AttentionOutput:
    """Full attention, by PyTorch's fused kernels where they can: these have the faster gradient."""
    geometry = call.geometry
    if geometry.softcap is not None or geometry.sliding_window is not None:
        return attend_fully(call)
    output = F.scaled_dot_product_attention(
        call.query, call.key, call.value, is_causal=True, scale=geometry.scale, enable_gqa=True
    )
    return AttentionOutput(output, output[..., 0])  # nobody asks for the logsumexp of whole texts


def _blocks(focus: FocusModel) -> list[nn.Module]:
    """All decoder layers in their order, with those that have no router."""
    routed = set(focus.decoder_layers.values())
    lists = (list(module) for module in focus.model.modules() if isinstance(module, nn.ModuleList))
    return next((blocks for blocks in lists if routed <= set(blocks)), list(focus.decoder_layers.values()))


def _first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output

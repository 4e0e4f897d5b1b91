"""Keys before position encoding: the rotation that a model applied to its keys, taken back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from focus_core.errors import FocusError

if TYPE_CHECKING:
    from jaxtyping import Float


def before_rotation(
    key: Float[Tensor, "B Hkv T D"], position_embeddings: tuple[Tensor, Tensor] | None
) -> Float[Tensor, "B Hkv T D"]:
    """Keys as they were before rotary embedding, in the key's dtype or float32, whichever is wider.

    Families lay out the cosines in three ways: once for each half of the width (Llama, Qwen, Gemma), twice in a row
    (Cohere), or without the repetition (GPT-OSS). Width beyond the cosines is not rotated.

    Args:
        key: as attention gets them.
        position_embeddings: cosines and sines, (B or 1, T, r) each, as Transformers gives them to attention modules;
            None for a model without rotary embedding.

    Raises:
        FocusError: position embeddings of another form.
    """
    if position_embeddings is None:
        return key
    if not isinstance(position_embeddings, tuple) or any(part.ndim != 3 for part in position_embeddings):
        raise FocusError(
            "Narrow groups need keys before rotary embedding, and this model rotates them in a way that Focus does not "
            "know: use router='head'."
        )
    compute = torch.promote_types(key.dtype, torch.float32)
    cos, sin = (part[:, None].to(key.device, compute) for part in position_embeddings)
    first, second = cos.chunk(2, -1)
    in_a_row = False
    if not torch.equal(first, second):
        in_a_row = torch.equal(cos[..., ::2], cos[..., 1::2])
        if not in_a_row:
            cos, sin = (torch.cat([part, part], -1) for part in (cos, sin))
    # Some families scale both by a factor; dividing by its square gives the unscaled key.
    squares = cos.square() + sin.square()
    cos, sin = cos / squares, sin / squares
    turned, rest = key.to(compute).tensor_split([cos.shape[-1]], -1)
    plain = turned * cos
    if in_a_row:
        halves = slice(0, None, 2), slice(1, None, 2)
    else:
        middle = cos.shape[-1] // 2
        halves = slice(middle), slice(middle, None)
    # In place: each pass over the keys of a long text takes its time.
    for own, other, sign in ((halves[0], halves[1], 1), (halves[1], halves[0], -1)):
        plain[..., own].addcmul_(turned[..., other], sin[..., own], value=sign)
    return torch.cat([plain, rest], -1) if rest.shape[-1] else plain

"""Keys before position encoding: the rotation that a model applied to its keys, taken back."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from focus_core.errors import FocusError

if TYPE_CHECKING:
    from jaxtyping import Float


class RotatedPairs(NamedTuple):
    """Which components of a key are turned together; number p of these pairs is turned by one angle.

    Attributes:
        number: of pairs; the components beyond twice as many stay as they are.
        step: the first component of pair p is p `step`.
        apart: the second one is so far behind the first.
        angle_step: cosine and sine of pair p are at p `angle_step`.
    """

    number: int
    step: int
    apart: int
    angle_step: int


def rotated_pairs(position_embeddings: tuple[Tensor, Tensor]) -> RotatedPairs:
    """The layout of rotary embedding, told by its cosines.

    Families lay them out in three ways: once for each half of the width (Llama, Qwen, Gemma), twice in a row (Cohere),
    or without the repetition (GPT-OSS).

    Args:
        position_embeddings: cosines and sines, (B or 1, T, r) each, as Transformers gives them to attention modules.

    Raises:
        FocusError: position embeddings of another form.
    """
    if not isinstance(position_embeddings, tuple) or any(part.ndim != 3 for part in position_embeddings):
        raise FocusError(
            "Narrow groups need keys before rotary embedding, and this model rotates them in a way that Focus does not "
            "know: use router='head'."
        )
    cos = position_embeddings[0]
    width = cos.shape[-1]
    half = width // 2
    if width % 2 == 0 and torch.equal(cos[..., :half], cos[..., half:]):
        return RotatedPairs(half, 1, half, 1)
    if width % 2 == 0 and torch.equal(cos[..., ::2], cos[..., 1::2]):
        return RotatedPairs(half, 2, 1, 2)
    return RotatedPairs(width, 1, width, 1)


def before_rotation(
    key: Float[Tensor, "B Hkv T D"], position_embeddings: tuple[Tensor, Tensor] | None
) -> Float[Tensor, "B Hkv T D"]:
    """Keys as they were before rotary embedding, in the key's dtype or float32, whichever is wider.

    Width beyond the cosines is not rotated.

    Args:
        key: as attention gets them.
        position_embeddings: see `rotated_pairs`; None for a model without rotary embedding.

    Raises:
        FocusError: position embeddings of a form that is not known.
    """
    if position_embeddings is None:
        return key
    pairs = rotated_pairs(position_embeddings)
    compute = torch.promote_types(key.dtype, torch.float32)
    angles = slice(0, pairs.number * pairs.angle_step, pairs.angle_step)
    cos, sin = (part[:, None, :, angles].to(key.device, compute) for part in position_embeddings)
    # Some families scale both by a factor; dividing by its square gives the unscaled key.
    squares = cos.square() + sin.square()
    cos, sin = cos / squares, sin / squares
    places = [slice(start, start + pairs.number * pairs.step, pairs.step) for start in (0, pairs.apart)]
    plain = key.to(compute, copy=True)
    first, second = (key[..., each].to(compute) for each in places)
    plain[..., places[0]] = torch.addcmul(first * cos, second, sin)
    plain[..., places[1]] = torch.addcmul(second * cos, first, sin, value=-1)
    return plain

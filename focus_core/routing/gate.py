"""The gates of training, which weaken distant logits by affinity. A new one is a function and a line in `GATES`."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F

Gate = Callable[[Tensor, Tensor, float, float], Tensor]
"""Maps logits (..., Tq, T), affinity of the same shape, sharpness lambda and threshold theta to gated logits."""


def paper(logits: Tensor, affinity: Tensor, sharpness: float, threshold: float) -> Tensor:
    """The printed form (arXiv 2604.03260, eq. 2): logit * sigmoid(lambda a).

    sigmoid(0) is 1/2, so a pair without affinity keeps half its logit and never disappears.
    """
    return logits * (sharpness * affinity).sigmoid()


def log(logits: Tensor, affinity: Tensor, sharpness: float, threshold: float) -> Tensor:
    """logit + log sigmoid(lambda (a - theta)): tends to the hard mask as lambda grows."""
    return logits + F.logsigmoid(sharpness * (affinity - threshold))


GATES: dict[str, Gate] = {"log": log, "paper": paper}
"""Gates by their name in `FocusConfig.gate`."""

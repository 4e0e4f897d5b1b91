"""Quality under a routing, always with the shares of pairs that it keeps."""

from focus_core.evaluation.compare import Difference, Leak, leaks, perplexity_difference
from focus_core.evaluation.lengths import LengthRow, length_transfer
from focus_core.evaluation.perplexity import Evaluation, evaluate, standard_settings

__all__ = [
    "Difference",
    "Evaluation",
    "Leak",
    "LengthRow",
    "evaluate",
    "leaks",
    "length_transfer",
    "perplexity_difference",
    "standard_settings",
]

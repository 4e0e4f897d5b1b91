"""Quality under a routing, always with the shares of pairs that it keeps."""

from focus_core.evaluation.compare import Difference, Leak, leaks, perplexity_difference
from focus_core.evaluation.lengths import LengthRow, length_transfer
from focus_core.evaluation.perplexity import Evaluation, evaluate, settings_for, standard_settings
from focus_core.evaluation.retention import Retention, retention

__all__ = [
    "Difference",
    "Evaluation",
    "Leak",
    "LengthRow",
    "Retention",
    "evaluate",
    "leaks",
    "length_transfer",
    "perplexity_difference",
    "retention",
    "settings_for",
    "standard_settings",
]

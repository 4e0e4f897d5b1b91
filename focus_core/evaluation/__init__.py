"""What a routing costs in quality, with the shares that make the number mean something."""

from focus_core.evaluation.perplexity import Evaluation, evaluate, standard_settings

__all__ = ["Evaluation", "evaluate", "standard_settings"]

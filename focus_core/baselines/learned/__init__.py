"""Learned selections of a frozen model, trained on its own attention: one file each, and their training.

A learner is a module for one layer. Its `loss` compares it with the attention of some queries, a `Lesson`. The function
beside it selects pairs for a `Case` that holds the learner as `fitted`.
"""

from __future__ import annotations

from focus_core.baselines.learned.indexer import Indexer, indexer_keys
from focus_core.baselines.learned.lesson import Learner
from focus_core.baselines.learned.seer import BlockGates, seer_keys

LEARNERS: dict[str, type[Learner]] = {"seer": BlockGates, "indexer": Indexer}
"""Learners by name of the baseline."""

__all__ = ["LEARNERS", "BlockGates", "Indexer", "Learner", "indexer_keys", "seer_keys"]

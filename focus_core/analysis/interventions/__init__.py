"""Causal experiments on routed attention: remove, force, restore or swap links, and compare with random ones.

A link is a pair of a query and a key beyond its window that routing reads, exactly or through a summary. Everything
here is pure: models come in, arrays go out, and no state stays on a model.
"""

from focus_core.analysis.interventions.edits import Edit, Intervention, cut, force, knock_out, restore
from focus_core.analysis.interventions.experiment import Change, Experiment, intervening
from focus_core.analysis.interventions.links import Links, Site, link_weights

__all__ = [
    "Change",
    "Edit",
    "Experiment",
    "Intervention",
    "Links",
    "Site",
    "cut",
    "force",
    "intervening",
    "knock_out",
    "link_weights",
    "restore",
]

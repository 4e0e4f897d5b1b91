"""Cluster reports: what is in each group of each layer, as data and as files.

`statistics` accumulates, `build` turns what was accumulated into a `Report`, `html`, `frames` and `bundle` write it;
`corpus` and `stream` do the same for texts of any length in bounded memory.
"""

from focus_core.report.model import SECTIONS, Card, Report
from focus_core.report.statistics import Block, Statistics

__all__ = ["SECTIONS", "Block", "Card", "Report", "Statistics"]

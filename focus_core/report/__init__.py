"""Cluster reports: the contents of each group of each layer, as data and as files.

`statistics` sums over tokens, `build` turns the sums into a `Report`, and `html`, `frames` and `bundle` write it.
`corpus` and `stream` feed texts of any length in bounded memory.
"""

from focus_core.report.corpora.statistics import Block, Statistics
from focus_core.report.model import SECTIONS, Card, Report

__all__ = ["SECTIONS", "Block", "Card", "Report", "Statistics"]

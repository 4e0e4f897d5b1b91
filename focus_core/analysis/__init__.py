"""Analysis of a routed text: its trace, and the tables and statistics computed from it."""

from focus_core.analysis.trace import Provenance, Trace, analyze

__all__ = ["Provenance", "Trace", "analyze"]

"""What the routers do with a text: the routing trace and what is computed from it."""

from focus_core.analysis.trace import Provenance, Trace, analyze

__all__ = ["Provenance", "Trace", "analyze"]

"""Exact group-sparse attention on a CPU, from calls of its flash kernel."""

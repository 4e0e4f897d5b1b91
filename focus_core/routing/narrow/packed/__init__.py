"""Narrow groups as variable-length attention calls on a GPU."""

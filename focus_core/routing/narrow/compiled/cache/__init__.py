"""Compiled loops over the cache of narrow groups: storing, and attention of the last tokens."""

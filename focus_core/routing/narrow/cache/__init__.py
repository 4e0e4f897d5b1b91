"""Narrow groups with a cache: distant keys and values by page, and attention of the tokens that follow."""

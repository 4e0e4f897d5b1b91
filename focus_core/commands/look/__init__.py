"""Commands that look at groups."""

"""Statistics of two labellings of the same things: agreement, its intervals, and matched labels."""

"""The published tables and figures, one function for each cell."""

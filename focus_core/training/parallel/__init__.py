"""Runs of several processes: their memory, their command, and weights divided among them."""

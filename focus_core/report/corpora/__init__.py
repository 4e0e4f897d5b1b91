"""Corpora of any length, routed block by block: sections, sums, traces, and work on a cluster."""

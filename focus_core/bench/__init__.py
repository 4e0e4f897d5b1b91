"""Timings: one attention call, the baselines, the whole model."""

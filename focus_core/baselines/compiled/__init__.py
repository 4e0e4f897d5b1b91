"""Compiled loops of the baselines over rows: choosing keys, softmax over kept pairs, and counting pairs."""

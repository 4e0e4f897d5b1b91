"""Attention over narrow groups in compiled loops for CPUs; `narrow_attention` calls it where it can."""

"""Exact group-sparse attention as variable-length FlashAttention calls (arXiv 2604.03260, Appendix D)."""

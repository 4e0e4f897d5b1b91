"""Routed models under the LM evaluation harness: scores, always with the share of pairs that routing can remove."""

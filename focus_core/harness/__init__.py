"""Routed models under the LM evaluation harness, and scores beside how much routing could touch."""

"""Cached calls into the engine, shared by all sessions."""

"""Routers on a model: settings, scores (eq. 1), Sinkhorn balance, the training gate (eq. 2), attaching and storing."""

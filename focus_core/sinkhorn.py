"""The "Sinkhorn box" of arXiv 2604.03260 under its public name; see `focus_core.routing.sinkhorn`."""

from focus_core.routing.sinkhorn import column_potentials, marginal_error, potential_softmax, sinkhorn

__all__ = ["column_potentials", "marginal_error", "potential_softmax", "sinkhorn"]

"""View models and charts of the Sparsity page."""

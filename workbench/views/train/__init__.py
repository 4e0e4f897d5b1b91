"""View models and charts of the Train page."""

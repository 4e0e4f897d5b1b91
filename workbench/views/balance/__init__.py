"""View models and charts of the Balance page."""

"""View models and charts of the Effects page."""

"""View models and charts of the Attention page."""

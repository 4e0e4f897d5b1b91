"""View models and charts of the Find page."""

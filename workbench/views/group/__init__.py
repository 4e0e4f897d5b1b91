"""View models and charts of the Group page."""

"""View models and charts of the Speed page."""

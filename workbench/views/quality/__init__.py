"""View models and charts of the Quality page."""

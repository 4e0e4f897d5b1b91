"""View models and charts of the Layers page."""

"""View models and charts of the Report page."""

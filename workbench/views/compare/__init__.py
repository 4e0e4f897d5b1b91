"""View models and charts of the Compare page."""

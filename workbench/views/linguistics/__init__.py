"""View models and charts of the Linguistics page."""

"""View models and charts of the Explore page."""

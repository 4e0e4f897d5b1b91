"""View models and charts, one folder for each page."""

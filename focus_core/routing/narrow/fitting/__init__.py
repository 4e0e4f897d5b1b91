"""What fits narrow groups to a model: centroids, weights of spread, thresholds."""

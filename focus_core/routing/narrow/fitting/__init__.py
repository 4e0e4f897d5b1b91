"""What fits narrow groups to a model: centroids, weights of spread, shares by need."""

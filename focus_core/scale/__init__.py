"""Cost on paper: FLOPs, bytes and network of a model of any size, the times that follow, and where sparsity pays."""

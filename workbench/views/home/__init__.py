"""The first page: the figure, the results and the tour."""

"""View models of tokens: cells of the strip, and what a token reaches."""

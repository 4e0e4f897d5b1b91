"""View models of tokens: tables of tokens, and the tokens that a token reads."""

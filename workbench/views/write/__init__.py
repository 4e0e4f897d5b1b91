"""The Write page: two models continue one prompt, token by token."""

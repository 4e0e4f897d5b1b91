"""Serving: a folder that names a base model and its routers, and Transformers' own server over it."""

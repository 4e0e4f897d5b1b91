"""Centroid-only training: the routers learn, the base model stays as it is."""

from focus_core.training.loop import TrainSettings, train

__all__ = ["TrainSettings", "train"]

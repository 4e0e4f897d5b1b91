"""Training of routers: alone on a frozen base model, or together with its weights."""

from focus_core.training.loop import TrainSettings, train

__all__ = ["TrainSettings", "train"]

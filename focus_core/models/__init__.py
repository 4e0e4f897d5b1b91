"""From a name, a folder or a GGUF file to a decoder and its tokenizer."""

from focus_core.models.loading import LoadedModel, ModelInfo, load_model

__all__ = ["LoadedModel", "ModelInfo", "load_model"]

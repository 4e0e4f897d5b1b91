"""Loading of decoders and their tokenizers: the default model, folders, GGUF files and hub ids."""

from focus_core.models.loading import LoadedModel, ModelInfo, load_model

__all__ = ["LoadedModel", "ModelInfo", "load_model"]

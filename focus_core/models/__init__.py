"""Loading of decoders and their tokenizers: the default model, folders, GGUF files and hub ids."""

from focus_core.models.loading import LoadedModel, ModelInfo, load_model
from focus_core.models.positions import check_positions

__all__ = ["LoadedModel", "ModelInfo", "check_positions", "load_model"]

"""Models and tokenizers from GGUF files, de-quantised."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from focus_core.errors import FocusError

_LOADING = Lock()


def load_gguf(path: Path, dtype: torch.dtype = torch.float32) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """De-quantise a GGUF file into an ordinary Transformers model that can be saved.

    Args:
        path: the file.
        dtype: of the de-quantised weights.

    Raises:
        FocusError: the file is damaged or of an architecture that Transformers cannot read.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise FocusError(f"{path} is not a GGUF file: give a model folder, a .gguf file or a hub id.")
    try:
        with quiet_transformers(), _parsed_once():
            tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
            model = AutoModelForCausalLM.from_pretrained(
                path.parent, gguf_file=path.name, dtype=dtype, quantization_config=GgufConfig(dequantize=True)
            )
            _split_digits_where_the_file_says_so(tokenizer, path)
    except Exception as error:  # the readers raise errors of many types
        raise FocusError(
            f"Cannot read {path}: it is damaged, or of a kind that Transformers cannot read ({first_line(error)}):"
            " choose another file."
        ) from error
    # Both mark the model as quantised, which save_pretrained refuses; its weights are de-quantised now.
    model.__dict__["hf_quantizer"] = None
    model.config.__dict__.pop("quantization_config", None)
    return model, tokenizer


def _split_digits_where_the_file_says_so(tokenizer: PreTrainedTokenizerBase, path: Path) -> None:
    """Restore a step that Transformers drops from GGUF tokenizers of the "smollm" kind: every digit alone.

    Without it, spaces before a number are tokenised differently than in the training of the model.
    """
    from gguf import GGUFReader
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    field = GGUFReader(str(path)).get_field("tokenizer.ggml.pre")
    if field is not None and field.contents() == "smollm":
        backend: Any = tokenizer.backend_tokenizer
        backend.pre_tokenizer = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])


@contextmanager
def _parsed_once() -> Iterator[None]:
    """Parse a file once, not four times: for a vocabulary of 150,000 tokens each takes seconds."""
    import gguf

    with _LOADING:
        reader = gguf.GGUFReader
        gguf.GGUFReader = cast(Any, functools.cache(reader))
        try:
            yield
        finally:
            gguf.GGUFReader = reader


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep Transformers' bars and harmless warnings out of the terminal; errors still come as exceptions."""
    from transformers import modeling_gguf_pytorch_utils
    from transformers.utils import logging as transformers_logging

    gguf_module: Any = modeling_gguf_pytorch_utils
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    gguf_bar = getattr(gguf_module, "tqdm", None)  # this one ignores disable_progress_bar
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    if gguf_bar is not None:
        gguf_module.tqdm = functools.partial(gguf_bar, disable=True)
    try:
        yield
    finally:
        if gguf_bar is not None:
            gguf_module.tqdm = gguf_bar
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


def first_line(error: Exception) -> str:
    """The first line of an error, to quote in a sentence."""
    text = str(error).strip().splitlines()
    return (text[0].rstrip(".:") if text else type(error).__name__)[:160]

"""Hashes of what decides a model's results beside its weights: its configuration and its tokenizer."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from focus_core.io.reading import file_sha256, read_json, regular
from focus_core.io.schema import table

_NOISE = ("transformers_version", "torch_dtype", "dtype", "name_or_path", "use_cache")
"""Entries that the version or the place of a model decides, and no result."""
_TOKENIZER = ("tokenizer", "vocab", "merges", "added_tokens", "special_tokens", "chat_template")


def folder_configuration(folder: Path) -> str:
    """A short hash of a folder's configuration and tokenizer files, which `weights_revision` does not cover.

    Raises:
        FocusError: the configuration is no JSON.
    """
    parts = [_hash(_settled(read_json(folder / "config.json", table(), finite=False)))]
    for path in sorted(folder.iterdir()):
        if path.name.startswith(_TOKENIZER) and path.is_file():
            settings = path.name == "tokenizer_config.json"
            content = _hash(_settled(read_json(path, finite=False))) if settings else file_sha256(regular(path))
            parts.append(f"{path.name} {content}")
    return _hash(parts)[:12]


def model_configuration(model: PreTrainedModel) -> str:
    """A hash of a loaded model's configuration; training may set its special tokens, which are left out."""
    config = _settled(model.config.to_dict())
    return _hash({name: value for name, value in config.items() if not name.endswith("_token_id")})


def _settled(value: Any) -> Any:
    """Plain values without private entries and `_NOISE`, at any depth."""
    if isinstance(value, dict):
        kept = {str(name): each for name, each in value.items()}
        return {name: _settled(each) for name, each in kept.items() if name not in _NOISE and not name.startswith("_")}
    return [_settled(each) for each in value] if isinstance(value, (list, tuple)) else value


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()

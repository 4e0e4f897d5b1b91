"""Loads a decoder and its tokenizer by name, from a folder, a GGUF file or the hub."""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import struct
import urllib.parse
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from focus_core.errors import FocusError
from focus_core.io.reading import parse_json, read_json, regular
from focus_core.io.schema import anything, array, maybe, number, table, whole
from focus_core.models import default_model
from focus_core.models.configuration import folder_configuration
from focus_core.models.gguf import first_line, load_gguf, quiet_transformers
from focus_core.progress import Progress, terminal_progress

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelInfo:
    """Which model this is; shown beside every result.

    Attributes:
        name: the default model's name, a hub id, or the name of a folder or file. Without its path, which would tell
            whose machine a shared result comes from.
        source: "default", "folder", "gguf" or "hub".
        revision: 12 hex digits that identify the weights. The commit on the hub; the SHA-256 of a GGUF file, also for
            the default model, which is made from one; `weights_revision` of a folder.
        class_name: the Transformers class, such as "LlamaForCausalLM".
        num_parameters: distinct parameters, tied ones counted once.
        configuration: of a folder 12 hex digits of its configuration and tokenizer, see `folder_configuration`; empty
            where the revision covers them.
    """

    name: str
    source: str
    revision: str
    class_name: str
    num_parameters: int
    configuration: str = ""

    @property
    def identity(self) -> dict[str, str]:
        """What tells this model from others in records: its name and hashes."""
        own = {"configuration": self.configuration} if self.configuration else {}
        return {"name": self.name, "revision": self.revision, **own}


DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
"""Types of loaded weights."""


class LoadedModel(NamedTuple):
    """A decoder in eval mode, its tokenizer, and their origin."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    info: ModelInfo


def load_model(
    name: str | Path | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    trust_remote_code: bool = False,
    progress: Progress | None = None,
) -> LoadedModel:
    """Load a decoder-only language model.

    Args:
        name: a local folder in Transformers' format, a `.gguf` file, or a hub id such as "gpt2"; a local path wins over
            a hub id. None, "default" or "SmolLM2-135M-Instruct" for the default model, which is fetched on first use.
            "HuggingFaceTB/SmolLM2-135M-Instruct" is the hub's own model. Without the hub it becomes, with a warning,
            the default model, which has the same weights rounded to 4 bits.
        dtype: of the loaded weights.
        device: of the loaded weights.
        trust_remote_code: run code that comes with the model. Leave it off unless you have read that code.
        progress: told of every step; by default a fetch is shown on stderr.

    Returns:
        `(model, tokenizer, info)`, the model in eval mode.

    Raises:
        FocusError: an unknown dtype, or the model is missing, not a decoder, damaged, without safetensors weights, or
            without a tokenizer.
    """
    spelling = str(name) if name is not None else "default"
    if not spelling.strip():
        raise FocusError("The name of the model is empty: give default, a folder, a .gguf file or a hub id.")
    if dtype not in DTYPES:
        raise FocusError(f"dtype is {dtype!r}: choose one of {', '.join(map(str, DTYPES))}.")
    path = Path(spelling).expanduser()
    if spelling in ("default", default_model.NAME):
        loaded = _load_default(dtype, progress)
    elif path.is_file() or path.suffix == ".gguf":
        loaded = _load_gguf_file(path, spelling, dtype)
    elif path.is_dir():
        loaded = _load_folder(path, spelling, dtype, trust_remote_code)
    elif looks_like_a_path(spelling):
        raise FocusError(f"There is no model folder or GGUF file at {spelling}: check the path.")
    else:
        loaded = _load_hub(spelling, dtype, trust_remote_code, progress)
    try:
        loaded.model.to(device)  # type: ignore[arg-type]
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise FocusError(f"Cannot put the model on device {str(device)!r}: {reason}.") from error
    loaded.model.eval()
    if loaded.info.source != "default":  # its files are verified
        _check_finite(loaded.model, spelling)
    return loaded


def _check_finite(model: PreTrainedModel, spelling: str) -> None:
    """Refuse weights that are not finite; only the main process of a run is sure to have them all."""
    if os.environ.get("RANK", "0") != "0":
        return
    for name, tensor in model.named_parameters():
        if tensor.is_floating_point() and not tensor.is_meta and tensor.numel():
            low, high = tensor.detach().aminmax()
            if not bool(low.isfinite() & high.isfinite()):
                raise FocusError(f"{spelling} has weights that are not finite, such as {name}: get the model again.")


def weights_revision(folder: Path) -> str:
    """A short hash of a folder's safetensors files: headers, sizes and 256 evenly spaced samples of each.

    Fast for any size (about a megabyte is read per file) and the same on every machine. Any training step that moves
    the weights changes it. Not a protection against deliberate tampering.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            header_length = struct.unpack("<Q", file.read(8))[0]
            digest.update(file.read(header_length))
            for sample in range(256):
                file.seek(8 + header_length + (size - 8 - header_length) * sample // 256)
                digest.update(file.read(4096))
    return digest.hexdigest()[:12]


_TENSOR = table({"data_offsets": array(whole(0), least=2, longest=2)})
_HEADER = table(optional={"__metadata__": anything}, values=_TENSOR)
_LAYERS, _SIZE = maybe(whole(0, 10_000)), maybe(number(0, 2**31))
_SIZES = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers"), _LAYERS),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "intermediate_size", "vocab_size"), _SIZE),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_key_value_heads", "head_dim"), _SIZE),
}
_CONFIGURATION = table(optional={**_SIZES, "text_config": maybe(table(optional=_SIZES))})


def check_configuration(path: Path) -> None:
    """Read a model's configuration, and refuse sizes that no model has; building such a model would fill the memory.

    Raises:
        FocusError: no JSON, or a size out of range.
    """
    read_json(path, _CONFIGURATION, finite=False)


def revision_of(name: str) -> str:
    """The name of a model with the hash of its files, where they are here; they are not loaded."""
    path = Path(name).expanduser()
    if path.is_file():
        return f"{path.name} {default_model.file_sha256(path)[:12]}"
    if not path.is_dir():
        return name
    return f"{path.resolve().name} {weights_revision(path)} {folder_configuration(path)}"


def check_safetensors(path: Path) -> None:
    """Read a safetensors header and compare it with the file's size; the weights are not read.

    Raises:
        FocusError: the file is truncated or is no safetensors file.
    """
    size = regular(path).stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if 8 + length > size:
            raise FocusError(f"{path} is truncated or not a safetensors file: get it again.")
        try:
            header = parse_json(file.read(length), str(path), _HEADER)
        except FocusError as error:
            raise FocusError(f"{path} is not a safetensors file: its header cannot be read.") from error
        ends = [entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"]
    if 8 + length + max(ends, default=0) != size:
        expected = 8 + length + max(ends, default=0)
        raise FocusError(f"{path} is truncated: it has {size:,} of {expected:,} bytes, so get it again.")


def _load_default(dtype: torch.dtype, progress: Progress | None) -> LoadedModel:
    if progress is not None:
        folder = default_model.fetch_default_model(progress)
    else:
        with terminal_progress() as shown:
            folder = default_model.fetch_default_model(shown)
    model, tokenizer = _from_pretrained(folder, str(folder), dtype, trust_remote_code=False)
    return LoadedModel(model, tokenizer, _info(model, default_model.NAME, "default", default_model.REVISION))


def _load_gguf_file(path: Path, spelling: str, dtype: torch.dtype) -> LoadedModel:
    if not path.exists():
        raise FocusError(f"There is no GGUF file at {spelling}: check the path.")
    revision = default_model.file_sha256(regular(path))[:12]
    model, tokenizer = load_gguf(path, dtype)
    return LoadedModel(model, _usable(tokenizer, spelling), _info(model, path.name, "gguf", revision))


def _load_folder(folder: Path, spelling: str, dtype: torch.dtype, trust_remote_code: bool) -> LoadedModel:
    if not (folder / "config.json").exists():
        hint = ", or give the .gguf file itself" if any(folder.glob("*.gguf")) else ""
        raise FocusError(f"{spelling} has no config.json, so it is no Transformers model folder: check the path{hint}.")
    for path in folder.iterdir():
        if path.exists() and not path.is_dir():
            regular(path)
    check_configuration(folder / "config.json")
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise FocusError(
            f"{spelling} has no safetensors weights, and other formats can run code when they are loaded:"
            " convert the"
            " model with save_pretrained first."
        )
    for path in weights:
        check_safetensors(path)
    model, tokenizer = _from_pretrained(folder, spelling, dtype, trust_remote_code)
    info = _info(model, folder.resolve().name, "folder", weights_revision(folder))
    return LoadedModel(model, tokenizer, replace(info, configuration=folder_configuration(folder)))


def _load_hub(name: str, dtype: torch.dtype, trust_remote_code: bool, progress: Progress | None) -> LoadedModel:
    try:
        model, tokenizer = _from_pretrained(name, name, dtype, trust_remote_code)
    except _HubUnreachable:
        if name != default_model.HUB_ID:
            raise
        logger.warning("The hub cannot be reached: using the default model, the same one rounded to 4 bits.")
        return _load_default(dtype, progress)
    commit = getattr(model.config, "_commit_hash", None) or "unknown"
    return LoadedModel(model, tokenizer, _info(model, name, "hub", commit[:12]))


class _HubUnreachable(FocusError):
    """The hub did not answer and holds no local copy."""


def _from_pretrained(
    source: str | Path, spelling: str, dtype: torch.dtype, trust_remote_code: bool
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Config, weights and tokenizer; every error is one sentence with the user's spelling of the name."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if not isinstance(source, Path) and not hub_answers():
        options["local_files_only"] = True  # otherwise every file is tried for half a minute
    with quiet_transformers():
        try:
            config = AutoConfig.from_pretrained(source, **options)
            _check_is_decoder(config, spelling, trust_remote_code)
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                source, config=config, dtype=dtype, use_safetensors=True, output_loading_info=True, **options
            )
            model, report = loaded
        except FocusError:
            raise
        except Exception as error:
            raise loading_error(error, source, spelling) from error
        if report["missing_keys"]:
            missing = sorted(report["missing_keys"])
            raise FocusError(
                f"{spelling} lacks {len(missing)} of the weights that its configuration names, such as {missing[0]}:"
                " the model is incomplete, get it again."
            )
        try:
            tokenizer = AutoTokenizer.from_pretrained(source, **options)
        except Exception as error:
            raise FocusError(
                f"{spelling} has no text tokenizer that can be loaded ({first_line(error)}): choose a model with one."
            ) from error
    _check_vocabulary(model, tokenizer, spelling)
    return model, _usable(tokenizer, spelling)


def _check_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, spelling: str) -> None:
    """Refuse a tokenizer of another model, whose tokens would have no embedding; added ones may have none."""
    words, rows = tokenizer.vocab_size, model.config.get_text_config().vocab_size
    if words > rows:
        raise FocusError(
            f"{spelling} has a tokenizer of {words:,} tokens and embeddings of {rows:,}: its files do not fit "
            "together, get them again."
        )


def hub_answers() -> bool:
    """Whether a connection to the hub can be opened; assumed behind a proxy."""
    from huggingface_hub import constants

    endpoint = urllib.parse.urlsplit(constants.ENDPOINT)
    if constants.is_offline_mode() or not endpoint.hostname:
        return False
    if urllib.request.getproxies().get(endpoint.scheme):
        return True
    port = endpoint.port or (443 if endpoint.scheme == "https" else 80)
    try:
        with socket.create_connection((endpoint.hostname, port), timeout=5):
            return True
    except OSError:
        return False


def _check_is_decoder(config: Any, spelling: str, trust_remote_code: bool) -> None:
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    class_name = (getattr(config, "architectures", None) or [type(config).__name__])[0]
    if getattr(config, "is_encoder_decoder", False):
        kind = "an encoder-decoder"
    elif config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(config, "is_decoder", False):
        kind = "an encoder"
    elif config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not (
        trust_remote_code and getattr(config, "auto_map", None)
    ):
        kind = "no causal language model"
    else:
        return
    raise FocusError(f"{spelling} ({class_name}) is {kind}: Focus needs a decoder such as GPT-2, Llama or Mistral.")


def _usable(tokenizer: PreTrainedTokenizerBase, spelling: str) -> PreTrainedTokenizerBase:
    if not tokenizer.is_fast or len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise FocusError(
            f"{spelling} has no fast tokenizer (tokenizer.json), which locates tokens in the text: choose a model with"
            " one."
        )
    return tokenizer


def loading_error(error: Exception, source: str | Path, spelling: str) -> FocusError:
    """What Transformers raised about a model, in one sentence; a source that is no path is a hub id."""
    reason = first_line(error)
    if "trust_remote_code" in str(error) or "custom code" in str(error):
        return FocusError(f"{spelling} brings its own code, which is not run: choose a model that Transformers knows.")
    if not isinstance(source, Path):
        if "safetensors" in reason:
            return FocusError(
                f"{spelling} has no safetensors weights, and other formats can run code: choose another model."
            )
        if "is not a valid model identifier" in str(error) or "not a local folder" in str(error):
            return FocusError(
                f"There is no model {spelling!r}, neither as a local folder nor on the hub: check the name."
            )
        if isinstance(error, OSError):
            return _HubUnreachable(
                f"Cannot get {spelling!r}: it is no local folder, and the hub cannot be reached or refuses it: check"
                " the name and the network."
            )
    return FocusError(
        f"Cannot load {spelling}: its files are damaged or do not fit together ({reason}): get them again."
    )


def looks_like_a_path(spelling: str) -> bool:
    """Whether a name can be no hub id."""
    return spelling.startswith((".", "/", "~")) or "\\" in spelling or spelling.count("/") > 1


def _info(model: PreTrainedModel, name: str, source: str, revision: str) -> ModelInfo:
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return ModelInfo(name, source, revision, type(model).__name__, parameters)

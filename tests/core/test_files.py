"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from focus_core.cli import os_sentence
from focus_core.io.files import atomic_path, write_atomic


def names(folder):
    return [path.name for path in folder.iterdir()]


def test_text_and_bytes_replace_what_was_there(tmp_path):
    path = tmp_path / "note.txt"
    assert write_atomic(path, "Zoë\n") == path and path.read_bytes() == "Zoë\n".encode()
    write_atomic(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff" and names(tmp_path) == ["note.txt"]


def test_missing_folders_are_created(tmp_path):
    path = write_atomic(tmp_path / "a" / "b" / "note.txt", "x")
    assert path.read_text() == "x"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = write_atomic(tmp_path / "note.txt", "old")
    with pytest.raises(error), atomic_path(path) as temporary:
        temporary.write_text("half of the n")
        raise error
    assert path.read_text() == "old" and names(tmp_path) == ["note.txt"]


def test_a_file_that_cannot_be_renamed_leaves_no_temporary_one(tmp_path):
    (tmp_path / "taken" / "inside").mkdir(parents=True)
    with pytest.raises(OSError):
        write_atomic(tmp_path / "taken", "x")
    assert names(tmp_path) == ["taken"]


def test_text_that_is_no_unicode_leaves_the_old_file(tmp_path):
    path = write_atomic(tmp_path / "note.txt", "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "\ud800")
    assert path.read_text() == "old" and names(tmp_path) == ["note.txt"]


def test_writers_that_take_a_name(tmp_path):
    path = tmp_path / "x" / "arrays.safetensors"
    with atomic_path(path) as temporary:
        assert temporary.parent == path.parent and not path.exists()
        save_file({"a": np.arange(3)}, temporary)
    assert load_file(path)["a"].tolist() == [0, 1, 2] and names(path.parent) == [path.name]


def test_many_writers_of_one_file(tmp_path):
    path, contents = tmp_path / "note.txt", [str(number) * 100_000 for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda text: write_atomic(path, text), contents))
    assert path.read_text() in contents and names(tmp_path) == ["note.txt"]


@pytest.fixture
def full_disk(tmp_path):
    """A disk of 64 KB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    if (
        mount is None
        or subprocess.run([mount, "-t", "tmpfs", "-o", "size=64k", "tmpfs", place], check=False).returncode
    ):
        pytest.skip("a small disk cannot be mounted here")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("kind", ["text", "tensors"])
def test_a_full_disk_is_called_one_and_leaves_nothing(full_disk, kind):
    path = full_disk / "deep" / "out"
    with pytest.raises(OSError) as failure:
        if kind == "text":
            write_atomic(path, b"x" * 100_000)
        else:
            with atomic_path(path) as temporary:
                save_file({"a": np.zeros(100_000)}, temporary)
    assert (failure.value.errno, failure.value.filename) == (errno.ENOSPC, str(path))
    assert names(path.parent) == [] and "disk is full" in os_sentence(failure.value)

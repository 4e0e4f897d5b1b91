"""Paths of the machine that runs the app, for those that it is served to."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from focus_core.errors import FocusError
from focus_core.shipped import DEFAULT
from workbench.engine import service
from workbench.engine.access import ROOTS, SERVED_AT, allowed, allowed_folder, check_model, is_loopback
from workbench.shell import texts


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A root with a text and routers in it, and a secret beside it that links in the root lead to."""
    monkeypatch.delenv(ROOTS, raising=False)
    root, secret = tmp_path / "root", tmp_path / "secret"
    root.mkdir()
    secret.mkdir()
    for folder in (root, secret):
        (folder / "a.txt").write_text(f"text of {folder.name}")
        shutil.copytree(service.router_folder(DEFAULT), folder / "routers")
    (root / "link.txt").symlink_to(secret / "a.txt")
    (root / "linked").symlink_to(secret, target_is_directory=True)
    (root / "mixed").mkdir()
    (root / "mixed" / "weights.safetensors").symlink_to(secret / "routers" / "routers.safetensors")
    return root


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        *(("localhost", True), ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("[::1]", True)),
        *(("0.0.0.0", False), ("::", False), ("192.168.1.4", False), ("lab.example", False), ("", False)),
        *(("every address", False), ("localhost.evil.example", False), ("::ffff:10.0.0.1", False)),
    ],
)
def test_only_this_machine_is_loopback(address, loopback):
    assert is_loopback(address) is loopback


def opened(place: Path) -> list:
    """All that a user can name, tried: the sentences of what was refused."""
    refused = []
    for attempt in (
        lambda: texts.in_folder(str(place)),
        lambda: texts.found_at(str(place / "a.txt")),
        lambda: service.router_folder(str(place / "routers")),
        lambda: check_model(str(place)),
    ):
        try:
            attempt()
        except FocusError as error:
            refused.append(str(error))
    return refused


def test_paths_are_open_to_this_machine(place, monkeypatch):
    monkeypatch.setenv(SERVED_AT, "127.0.0.1")
    assert opened(place) == []
    monkeypatch.delenv(SERVED_AT)
    assert opened(place) == [] and set(texts.in_folder(str(place))) >= {"a.txt", "link.txt"}


def test_paths_are_off_beyond_it_whether_they_exist_or_not(place, monkeypatch):
    monkeypatch.setenv(SERVED_AT, "0.0.0.0")
    for folder in (place, place / "missing"):
        found = opened(folder)
        assert len(found) == 4 and all("Paths are off" in sentence for sentence in found)
    with pytest.raises(FocusError, match="Paths are off"):
        check_model("gpt2")  # a download, for a stranger
    for model in ("default", "SmolLM2-135M-Instruct"):
        check_model(model)
    assert service.router_folder(DEFAULT).is_dir()


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1"])
def test_roots_allow_what_is_below_them_alone(place, monkeypatch, address):
    monkeypatch.setenv(SERVED_AT, address)
    monkeypatch.setenv(ROOTS, os.pathsep.join([str(place), str(place.parent / "gone")]))
    monkeypatch.chdir(place)
    assert set(texts.in_folder(str(place))) == {"a.txt", "routers/README.md"}  # links lead outside
    assert allowed("a.txt") == place / "a.txt" and service.router_folder("routers") == place / "routers"
    check_model(str(place / "routers"))
    for path in (
        "link.txt",
        "linked",
        "linked/a.txt",
        "../secret/a.txt",
        "..",
        "/etc/passwd",
        "~",
        "~nobody-here",
        "a\0",
    ):
        with pytest.raises(FocusError):
            allowed(path)
    for folder in ("mixed", "linked/routers"):
        with pytest.raises(FocusError, match=r"may open|leads out"):
            allowed_folder(folder)
        with pytest.raises(FocusError):
            check_model(folder)
    with pytest.raises(FocusError, match="links to places"):
        (place / "only").mkdir()
        (place / "only" / "x.txt").symlink_to(place.parent / "secret" / "a.txt")
        texts.in_folder("only")


def test_a_root_that_is_itself_a_link_holds_what_is_in_it(place, monkeypatch):
    (place.parent / "alias").symlink_to(place, target_is_directory=True)
    monkeypatch.setenv(ROOTS, str(place.parent / "alias"))
    assert allowed(str(place.parent / "alias" / "a.txt")) == allowed(str(place / "a.txt")) == place / "a.txt"


def test_a_root_is_no_prefix_of_letters(place, monkeypatch):
    monkeypatch.setenv(ROOTS, str(place))
    (place.parent / "root2").mkdir()
    with pytest.raises(FocusError):
        allowed(str(place.parent / "root2"))


def test_nothing_outside_is_touched_on_the_disk(place, monkeypatch):
    """On Windows a look at a network share sends the user's credentials to it."""
    monkeypatch.setenv(ROOTS, str(place))
    looked: list[str] = []
    sys.addaudithook(lambda event, given: looked.append(str(given[0])) if event.startswith("os.") and given else None)
    monkeypatch.setattr(Path, "resolve", lambda path, strict=False: looked.append(str(path)) or path)
    with pytest.raises(FocusError):
        allowed("//evil.example/share/a.txt")
    assert not [path for path in looked if "evil.example" in path]

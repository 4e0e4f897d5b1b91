"""The lock files: complete, of the project's requirements, with a hash for each file and no address."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "locks").glob("*.txt"))


def tool():
    spec = importlib.util.spec_from_file_location("lock", ROOT / "tools" / "lock.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def locked(*names: str) -> dict[str, list[Requirement]]:
    found: dict[str, list[Requirement]] = {}
    for name in names:
        for blocks in tool().entries((ROOT / "locks" / name).read_text()).values():
            for block in blocks:
                requirement = Requirement(block.split(" \\\n")[0])
                found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_every_entry_has_a_version_and_hashes_and_there_is_no_address(path):
    text = path.read_text()
    assert "://" not in text and "--index" not in text and "--find-links" not in text
    for block in (block for blocks in tool().entries(text).values() for block in blocks):
        head, *hashes = block.split(" \\\n")
        assert re.fullmatch(r"[\w.-]+(\[[\w,-]+\])?==[^ ]+( ; .+)?", head), head
        assert hashes and all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}", line) for line in hashes), head
    entries = sum(map(len, tool().entries(text).values()))
    assert entries == len(re.findall(r"^[A-Za-z0-9]", text, re.MULTILINE))  # no line is passed over


@pytest.mark.parametrize(("extra", "names"), [(None, ["app.txt"]), ("dev", ["app.txt", "dev.txt"])])
def test_the_locks_fit_the_requirements(extra, names):
    """Fails after a change of pyproject.toml: run python tools/lock.py."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    wanted = project["dependencies"] + (optional["dev"] + optional["docs"] if extra else [])
    found = locked(*names, "torch.txt")
    for requirement in map(Requirement, wanted):
        name = canonicalize_name(requirement.name)
        if name == "focus-workbench":
            continue
        assert name in found, f"{name} is not locked"
        for each in found[name]:
            (version,) = each.specifier
            assert requirement.specifier.contains(version.version), f"{each} is not {requirement}"


def test_pytorch_is_the_same_version_in_both_builds():
    (cpu,), (cuda,) = locked("torch-cpu.txt")["torch"], locked("torch.txt")["torch"]
    assert str(cpu.specifier) == f"{cuda.specifier}+cpu"
    assert not {"torch", "triton"} & set(locked("app.txt", "dev.txt"))


def test_each_package_is_in_the_file_of_those_who_need_it():
    everything = {"a": ["a==1 \\\n    --hash=sha256:0"], "torch": ["torch==2 \\\n    --hash=sha256:1"], "b": ["b==1"]}
    files = tool().split(everything, {"a"})
    assert "a==1" in files["app.txt"] and "b==1" in files["dev.txt"] and "torch==2" in files["torch.txt"]
    assert all(content.startswith("# Written by tools/lock.py") for content in files.values())

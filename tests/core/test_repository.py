"""License, citation, changelog, contributing, hooks and type marker: there, and saying the same."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from pre_commit.clientlib import load_config

import focus_core

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def rooms(parent: Path) -> set[str]:
    """Folders with Python files directly below a folder."""
    return {path.parent.name for path in parent.glob("*/*.py") if not path.parent.name.startswith((".", "_"))}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    """A wheel of the working tree, built away from it."""
    folder = tmp_path_factory.mktemp("wheel")
    steps = ["egg_info", "--egg-base", folder, "build", "--build-base", folder / "build"]
    steps += ["bdist_wheel", "--bdist-dir", folder / "parts", "--dist-dir", folder]
    subprocess.run([sys.executable, "setup.py", "-q", *steps], cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_no_file_is_a_link():
    """One to a folder above it, by the address that it has on one machine, was once committed; a wheel then held it again."""
    folders = [
        ROOT / name for name in ("data", "docs", "examples", "focus_core", "pages", "tests", "tools", "workbench")
    ]
    assert not [path for folder in folders for path in folder.rglob("*") if path.is_symlink()]


def test_the_version_is_the_same_everywhere():
    version = PROJECT["version"]
    assert focus_core.__version__ == version
    assert yaml.safe_load(read("CITATION.cff"))["version"] == version
    assert f"## [{version}]" in read("CHANGELOG.md")


def test_the_license_is_the_one_that_is_declared():
    assert PROJECT["license"] == "Apache-2.0" == yaml.safe_load(read("CITATION.cff"))["license"]
    assert PROJECT["license-files"] == ["LICENSE"]
    text = read("LICENSE")
    assert "Apache License" in text and "Version 2.0, January 2004" in text and "END OF TERMS AND CONDITIONS" in text


def test_the_citation_names_the_software_and_the_paper():
    citation = yaml.safe_load(read("CITATION.cff"))
    assert citation["cff-version"] == "1.2.0" and citation["message"] and citation["title"] == "Focus Workbench"
    assert citation["authors"] == PROJECT["authors"]
    (paper,) = citation["references"]
    assert {"type", "title", "authors"} <= set(paper)
    assert paper["url"].endswith("2604.03260") and paper["authors"][0]["family-names"] == "Yao"


def test_the_changelog_lists_kinds_of_changes_and_begins_with_what_is_not_released():
    sections = re.findall(r"^## (.*)$", read("CHANGELOG.md"), re.MULTILINE)
    assert sections[0] == "[Unreleased]" and len(sections) > 1
    kinds = set(re.findall(r"^### (.*)$", read("CHANGELOG.md"), re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_contributing_maps_every_folder():
    mapped = set(re.findall(r"`([\w./]+)/`", read("CONTRIBUTING.md")))
    folders = {f"{top}/{room}" for top in ("focus_core", "workbench") for room in rooms(ROOT / top)}
    folders |= {name for name in ("pages", "data", "docs", "examples", "tests", "tools") if (ROOT / name).is_dir()}
    assert folders - mapped == set(), "CONTRIBUTING.md has a line for every folder"
    assert [name for name in mapped if not (ROOT / name).is_dir()] == [], "CONTRIBUTING.md names folders that are gone"


def test_links_of_the_project_files_lead_to_files():
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        links = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", read(name)) if "://" not in link]
        assert [link for link in links if link and not (ROOT / link).exists()] == []


def test_paths_and_registries_that_contributing_names_exist():
    text = read("CONTRIBUTING.md")
    for path in re.findall(r"`((?:focus_core|workbench|pages|tests|docs|tools)/[\w./]+\.\w+)`", text):
        assert (ROOT / path).is_file(), path
    for registry, path in re.findall(r"`([A-Z_]+)` in `([\w./]+\.py)`", text):
        assert re.search(rf"^{registry}\b", read(path), re.MULTILINE), f"{registry} is not in {path}"


def test_what_security_says_can_be_done_exists():
    text, start = (ROOT / "SECURITY.md").read_text(), (ROOT / "start.py").read_text()
    assert "read [SECURITY.md](SECURITY.md)" in (ROOT / "README.md").read_text()
    for name in ("--allow-root", "FOCUS_ALLOWED_ROOTS", "--unlocked"):
        assert name in text and name in start
    (audit,) = re.findall(r"^pip-audit .*$", text, re.MULTILINE)
    files = re.findall(r"-r (\S+)", audit)
    assert files == ["locks/app.txt", "locks/dev.txt"] and all((ROOT / file).is_file() for file in files)
    assert "--upgrade" in text and "--upgrade" in (ROOT / "tools" / "lock.py").read_text()


def test_hooks_are_the_checks_of_start():
    spec = importlib.util.spec_from_file_location("start", ROOT / "start.py")
    start = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(start)
    checks = [
        " ".join(["python", "-m", *command]).replace(f" --pythonpath {start.PYTHON}", "")
        for command in start.static_checks().values()
    ]
    (repository,) = load_config(str(ROOT / ".pre-commit-config.yaml"))["repos"]
    assert repository["repo"] == "local"  # nothing is cloned
    assert [hook["entry"] for hook in repository["hooks"]] == checks
    assert {hook["language"] for hook in repository["hooks"]} <= {"system", "unsupported"}  # its new name
    assert any(name.startswith("pre-commit") for name in PROJECT["optional-dependencies"]["dev"])


def test_a_wheel_carries_license_type_markers_data_and_pages(wheel: zipfile.ZipFile):
    names = set(wheel.namelist())
    assert {"focus_core/py.typed", "workbench/py.typed"} <= names
    assert any(re.fullmatch(r"focus_workbench-.*\.dist-info/licenses/LICENSE", name) for name in names)
    assert {f"workbench/_pages/{path.name}" for path in (ROOT / "pages").glob("*.py")} <= names
    assert {f"focus_core/_data/results/{path.name}" for path in (ROOT / "data" / "results").glob("*.json")} <= names
    assert not any(name.startswith(("tests/", "docs/")) for name in names)


def test_json_of_files_is_read_in_one_place():
    """Other modules parse only what they made themselves: copies of values, and settings between parts of the app."""
    calls = re.compile(r"json\.loads?\(|safe_open\(|\bload_file\(")
    own = {
        "focus_core/io/reading.py",
        "focus_core/results.py",
        "focus_core/io/files.py",
        "focus_core/commands/options.py",
    }
    own |= {"focus_core/routing/storage.py", "workbench/engine/cached.py", "pages/speed.py"}
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in ("focus_core", "workbench", "pages")
        for path in (ROOT / folder).rglob("*.py")
        if calls.search(path.read_text(encoding="utf-8"))
    }
    assert found == own

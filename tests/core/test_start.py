"""start.py and the files that an installation carries."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from focus_core import resources

ROOT = Path(__file__).parents[2]


@pytest.fixture
def start(tmp_path, monkeypatch) -> ModuleType:
    """A fresh copy of start.py that works on an empty folder with a small project in it."""
    spec = importlib.util.spec_from_file_location("start", ROOT / "start.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "small"\nversion = "1"\n')
    (tmp_path / "setup.py").write_text("")
    venv = tmp_path / ".venv"
    for name, value in {
        "ROOT": tmp_path,
        "VENV": venv,
        "PYTHON": venv / module.PYTHON.relative_to(module.VENV),
        "STAMP": venv / module.STAMP.name,
        "LOG": venv / module.LOG.name,
    }.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.chdir(tmp_path)
    return module


def test_an_older_python_can_read_it_and_is_told(start, monkeypatch, capsys):
    ast.parse((ROOT / "start.py").read_text(encoding="utf-8"), feature_version=(3, 8))
    monkeypatch.setattr(sys, "version_info", (3, 10, 0))
    assert start.main([]) == 2
    assert "3.11 or newer" in capsys.readouterr().out


def test_only_the_standard_library_is_needed():
    tree = ast.parse((ROOT / "start.py").read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in imported} <= set(sys.stdlib_module_names)


def finished(start, extras: list[str]) -> None:
    start.PYTHON.parent.mkdir(parents=True, exist_ok=True)
    start.PYTHON.touch()
    start.STAMP.write_text(start.json.dumps({"key": start.fingerprint(), "extras": extras}))


def test_a_finished_installation_is_not_repeated(start, monkeypatch):
    monkeypatch.setattr(start, "run_pip", lambda arguments: pytest.fail("pip was called"))
    finished(start, ["dev"])
    start.install([])
    start.install(["dev"])


@pytest.mark.parametrize("change", ["requirements", "extras", "stamp", "python"])
def test_an_installation_is_repeated_when_it_must_be(start, monkeypatch, change):
    calls = []
    monkeypatch.setattr(start, "run_pip", calls.append)
    monkeypatch.setattr(start, "make_venv", start.PYTHON.touch)
    monkeypatch.setattr(start, "announce", lambda: None)
    monkeypatch.setattr(start, "pip_version", lambda: (99, 0))
    finished(start, [])
    if change == "requirements":
        (start.ROOT / "pyproject.toml").write_text("[project]\n")
    if change == "stamp":
        start.STAMP.write_text("{")
    if change == "python":
        start.PYTHON.unlink()
    start.install(["dev"] if change == "extras" else [])
    assert len(calls) == 1
    start.install(["dev"] if change == "extras" else [])
    assert len(calls) == 1


def test_a_failed_installation_says_so_and_leaves_no_stamp(start, monkeypatch):
    """Real venv, real pip, no index: the build requirements cannot be found."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", start.os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    start.VENV.mkdir()
    (start.VENV / "half").write_text("an interrupted start leaves this")
    with pytest.raises(start.StartError, match="run the same command again"):
        start.install([])
    assert start.PYTHON.exists() and not start.STAMP.exists() and start.LOG.stat().st_size > 0
    assert not (start.VENV / "half").exists()


def test_resources_are_found():
    assert (resources.data_dir() / "samples").is_dir()
    assert list(resources.pages_dir().glob("*.py"))
    assert resources.app_path().is_file()
    assert not (resources.app_path().parent / "pages").exists()  # Streamlit would discover it by itself


def test_ci_runs_the_documented_command():
    assert "python3 start.py test" in (ROOT / ".ci" / "run").read_text()
    assert "python3 start.py test" in (ROOT / "README.md").read_text()

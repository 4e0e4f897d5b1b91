"""start.py and the files that an installation carries."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from focus_core import resources

ROOT = Path(__file__).parents[2]
LOCK = f"""# made
pip==26.1 \\
    --hash=sha256:{"1" * 64} \\
    --hash=sha256:{"2" * 64}
rich==14.0 ; sys_platform != 'x' \\
    --hash=sha256:{"3" * 64}
setuptools==84.0 \\
    --hash=sha256:{"4" * 64}
"""


@pytest.fixture
def start(tmp_path, monkeypatch) -> ModuleType:
    """A fresh copy of start.py that works on an empty folder with a small project in it."""
    spec = importlib.util.spec_from_file_location("start", ROOT / "start.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "small"\nversion = "1"\n')
    (tmp_path / "setup.py").write_text("")
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "app.txt").write_text(LOCK)
    venv = tmp_path / ".venv"
    for name, value in {
        "ROOT": tmp_path,
        "VENV": venv,
        "PYTHON": venv / module.PYTHON.relative_to(module.VENV),
        "STAMP": venv / module.STAMP.name,
        "LOG": venv / module.LOG.name,
        "LOCKS": tmp_path / "locks",
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


@pytest.mark.parametrize("change", ["requirements", "lock", "unlocked", "extras", "stamp", "python"])
def test_an_installation_is_repeated_when_it_must_be(start, monkeypatch, change):
    calls = []
    monkeypatch.setattr(start, "has_fitting_torch", lambda: True)
    monkeypatch.setattr(start, "run_pip", calls.append)
    monkeypatch.setattr(start, "make_venv", start.PYTHON.touch)
    monkeypatch.setattr(start, "announce", lambda: None)
    monkeypatch.setattr(start, "pip_version", lambda: (99, 0))
    finished(start, [])
    if change == "requirements":
        (start.ROOT / "pyproject.toml").write_text("[project]\n")
    if change == "lock":
        (start.ROOT / "locks" / "app.txt").write_text(LOCK + "# other")
    if change == "stamp":
        start.STAMP.write_text("{")
    if change == "python":
        start.PYTHON.unlink()
    for _ in range(2):
        start.install(["dev"] if change == "extras" else [], locked=change != "unlocked")
        assert len(calls) == (1 if change == "unlocked" else 3)


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


def installed(start, monkeypatch, *, system="linux", gpu=False, cpu_build=True, torch="", locked=True):
    """The pip commands of a first start on a machine of some kind."""
    calls: list[list[str]] = []

    def run_pip(arguments: list[str]) -> None:
        calls.append(arguments)
        if not cpu_build and arguments[-1].endswith("torch-cpu.txt"):
            raise start.StartError("no such build")

    (start.ROOT / "pyproject.toml").write_text('dependencies = ["torch>=2.11,<2.14"]')
    monkeypatch.setattr(start.sys, "platform", system)
    monkeypatch.setattr(start, "run_pip", run_pip)
    monkeypatch.setattr(start, "make_venv", lambda: start.PYTHON.parent.mkdir(parents=True, exist_ok=True))
    monkeypatch.setattr(start, "announce", lambda: None)
    monkeypatch.setattr(start, "pip_version", lambda: (99, 0))
    monkeypatch.setattr(start, "has_nvidia", lambda: gpu)
    monkeypatch.setattr(start, "run", lambda *command, quiet=False: subprocess.CompletedProcess(command, 0, torch, ""))
    start.install(["dev"], locked=locked)
    return calls


@pytest.mark.parametrize(
    ("machine", "torch"),
    [
        ({}, ["torch-cpu.txt"]),
        ({"cpu_build": False}, ["torch-cpu.txt", "torch.txt"]),
        ({"gpu": True}, ["torch.txt"]),
        ({"system": "darwin"}, ["torch.txt"]),
        ({"system": "win32"}, ["torch.txt"]),
        ({"torch": "2.12.0+rocm\n"}, []),
        ({"torch": "2.14.0\n"}, ["torch-cpu.txt"]),
        ({"torch": "2.9.1\n"}, ["torch-cpu.txt"]),
    ],
)
def test_everything_is_verified_by_hash_and_the_owners_pytorch_is_kept(start, monkeypatch, machine, torch):
    first, *others, last = installed(start, monkeypatch, **machine)
    assert first[-1].endswith("installers.txt")
    assert Path(first[-1]).read_text().count("--hash") == 3 and "rich" not in Path(first[-1]).read_text()
    assert [Path(call[-1]).name for call in others] == [*torch, "dev.txt"]
    assert all({"--require-hashes", "--no-deps"} <= set(call) for call in (first, *others))
    assert "--no-deps" in last and last[-1] == str(start.ROOT)  # the project itself


def test_unlocked_takes_the_newest_versions(start, monkeypatch):
    (call,) = installed(start, monkeypatch, locked=False)
    assert "--upgrade" in call and "--require-hashes" not in call and call[-1] == f"{start.ROOT}[dev]"


def test_own_options_are_taken_out(start, monkeypatch, tmp_path):
    monkeypatch.setenv(start.ROOTS, "")  # so that it is taken back at the end
    monkeypatch.delenv(start.ROOTS)
    (tmp_path / "a").mkdir()
    given = ["--unlocked", "test", f"--allow-root={tmp_path / 'a'}", "-x", "--allow-root", str(tmp_path)]
    assert start.own_options(given) == (["test", "-x"], False)
    assert start.os.environ[start.ROOTS].split(start.os.pathsep) == [str(tmp_path / "a"), str(tmp_path)]
    assert start.own_options(["--server.port=1"]) == (["--server.port=1"], True)
    for wrong in (["--allow-root"], ["--allow-root="], ["--allow-root", str(tmp_path / "missing")]):
        with pytest.raises(start.StartError, match="--allow-root needs a folder"):
            start.own_options(wrong)


@pytest.mark.parametrize(("system", "python"), [("win32", "Scripts/python.exe"), ("darwin", "bin/python")])
def test_other_systems_start_the_app(monkeypatch, system, python):
    """Windows has no exec: the app is a child, and its status is that of start.py."""
    monkeypatch.setattr(sys, "platform", system)
    spec = importlib.util.spec_from_file_location("start", ROOT / "start.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert ROOT / ".venv" / python == module.PYTHON
    ran: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(module, "run", lambda *command, quiet=False: subprocess.CompletedProcess(command, 0, "", ""))
    monkeypatch.setattr(subprocess, "call", lambda command: ran.append(("call", command)) or 3)
    monkeypatch.setattr(module.os, "execv", lambda path, command: ran.append(("exec", command)))
    if system == "win32":
        with pytest.raises(SystemExit, match="3"):
            module.run_app(["--server.port=1"])
    else:
        module.run_app(["--server.port=1"])
    assert [kind for kind, _ in ran] == ["call" if system == "win32" else "exec"]
    assert ran[0][1][-3:] == ["run", "workbench/app.py", "--server.port=1"]


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_other_systems_get_their_browser_from_playwright(start, monkeypatch, system):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.delattr(start.os, "geteuid")
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(
        start,
        "run",
        lambda *command, quiet=False: ran.append(command) or subprocess.CompletedProcess(command, 0, "", ""),
    )
    monkeypatch.setattr(start, "installed_browser", lambda: "/browser" if ran else None)
    assert start.find_browser() == "/browser" and ran[0][1:] == ("-m", "playwright", "install", "chromium")


def test_resources_are_found():
    assert (resources.data_dir() / "samples").is_dir()
    assert list(resources.pages_dir().glob("*.py"))
    assert resources.app_path().is_file()
    assert not (resources.app_path().parent / "pages").exists()  # Streamlit would discover it by itself


def test_ci_runs_the_documented_command():
    assert "python3 start.py test" in (ROOT / ".ci" / "run").read_text()
    assert "python3 start.py test" in (ROOT / "README.md").read_text()

"""One command from a clone to the running workbench, one to the tests. Needs only Python 3.11 or newer.

    python3 start.py                    install into .venv, fetch the model, open the workbench
    python3 start.py test               install into .venv, run all checks and tests
    python3 start.py --unlocked [test]  with the newest versions that fit, in place of those in locks/

Everything is installed in the versions of locks/ and verified by hash. `--allow-root DIR` limits the workbench to
models, routers, texts and results below that folder; it can be given several times. Further arguments go to
`streamlit run` or to pytest. What is there already is not fetched again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
STAMP = VENV / "installed.json"
LOG = VENV / "install.log"
LOCKS = ROOT / "locks"
OLDEST = (3, 11)
ROOTS = "FOCUS_ALLOWED_ROOTS"
INSTALLERS = ("pip", "setuptools")
"""Installed first, because the others are installed with them."""

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""The first has no window and takes a sixth less time."""
BROWSER_PACKAGES = ("chromium-headless-shell", "chromium")
"""Debian has both, other systems may have the second alone."""
COMPILE = """
from focus_core import load_model, retrofit
from focus_core.routing.narrow.compiling import compile_ahead
compile_ahead(retrofit(load_model().model, "best"))
"""
FONT_PACKAGES = ("fonts-noto-cjk", "fonts-noto-color-emoji")


class StartError(Exception):
    """Set-up cannot go on; the message says why and what to do."""


def say(message: str) -> None:
    """Tell the user what is going on."""
    print(message, flush=True)


def run(*command: str, quiet: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; `quiet` keeps what it prints in the result instead of showing it."""
    return subprocess.run(command, capture_output=quiet, text=True, check=False)


def main(arguments: list[str]) -> int:
    """Set up, then run the workbench or the tests. Returns the exit status."""
    if sys.version_info < OLDEST:
        version = sys.version.split()[0]
        say(f"This needs Python 3.11 or newer and this is {version}: run it with a newer one.")
        return 2
    try:
        arguments, locked = own_options(arguments)
        os.chdir(ROOT)
        testing = arguments[:1] == ["test"]
        if arguments[:1] in (["-h"], ["--help"]):
            say(__doc__ or "")
            return 0
        install(extras=["dev"] if testing else [], locked=locked)
        if testing:
            return run_tests(arguments[1:])
        run_app(arguments)
    except StartError as error:
        say(str(error))
        return 2
    except KeyboardInterrupt:
        say("\nStopped. Run the same command again to go on.")
        return 130
    return 0


def own_options(arguments: list[str]) -> tuple[list[str], bool]:
    """The arguments of others, and whether the lock files decide; `--allow-root` becomes a variable of the app."""
    others: list[str] = []
    roots = [root for root in os.environ.get(ROOTS, "").split(os.pathsep) if root]
    left = list(arguments)
    while left:
        argument = left.pop(0)
        name, equals, value = argument.partition("=")
        if name != "--allow-root":
            others.append(argument)
            continue
        if not equals:
            value = left.pop(0) if left else ""
        root = Path(value).expanduser()
        if not value or not root.is_dir() or os.pathsep in str(root.resolve()):
            raise StartError(f"--allow-root needs a folder, and {value!r} is none: name the folder to allow.")
        roots.append(str(root.resolve()))
    if roots:
        os.environ[ROOTS] = os.pathsep.join(roots)
    return [argument for argument in others if argument != "--unlocked"], "--unlocked" not in others


def run_app(arguments: list[str]) -> None:
    """Fetch the model if it is not there and turn into the web server; returns only on Windows."""
    if run(str(PYTHON), "-m", "focus_core.cli", "fetch").returncode != 0:
        raise StartError("The workbench was not started, because it has no model to show.")
    say("Starting the workbench. Stop it with Ctrl-C.")
    command = [str(PYTHON), "-m", "streamlit", "run", "workbench/app.py", *arguments]
    if sys.platform == "win32":
        sys.exit(subprocess.call(command))
    os.execv(command[0], command)


def run_tests(arguments: list[str]) -> int:
    """Run linter, formatter, type checker and tests; all of them, also when one fails."""
    environment = {**os.environ, "VIRTUAL_ENV": str(VENV)}
    environment["PATH"] = os.pathsep.join((str(PYTHON.parent), environment.get("PATH", "")))
    browser = find_browser()
    if browser:
        environment["FOCUS_CHROMIUM"] = browser
    # Two processes with a thread each; with arguments as they say. Files of tests stay whole, in the order of
    # tests/conftest.py.
    environment.setdefault("OMP_NUM_THREADS", "1")
    environment.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait leave the cores to others
    # Hundreds of processes import the project, perhaps where Python is told to keep nothing that it compiles.
    run(str(PYTHON), "-m", "compileall", "-qq", "focus_core", "workbench", quiet=True)
    tests = ["pytest", *(arguments or ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"])]

    def check(command: list[str], quiet: bool) -> tuple[int, float, str]:
        started = time.monotonic()
        kept = subprocess.PIPE if quiet else None
        whole = [str(PYTHON), "-m", *command]
        done = subprocess.run(whole, env=environment, check=False, text=True, stdout=kept, stderr=kept)
        return done.returncode, time.monotonic() - started, (done.stdout or "") + (done.stderr or "")

    # The others have time enough while the model is fetched and tests wait for a browser.
    with ThreadPoolExecutor(1) as beside:
        static = {name: beside.submit(check, command, True) for name, command in static_checks().items()}
        # A model that cannot be fetched is reported by the tests that need it.
        run(str(PYTHON), "-m", "focus_core.cli", "fetch")
        if not arguments:  # or processes that start together would all compile the same, while a page waits for it
            say("Compiling sparse attention, once; later runs have it.")
            run(str(PYTHON), "-c", COMPILE, quiet=True)
        say("\n== pytest")
        tested = check(tests, False)
        results = {name: run_beside.result() for name, run_beside in static.items()} | {"pytest": tested}
    for name, (_, _, output) in results.items():
        if output:
            say(f"\n== {name}\n{output.rstrip()}")
    say("")
    for name, (code, seconds, _) in results.items():
        say(f"{name:12} {'passed' if code == 0 else f'FAILED ({code})':12} {seconds:6.1f} s")
    return 1 if any(code for code, _, _ in results.values()) else 0


def static_checks() -> dict[str, list[str]]:
    """Modules and arguments of the checks that run no code; .pre-commit-config.yaml has the same."""
    return {
        "ruff check": ["ruff", "check", "."],
        "ruff format": ["ruff", "format", "--check", "."],
        "pyright": ["pyright", "--pythonpath", str(PYTHON)],
    }


def install(extras: list[str], locked: bool = True) -> None:
    """Make .venv hold the project and what it needs, unless an earlier run has finished just that.

    With lock files every package is the one of its hash. A PyTorch that fits and is there already is kept: which build
    suits a machine is for its owner to say.
    """
    key = fingerprint(locked)
    stamp = read_stamp()
    if stamp.get("key") == key and set(extras) <= set(stamp["extras"]) and PYTHON.exists():
        return
    make_venv()
    announce()
    STAMP.unlink(missing_ok=True)  # written again only when everything is in place
    LOG.unlink(missing_ok=True)
    started = time.monotonic()
    if locked:
        install_locked(["app.txt", *(f"{extra}.txt" for extra in extras)])
    else:
        if pip_version() < (24, 1):  # older ones neither report progress to a pipe nor resolve as well
            run_pip(["install", "--upgrade", "pip>=24.1"])
        target = f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT)
        run_pip(["install", "--upgrade", "--editable", target])
    STAMP.write_text(json.dumps({"key": key, "extras": extras}), encoding="utf-8")
    say(f"Installed in {time.monotonic() - started:.0f} s.")


def install_locked(names: list[str]) -> None:
    """Install what lock files name, each verified by its hash, and then the project itself."""
    first = VENV / "installers.txt"
    first.write_text(installers((LOCKS / "app.txt").read_text(encoding="utf-8")), encoding="utf-8")
    verified = ["install", "--require-hashes", "--no-deps", "--no-build-isolation"]
    run_pip([*verified, "-r", str(first)])
    install_torch(verified)
    run_pip([*verified, *(part for name in names for part in ("-r", str(LOCKS / name)))])
    run_pip(["install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT)])


def install_torch(verified: list[str]) -> None:
    """Install PyTorch unless there is one that fits; without an NVIDIA GPU the CPU build, where pip is offered it."""
    if has_fitting_torch():
        return
    if sys.platform == "linux" and not has_nvidia():
        with suppress(StartError):
            return run_pip([*verified, "-r", str(LOCKS / "torch-cpu.txt")])
    run_pip([*verified, "-r", str(LOCKS / "torch.txt")])


def installers(lock: str) -> str:
    """The part of a lock file that names `INSTALLERS`."""
    blocks = re.findall(r"^[A-Za-z0-9].*(?:\n    --hash=.*)+", lock, re.MULTILINE)
    return "\n".join(block for block in blocks if block.split("==")[0] in INSTALLERS) + "\n"


def has_fitting_torch() -> bool:
    """Whether .venv has a PyTorch that pyproject.toml accepts."""
    code = "import importlib.metadata as m; print(m.version('torch'))"
    found = re.match(r"(\d+)\.(\d+)", run(str(PYTHON), "-c", code, quiet=True).stdout)
    needed = re.search(r'"torch>=(\d+)\.(\d+),<(\d+)\.(\d+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    if not found or not needed:
        return False
    low, high = (int(needed[1]), int(needed[2])), (int(needed[3]), int(needed[4]))
    return low <= (int(found[1]), int(found[2])) < high


def fingerprint(locked: bool = True) -> str:
    """What the installation depends on: where the clone is, its requirements, and the Python version."""
    files = [ROOT / "pyproject.toml", ROOT / "setup.py", *(sorted(LOCKS.glob("*.txt")) if locked else [])]
    parts = [str(ROOT), sys.version, str(locked), *(file.read_text(encoding="utf-8") for file in files)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def read_stamp() -> dict[str, Any]:
    """What the last finished installation recorded; empty if there was none."""
    try:
        stamp = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) and "extras" in stamp else {}


def make_venv() -> None:
    """Create .venv; keep one that works (with the user's own PyTorch, say), replace a broken one."""
    if PYTHON.exists() and pip_version() > (0,):
        return
    say(f"Creating {VENV.name} for Python {sys.version.split()[0]}.")
    shutil.rmtree(VENV, ignore_errors=True)
    done = run(sys.executable, "-m", "venv", str(VENV), quiet=True)
    if done.returncode != 0:
        shutil.rmtree(VENV, ignore_errors=True)
        raise StartError(
            "Python cannot make a virtual environment here (on Debian: apt install python3-venv).\n"
            + (done.stdout + done.stderr).strip()
        )


def announce() -> None:
    """Say what is about to be fetched and how large it is."""
    say("Installing PyTorch, Transformers, Streamlit and what they need into .venv.")
    if sys.platform == "linux" and not has_fitting_torch() and not has_nvidia():
        pip = f"{PYTHON.relative_to(ROOT)} -m pip"
        say(
            "No NVIDIA GPU was found. PyTorch for Linux brings CUDA libraries all the same, several GB.\n"
            f"To avoid them: Ctrl-C now, install the CPU build of torch>=2.11,<2.14 with {pip}\n"
            "as PyTorch's install page says, and run this again. Otherwise just wait."
        )
    say("After that the default model is fetched once: 93 MB, 542 MB on the disk.")


def has_nvidia() -> bool:
    """Whether this machine seems to have an NVIDIA GPU."""
    return shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia").exists()


def pip_version() -> tuple[int, ...]:
    """Version of pip in .venv, (0,) if there is none that runs."""
    done = run(str(PYTHON), "-m", "pip", "--version", quiet=True)
    found = re.match(r"pip (\d+)\.(\d+)", done.stdout)
    return (int(found[1]), int(found[2])) if done.returncode == 0 and found else (0,)


def run_pip(arguments: list[str]) -> None:
    """Run pip in .venv: one line of progress in a terminal, large downloads elsewhere, everything in LOG."""
    progress = ["--progress-bar", "raw"] if pip_version() >= (24, 1) else []
    command = [str(PYTHON), "-m", "pip", *arguments, *progress, "--no-input", "--disable-pip-version-check"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    terminal = sys.stdout.isatty()
    errors: list[str] = []
    step = ""
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    with process, LOG.open("a", encoding="utf-8") as log:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if progress := re.match(r"Progress (\d+) of (\d+)", line):
                    share = int(progress[1]) / max(1, int(progress[2]))
                    show(f"{step} {share:4.0%}", terminal)
                    continue
                log.write(line)
                if line.startswith("ERROR"):
                    errors.append(line.strip())
                if found := re.match(r"\s*(Downloading .*\(.*\)|Installing .*packages|Building .*)", line):
                    step = found[1].split(":")[0]
                    show(step, terminal)
                    if not terminal and re.search(r"\(\d{2,}(\.\d)? (MB|GB)\)|Installing", step):
                        say(f"  {step}")
        except BaseException:
            process.terminate()
            raise
    show("", terminal)
    if process.returncode != 0:
        raise StartError(
            "The installation failed; run the same command again to go on where it stopped.\n"
            + "\n".join(errors[-3:])
            + f"\nThe whole story is in {LOG.relative_to(ROOT)}."
        )


def show(text: str, terminal: bool) -> None:
    """Replace the progress line of a terminal."""
    if terminal:
        width = shutil.get_terminal_size().columns - 1
        print("\r" + text[:width].ljust(width) + ("" if text else "\r"), end="", flush=True)


def find_browser() -> str | None:
    """A Chromium for the browser tests; installed if that is possible, None (the tests skip) if not."""
    if browser := installed_browser():
        return browser
    if hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("apt-get"):
        say("Installing Chromium and fonts for the browser tests (apt-get).")
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}

        def get(*command: str) -> bool:
            done = subprocess.run(["apt-get", *command], env=environment, stdout=subprocess.DEVNULL, check=False)
            return done.returncode == 0

        get("update", "-qq")
        install = ("install", "-y", "-qq", "--no-install-recommends", *FONT_PACKAGES)
        any(get(*install, package) for package in BROWSER_PACKAGES)  # the first that can be had
    else:
        say("Installing Chromium for the browser tests (playwright install).")
        run(str(PYTHON), "-m", "playwright", "install", "chromium", quiet=True)
    browser = installed_browser()
    if browser is None:
        say("No Chromium could be installed: the browser tests will be skipped.")
    return browser


def installed_browser() -> str | None:
    """Path of a Chromium: $FOCUS_CHROMIUM, one on the PATH, or Playwright's own."""
    if chosen := os.environ.get("FOCUS_CHROMIUM"):
        return chosen
    for name in BROWSERS:
        if path := shutil.which(name):
            return path
    code = (
        "from playwright.sync_api import sync_playwright\n"
        "with sync_playwright() as playwright: print(playwright.chromium.executable_path)"
    )
    done = run(str(PYTHON), "-c", code, quiet=True)
    path = done.stdout.strip()
    return path if done.returncode == 0 and Path(path).is_file() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

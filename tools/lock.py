"""Write the lock files that start.py installs from: `python tools/lock.py` (needs uv).

Versions of an earlier lock stay where they still fit; `--upgrade` takes the newest ones instead. Files:

- `locks/app.txt`: what the workbench needs, PyTorch and its CUDA libraries left out.
- `locks/dev.txt`: what the tests need beyond that.
- `locks/torch.txt`: PyTorch of the Python Package Index, with its CUDA libraries for Linux.

`locks/torch-cpu.txt` is written by hand: pip's configuration decides whether a CPU build is offered.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "locks"
TORCH = re.compile(r"torch|triton|nvidia-.*|cuda-.*")
"""Names of PyTorch and of what only its CUDA build for Linux needs."""

HEADER = "# Written by tools/lock.py. Hashes of every platform; pip refuses any other file.\n"
OLDEST_PYTHON = "3.11"


def entries(lock: str) -> dict[str, list[str]]:
    """The requirements of a lock file with their hashes, by the name of the package."""
    found: dict[str, list[str]] = {}
    for block in re.findall(r"^[A-Za-z0-9].*(?:\n    --hash=.*)+", lock, re.MULTILINE):
        found.setdefault(re.split(r"[=\[ ]", block)[0], []).append(block)
    return found


def split(everything: dict[str, list[str]], app: set[str]) -> dict[str, str]:
    """The content of each lock file.

    Args:
        everything: entries of a lock of app and tests together.
        app: names of the packages that the app needs.
    """
    files: dict[str, list[str]] = {"app.txt": [], "dev.txt": [], "torch.txt": []}
    for name, blocks in everything.items():
        place = "torch.txt" if TORCH.fullmatch(name) else "app.txt" if name in app else "dev.txt"
        files[place] += blocks
    return {name: HEADER + "\n".join(blocks) + "\n" for name, blocks in files.items()}


def compiled(output: Path, *options: str) -> dict[str, list[str]]:
    """Entries of what uv resolves for all platforms; versions that `output` has already stay."""
    command = ["uv", "pip", "compile", str(ROOT / "pyproject.toml"), "--universal", "--python-version", OLDEST_PYTHON]
    how = ["--generate-hashes", "--no-emit-index-url", "--no-annotate", "--no-header", "--quiet"]
    subprocess.run([*command, *how, *options, "--output-file", str(output)], check=True)
    return entries(output.read_text(encoding="utf-8"))


def main() -> None:
    """Resolve twice, with and without the tests' requirements, and write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    upgrade = parser.parse_args().upgrade
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "all.txt"
        earlier = [] if upgrade else [LOCKS / name for name in split({}, set()) if (LOCKS / name).exists()]
        whole.write_text("".join(path.read_text(encoding="utf-8") for path in earlier), encoding="utf-8")
        everything = compiled(whole, "--extra", "dev")
        app = compiled(Path(folder) / "app.txt", "--constraint", str(whole))
    for name, content in split(everything, set(app)).items():
        (LOCKS / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()

"""The notebooks run from top to bottom on the default model, and are kept without outputs."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_a_notebook_is_stored_small_and_without_outputs(path: Path):
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    assert path.stat().st_size < 20_000
    for cell in book.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
    assert f"({path.name})" in (ROOT / "notebooks" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_a_notebook_names_files_that_exist(path: Path):
    named = re.findall(r"`(docs/[\w./-]+)`", path.read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / name).is_file()] == []


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_a_notebook_runs(path: Path, default_model, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")  # threads that wait for each other leave the cores to others
    book = nbformat.read(path, as_version=4)
    client = NotebookClient(book, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    shown = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    assert shown
    assert [output for output in shown if output.output_type == "error"] == []
    if path.stem.startswith("3"):
        (strip,) = [
            output.data["text/html"]
            for output in shown
            if "data-focus-strip" in output.get("data", {}).get("text/html", "")
        ]
        assert len(strip) < 1_000_000
        figures = [output for output in shown if "application/vnd.plotly.v1+json" in output.get("data", {})]
        assert len(figures) == 3

"""The scripts that Streamlit runs itself: a string that stands alone in one would be written into the page."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [ROOT / "workbench" / "app.py", *sorted((ROOT / "pages").glob("*.py"))]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_no_script_has_a_bare_string_after_its_docstring(script):
    body = ast.parse(script.read_text(encoding="utf-8")).body
    bare = [each.lineno for each in body[1:] if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)]
    assert bare == []

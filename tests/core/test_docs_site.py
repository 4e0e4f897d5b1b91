"""The documentation site builds without a warning and without a network, and its links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

import focus_core

ROOT = Path(__file__).parents[2]
NOWHERE = "http://127.0.0.1:9"  # nothing listens on the discard port, so a page that is fetched fails the build

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs", "-d", folder / "read"]
    environment = {**os.environ, "http_proxy": NOWHERE, "https_proxy": NOWHERE, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [*command, ".", folder / "html"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"


def test_every_guide_and_every_public_name_is_on_it(site: Path):
    for guide in (ROOT / "docs").glob("*.md"):
        assert (site / "docs" / f"{guide.stem}.html").is_file()
    reference = "".join(page.read_text(encoding="utf-8") for page in (site / "docs" / "api").glob("*.html"))
    for name in focus_core.__all__:
        value = getattr(focus_core, name)
        assert f'id="{value.__module__}.{value.__qualname__}"' in reference


def test_links_and_pictures_lead_to_files(site: Path):
    pages = list(site.rglob("*.html"))
    assert (site / "index.html") in pages
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r'(?:href|src)="([^"]*)"', text):
            path = unquote(target.split("#")[0].split("?")[0])
            if path and not re.match(r"\w+:", path):
                assert (page.parent / path).exists(), f"{page.relative_to(site)}: {target}"


def test_pages_load_nothing_from_other_servers(site: Path):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|iframe)[^>]*\ssrc="([^"]*)"', text)
        loaded += re.findall(r'<link[^>]*rel="stylesheet"[^>]*href="([^"]*)"', text)
        assert [address for address in loaded if "//" in address] == []

"""A whole corpus in the browser: started, left, stopped, resumed, read and downloaded."""

from __future__ import annotations

import json
import re

import pytest
from hands import downloaded, press

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SENTENCE = "The keeper rowed to the island, and the wind came over the grey water. "


def test_a_json_lines_file_is_reported_in_the_background(open_page, tmp_path):
    file = tmp_path / "letters.jsonl"
    file.write_text("\n".join(json.dumps({"text": f"Letter {n}. {SENTENCE}"}) for n in range(100)) + "\n{}\n")
    page = open_page("source=paste&k=1", "report")
    page.get_by_text("Report on a whole corpus").click()
    page.get_by_role("textbox", name="Folder or file on this machine").fill(str(file))
    page.get_by_role("button", name="Start report").click()
    page.get_by_text(re.compile(r"letters\.jsonl:\d+: [\d,]+ tokens so far")).wait_for(timeout=120_000)
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_text("Resume goes on with letters.jsonl").wait_for()
    page.reload()  # the run is the machine's, not the session's
    page.get_by_text("Report on a whole corpus").click()
    resume = page.get_by_role("button", name="Resume", exact=True)
    resume.wait_for()
    page.locator("[data-test-script-state=notRunning]").wait_for()
    press(resume, page.get_by_role("button", name="Stop", exact=True))
    page.get_by_text(re.compile(r"240 groups in 30 layers hold")).wait_for(timeout=240_000)
    page.get_by_text(re.compile(r"100 documents, [\d,]+ tokens")).wait_for()
    page.get_by_text("1 that cannot be used").wait_for()
    report = page.frame_locator("iframe").first
    report.get_by_role("heading", name="group 0").first.wait_for()
    text = downloaded(page, page.get_by_role("button", name="report.html", exact=True)).read_text(encoding="utf-8")
    assert "letters.jsonl:1" in text and "Layer 29, group 7" in text and str(tmp_path) not in text

"""Reports in a real browser: files that open offline and run nothing; export and re-import."""

from __future__ import annotations

import io
import json
import zipfile

import pandas as pd
import pytest
from hands import downloaded
from typer.testing import CliRunner

from focus_core import cli
from focus_core.report.bundle import read_bundle

pytestmark = pytest.mark.browser

HOSTILE = (
    "<script>window.hacked = 1; alert(1)</script> <img src=x onerror='window.hacked = 1'> </script></style>"
    '<svg onload="alert(2)"> " onmouseover="alert(3)" javascript:alert(4) http://example.org/x.png **bold** =1+1 '
    "\u202egnirts desrever\u202c \u2066a\u2069 null\x01byte\n# Title\n"
)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A report on hostile text, as the command writes it; a fast model will do."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("report")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=2
    )
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(folder / "model")
    (folder / "<img src=x onerror=alert(5)>.txt").write_text(HOSTILE * 10)
    command = ["report", str(folder / "<img src=x onerror=alert(5)>.txt"), "--model", str(folder / "model")]
    title = "</title><script>alert(6)</script>"
    result = CliRunner().invoke(cli.app, [*command, "--untrained", "--out", str(folder / "out"), "--title", title])
    assert result.exit_code == 0, result.output
    return folder / "out"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_opens_offline_runs_nothing_and_reads_well(browser, exported, scheme):
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1200, "height": 900})
    page = context.new_page()
    asked, dialogs, errors = [], [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.route("**/*", lambda route: route.continue_() if route.request.url.startswith("file:") else route.abort())
    url = (exported / "report.html").as_uri()
    page.goto(url)
    assert asked == [url] and not dialogs and not errors
    assert page.evaluate("window.hacked") is None
    assert page.locator("img, iframe, link, object, [onload], [onerror], [onmouseover]").count() == 0
    assert page.locator("script").count() == 2  # its own, and the index that its search reads
    assert page.title() == "</title><script>alert(6)</script>"
    assert page.locator("article").count() == 24
    assert page.get_by_text("gnirts desrever").count() == 0 or "\u202e" not in page.content()
    for example in page.locator(".examples li").all()[:40]:
        example.hover()
    assert not dialogs and asked == [url]
    # Contrast of text and page is that of a theme, not of a mixture.
    ink, paper = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    light = [sum(map(int, color[4:-1].split(","))) / 765 for color in (ink, paper)]
    assert abs(light[0] - light[1]) > 0.7 and (light[1] > 0.5) == (scheme == "light")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.set_viewport_size({"width": 360, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    context.close()


def test_the_page_prints_on_white_paper(browser, exported):
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto((exported / "report.html").as_uri())
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert page.pdf(format="A4").startswith(b"%PDF")
    context.close()


TEXT = "Nora kept the lamp at Corrie Point. <b>Every</b> night she climbed the stairs, and she was glad of it.\n" * 12


def goto_report(page) -> None:
    page.get_by_role("link", name="Report").click()
    page.get_by_role("heading", name="Report: what is in each group?").wait_for()


def preview(page):
    return page.frame_locator("iframe").first


def exported_file(page, label: str) -> bytes:
    return downloaded(page, page.get_by_role("button", name=label)).read_bytes()


def test_export_and_reimport_bring_the_session_back(open_page, tmp_path):
    page = open_page("source=paste&k=1&layer=4&window=16")
    page.get_by_role("textbox", name="Your text").fill(TEXT)
    page.get_by_role("button", name="Show groups").click()
    page.wait_for_selector(".cell")
    goto_report(page)
    preview(page).get_by_role("heading", name="Layer 4, group 0").wait_for()
    page.get_by_text("Notes on the groups of this layer").click()
    page.get_by_role("textbox", name="Group 2").fill("lamps <script>alert(1)</script>")
    page.get_by_role("textbox", name="Group 3").click()
    preview(page).get_by_text("lamps <script>alert(1)</script>").wait_for()
    assert "Nora" not in page.url

    data = exported_file(page, "Session (ZIP)")
    session = read_bundle(data)
    assert session.text == TEXT and session.settings["k"] == "1" and session.settings["layer"] == "4"
    assert list(session.notes.values()) == [{"4/2": "lamps <script>alert(1)</script>"}]
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        html = archive.read("report.html").decode()
        assert archive.read("text.txt").decode() == TEXT
    assert exported_file(page, "HTML report").decode() == html and "<script>alert" not in html
    assert json.loads(exported_file(page, "JSON"))["origin"]["top_k"] == 1
    page.get_by_role("button", name="Tables").click()
    cards = pd.read_parquet(io.BytesIO(exported_file(page, "cards.parquet")))
    assert len(cards) == 240 and (cards["top_k"] == 1).all()

    # Somebody else, another session: nothing of it is there until the file is opened.
    (tmp_path / "session.zip").write_bytes(data)
    other = open_page("source=paste")
    other.get_by_text("Paste or upload a text").wait_for()
    goto_report(other)
    other.get_by_text("A card for every group").first.wait_for()
    assert "lamps" not in other.content() and "Nora" not in other.content()
    other.get_by_text("Open a session file").click()
    other.locator("input[type=file]").set_input_files(tmp_path / "session.zip")
    other.get_by_text("Opened the session of").wait_for()
    preview(other).get_by_text("lamps <script>alert(1)</script>").wait_for()
    assert other.get_by_role("textbox", name="Your text").input_value() == TEXT
    assert exported_file(other, "HTML report").decode() == html
    again = read_bundle(exported_file(other, "Session (ZIP)"))
    assert (again.text, again.settings, again.choices, again.notes) == (
        session.text,
        session.settings,
        session.choices,
        session.notes,
    )


def test_settings_and_text_survive_a_change_of_page(open_page):
    page = open_page("source=paste&k=3&layer=4&window=16&sinks=2")
    page.get_by_role("textbox", name="Your text").fill(TEXT)
    page.get_by_role("button", name="Show groups").click()
    page.wait_for_selector(".cell")
    before = page.url.partition("?")[2]
    goto_report(page)
    preview(page).get_by_role("heading", name="Layer 4, group 0").wait_for()
    page.wait_for_url(lambda url: "report" in url and "k=3" in url)
    for setting in ("routers=untrained", "k=3", "window=16", "sinks=2", "source=paste", "layer=4"):
        assert setting in before and setting in page.url
    assert page.get_by_role("textbox", name="Your text").input_value() == TEXT
    assert page.get_by_text("K 8 · k 3 · w 16 · sinks 2").count()


def test_a_spoilt_session_file_is_refused_in_one_sentence(open_page, tmp_path):
    (tmp_path / "session.zip").write_bytes(b"PK\x03\x04 nonsense")
    page = open_page("source=paste")
    page.get_by_text("Paste or upload a text").wait_for()
    goto_report(page)
    page.get_by_text("Open a session file").click()
    page.locator("input[type=file]").set_input_files(tmp_path / "session.zip")
    page.get_by_text("it is damaged or cut short").wait_for()
    assert page.get_by_text("Traceback").count() == 0

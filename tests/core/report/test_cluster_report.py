"""Cluster reports: sums against direct counting, and files that are safe to open."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import math
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from focus_core.errors import FocusError
from focus_core.report import Block, Statistics
from focus_core.report.build import build_report, share_intervals
from focus_core.report.files import report_files, write_files
from focus_core.report.model import SECTIONS, Document
from focus_core.report.visible import visible

LAYERS, GROUPS, TYPES, TAGS = 2, 3, 7, 4
ORIGIN = {
    "model": "a model",
    "model_revision": "0123456789ab",
    "routers": "some routers",
    "routers_hash": "ba9876543210",
    "routers_trained": True,
    "num_groups": GROUPS,
    "top_k": 2,
    "window": 4,
    "sink_tokens": 1,
    "balance": "calibrated",
    "states": "untouched model",
    "text_sha256": "0" * 64,
}
HOSTILE = [
    "<script>window.hacked = 1</script>",
    "</script></style></title></article><script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)> ' onmouseover='alert(1)",
    "<!-- {{ 7 * 7 }} {% raw %} -->",
    "# Title **bold** [link](javascript:alert(1)) ![x](http://example.org/x.png)",
    '=HYPERLINK("http://example.org") ',
    "+1+1 @SUM(A1) -2",
    "null\x00byte bell\x07",
    "\u202egnirts desrever\u202c \u2066isolated\u2069 \u200bhidden\ufeff",
    "\u2028line\u2029paragraph",
    "https://example.org/track.gif",
]


def make_blocks(text: str, count: int, tokens: int, seed: int = 0) -> list[Block]:
    """Random blocks over a text of one character per token."""
    rng = np.random.default_rng(seed)
    blocks = []
    for index in range(count):
        start = index * tokens
        raw = rng.random((LAYERS, tokens, GROUPS)).astype(np.float32)
        assignment = raw / raw.sum(-1, keepdims=True)
        membership = assignment >= np.sort(assignment, -1)[..., -2:-1]
        spans = np.stack([np.arange(start, start + tokens), np.arange(start + 1, start + tokens + 1)], 1)
        tagged = np.flatnonzero(rng.random(tokens) < 0.6)
        tags = rng.integers(0, TAGS, len(tagged))
        ids = rng.integers(0, TYPES, tokens)
        blocks.append(Block(0, text, 0, 0, ids, spans, assignment, membership, tagged, tags))
    return blocks


def collected(blocks: list[Block], text: str, examples: int = 3, seed: int = 0) -> Statistics:
    statistics = Statistics(LAYERS, GROUPS, TYPES, characters=len(text), num_tags=TAGS, examples=examples, seed=seed)
    for block in blocks:
        statistics.add(block)
    return statistics


def report_on(statistics: Statistics, texts: list[str], name: str = "text", title: str = "title"):
    return build_report(
        statistics,
        lambda ids: [texts[i] for i in ids],
        layers=(4, 9),
        documents=(Document(name, statistics.characters, "0" * 64),),
        origin=ORIGIN,
        title=title,
        block_length=50,
        tag_names=("NOUN", "VERB", "DET", "X"),
        tagger="nobody",
    )


@pytest.fixture(scope="module")
def text() -> str:
    return "".join(np.random.default_rng(5).choice(list("abcdefghij \n"), 2000))


@pytest.fixture(scope="module")
def blocks(text) -> list[Block]:
    return make_blocks(text, 40, 50)


@pytest.fixture(scope="module")
def report(blocks, text):
    return report_on(collected(blocks, text), list("tuvwxyz"))


def test_sums_are_those_of_direct_counting(blocks, text):
    statistics = collected(blocks, text)
    groups = np.concatenate([block.assignment.argmax(-1) for block in blocks], 1)
    weights = np.concatenate([block.assignment.max(-1) for block in blocks], 1)
    ids = np.concatenate([block.input_ids for block in blocks])
    for layer in range(LAYERS):
        counted = Counter(zip(groups[layer].tolist(), ids.tolist()))
        assert {(g, t): int(n) for (g, t), n in np.ndenumerate(statistics.counts[layer]) if n} == dict(counted)
        for group in range(GROUPS):
            assert statistics.weight[layer, group] == pytest.approx(weights[layer][groups[layer] == group].sum())
    both = Counter(zip(groups[0].tolist(), groups[1].tolist()))
    for (a, b), n in both.items():
        assert statistics.joint[0, a, GROUPS + b] == n == statistics.joint[0, GROUPS + b, a]
    members = sum(block.membership.sum(1) for block in blocks)
    assert (statistics.members == members).all() and members.sum() == 2 * groups.size
    tags = Counter()
    for block in blocks:
        for token, tag in zip(block.tagged, block.tags):
            tags[int(block.assignment[1, token].argmax()), int(tag)] += 1
    found = statistics.unit_tags[:, 1].sum(0)
    assert {(g, t): int(n) for (g, t), n in np.ndenumerate(found) if n} == dict(tags)
    assert (statistics.units.sum(0) == statistics.counts.sum(-1)).all()


def test_a_card_says_what_direct_counting_says(report, blocks, text):
    groups = np.concatenate([block.assignment.argmax(-1) for block in blocks], 1)
    ids = np.concatenate([block.input_ids for block in blocks])
    total = len(ids)
    assert report.num_tokens == total and report.layers == (4, 9)
    for card in report.cards:
        row = report.layers.index(card.layer)
        inside = groups[row] == card.group
        assert card.count == inside.sum() and card.share.value == pytest.approx(inside.mean())
        assert card.share.low < card.share.value < card.share.high
        for token in card.frequent:
            here, everywhere = (ids[inside] == token.token_id).sum(), (ids == token.token_id).sum()
            assert (token.count, token.total) == (here, everywhere)
            assert token.pmi == pytest.approx(math.log2(here * total / (inside.sum() * everywhere)))
        assert all(a.count >= b.count for a, b in pairwise(card.frequent))
        assert all(a.pmi >= b.pmi for a, b in pairwise(card.typical))
        (other,) = card.persistence
        there = groups[1 - row][inside]
        same = sum(math.comb(n, 2) for n in Counter(there.tolist()).values())
        assert other.observed == pytest.approx(same / math.comb(len(there), 2))
        pairs = sum(math.comb(n, 2) for n in Counter(groups[1 - row].tolist()).values())
        assert other.chance == pytest.approx(pairs / math.comb(total, 2))
        assert sum(tag.share.value for tag in card.tags) == pytest.approx(1)


def test_the_interval_of_a_share_is_that_of_an_independent_bootstrap(text):
    """Stretches of the text resampled one by one, with another generator."""
    statistics = collected(make_blocks(text, 40, 50), text)
    card = report_on(statistics, list("tuvwxyz")).cards[0]
    units = statistics.units[:, 0]
    rng = np.random.default_rng(99)
    shares = []
    for _ in range(4000):
        drawn = units[rng.integers(0, len(units), len(units))]
        shares.append(drawn[:, 0].sum() / drawn.sum())
    low, high = np.quantile(shares, (0.025, 0.975))
    assert card.share.low == pytest.approx(low, abs=0.004) and card.share.high == pytest.approx(high, abs=0.004)


@pytest.mark.parametrize("units", [16, 40])
def test_nineteen_of_twenty_intervals_hold_the_true_share(units):
    """Documents of uneven length whose shares differ: the true share is that of all documents that could be drawn."""
    rng = np.random.default_rng(units)
    held, trials, mean = 0, 1500, 0.3
    for _ in range(trials):
        totals = rng.integers(60, 140, units)
        shares = rng.beta(6, 14, units)
        counts = rng.binomial(totals, shares)
        (found,) = share_intervals(counts[:, None], totals)
        held += found.low <= mean <= found.high
    assert 0.93 < held / trials < 0.97


def test_intervals_over_fewer_than_sixteen_units_are_marked():
    texts = ["x" * 1400, "x" * 2000]
    marked = [report_on(collected(make_blocks(text, len(text) // 50, 50), text), list("tuvwxyz")) for text in texts]
    assert "fewer than 16" in marked[0].intervals and "fewer than" not in marked[1].intervals
    assert marked[0].cards[0].share.low is not None


def test_a_short_text_gets_no_intervals():
    text = "x" * 100
    report = report_on(collected(make_blocks(text, 2, 50), text), list("tuvwxyz"))
    assert all(card.share.low is None for card in report.cards)
    assert "descriptive" in report.intervals


def test_examples_are_true_strongest_and_evenly_drawn(blocks, text):
    statistics = collected(blocks, text)
    groups = np.concatenate([block.assignment.argmax(-1) for block in blocks], 1)
    weights = np.concatenate([block.assignment.max(-1) for block in blocks], 1)
    ids = np.concatenate([block.input_ids for block in blocks])
    for cell, found in enumerate(statistics.strongest):
        layer, group = divmod(cell, GROUPS)
        inside = np.flatnonzero(groups[layer] == group)
        best: dict[int, float] = {}
        for token in inside[np.argsort(-weights[layer, inside])]:
            best.setdefault(int(ids[token]), float(weights[layer, token]))
        assert [(o.token_id, o.weight) for o in found] == list(best.items())[:3]
        for occurrence in [*found, *statistics.random[cell]]:
            assert groups[layer, occurrence.start] == group
            assert text[occurrence.start] == occurrence.token
            assert text[: occurrence.start].endswith(occurrence.before)
            assert text[occurrence.start + 1 :].startswith(occurrence.after)
    positions = [o.start for seed in range(60) for o in collected(blocks, text, seed=seed).random[0]]
    assert abs(np.mean(positions) - len(text) / 2) < 4 * len(text) / math.sqrt(12 * len(positions))


def test_interrupted_sums_go_on_as_if_nothing_had_happened(blocks, text):
    whole = collected(blocks, text)
    part = collected(blocks[:17], text)
    again = Statistics(LAYERS, GROUPS, TYPES, characters=len(text), num_tags=TAGS, examples=3, seed=0)
    again.restore(json_copy(part.arrays()), part.samples())
    for block in blocks[17:]:
        again.add(block)
    assert all((again.arrays()[name] == array).all() for name, array in whole.arrays().items())
    assert again.samples() == whole.samples()


@pytest.mark.parametrize("seed", range(3))
def test_parts_in_any_order_add_up_to_the_whole(blocks, text, seed):
    """Blocks shared out at random, summed apart in any order, and added in any order."""
    whole = collected(blocks, text)
    rng = np.random.default_rng(seed)
    shares = np.array_split(rng.permutation(len(blocks)), 6)
    merged = collected([], text)
    for share in shares:
        merged.merge(collected([blocks[index] for index in share], text).part())
    for name, array in whole.arrays().items():
        assert (
            np.allclose(merged.arrays()[name], array, rtol=1e-12, atol=0)
            if name == "weight"
            else (merged.arrays()[name] == array).all()
        )
    assert merged.random == whole.random and merged.strongest == whole.strongest
    assert any(whole.random) and any(whole.strongest)


def json_copy(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array.copy() for name, array in arrays.items()}


def test_counts_that_would_not_fit_are_refused():
    with pytest.raises(FocusError, match="fewer layers"):
        Statistics(100, 64, 300_000, characters=1)


@pytest.mark.parametrize("layers", [(4,), (4, 9)])
def test_what_is_left_out_is_in_no_file(report, layers):
    noted = report.with_notes({(4, 1): "my secret note"})
    everything = report_files(noted.only(report.layers, list(SECTIONS)))
    assert b"my secret note" in everything["report.html"] and b"my secret note" in everything["report.json"]
    bare = noted.only(layers, [])
    files = report_files(bare)
    assert set(files) == {"report.html", "report.json", "cards.csv", "cards.parquet"}
    assert not any(b"secret" in data for data in files.values())
    cards = pd.read_parquet(io.BytesIO(files["cards.parquet"]))
    assert tuple(cards["layer"].unique()) == layers and (cards["text_sha256"] == "0" * 64).all()


# Files that are safe to open


INDEX = {"type": "application/json", "id": "index"}


class Tags(HTMLParser):
    """Every tag with its attributes, and the text between them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def hostile():
    """A report in which everything that can be user text is hostile."""
    text = " ".join(HOSTILE).ljust(2000, "<")
    statistics = collected(make_blocks(text, 40, 50), text)
    report = report_on(statistics, HOSTILE[:TYPES], name=HOSTILE[1], title=HOSTILE[0])
    return report.with_notes({(4, g): "\n".join(HOSTILE) for g in range(GROUPS)})


def test_the_page_asks_for_nothing_and_runs_its_own_script_alone(hostile):
    written = report_files(hostile)["report.html"].decode()
    page = Tags(written)
    allowed = {"href", "id", "class", "style", "title", "role", "scope", "lang", "charset", "name", "content", "points"}
    allowed |= {"http-equiv", "viewbox", "preserveaspectratio", "data-theme", "aria-label", "aria-describedby", "type"}
    allowed |= {"for", "autocomplete", "spellcheck", "placeholder", "tabindex", "open", "data-holds", "data-copy"}
    for tag, attributes in page.found:
        assert tag not in ("img", "link", "iframe", "object", "embed", "base", "form"), tag
        assert set(attributes) <= allowed, attributes
        assert (attributes.get("href") or "#").startswith("#")
        assert "url(" not in (attributes.get("style") or "")
    assert [attributes for tag, attributes in page.found if tag == "script"] == [INDEX, {}]
    script = written.split("<script>")[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [attributes["content"] for _, attributes in page.found if "http-equiv" in attributes]
    assert f"script-src 'sha256-{digest}'" in policy and policy.startswith("default-src 'none'")
    assert "http" not in script and "fetch" not in script and "eval" not in script
    style = written.split("<style>")[1].split("</style>")[0]
    assert "url(" not in style and "@import" not in style


def test_hostile_text_is_shown_as_it_is_but_for_what_cannot_be_seen(hostile):
    page = report_files(hostile)["report.html"].decode()
    shown = Tags(page).text
    for text in HOSTILE:
        assert visible(text) in shown
    assert not any(character in page for character in "\x00\x07\u202e\u2066\u2028\u200b\ufeff")


def test_tables_defuse_formulas_and_keep_rows_whole(hostile):
    files = report_files(hostile)
    for name in ("cards", "tokens", "examples", "tags", "persistence"):
        rows = list(csv.reader(io.StringIO(files[f"{name}.csv"].decode("utf-8-sig"))))
        assert {len(row) for row in rows} == {len(rows[0])}
        assert not any(cell.lstrip(" ").startswith(("=", "+", "@", "\t", "\r")) for row in rows for cell in row)
        assert not any(c in cell for row in rows for cell in row for c in "\x00\u202e\n")
    tokens = pd.read_parquet(io.BytesIO(files["tokens.parquet"]))
    assert set(tokens["token"]) == set(HOSTILE[:TYPES])


def test_json_is_ascii_and_exact(hostile):
    raw = report_files(hostile)["report.json"]
    assert raw.isascii() and b"\x00" not in raw
    values = json.loads(raw)
    assert values["title"] == HOSTILE[0] and values["documents"][0]["name"] == HOSTILE[1]
    assert values["cards"][0]["note"] == "\n".join(HOSTILE)
    assert values["origin"] == ORIGIN and values["seed"] == 0 and set(values["made"]) >= {"date", "versions"}


def test_files_appear_whole(tmp_path, report):
    written = write_files(report_files(report), tmp_path / "new" / "folder")
    assert all(path.is_file() for path in written)
    assert not list(tmp_path.rglob("*.partial"))

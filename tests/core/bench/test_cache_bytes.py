"""The memory of caches: `cache_bytes` of `focus bench model` against sizes on paper and against the cache written out."""

import io
import zipfile

import pytest
import torch
from transformers.cache_utils import DynamicCache

from focus_core import FocusConfig, retrofit
from focus_core.bench.measures.memory import held_bytes
from focus_core.bench.model import ModelBenchSettings, run_model_bench
from focus_core.commands.tables.bench import model_bench_table

NARROW = FocusConfig(router="narrow", num_groups=4, top_k=1, window=8, sink_tokens=2, chunk=4, page_size=4)


def written(cache):
    """Bytes of the storages of a cache as PyTorch writes them to a file, each once."""
    file = io.BytesIO()
    torch.save(cache, file)
    entries = zipfile.ZipFile(file).infolist()
    return sum(entry.file_size for entry in entries if entry.filename.split("/")[-2] == "data")


def on_paper(model, tokens):
    """Keys and values of every token, in float32."""
    config = model.config
    width = config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * config.num_key_value_heads * tokens * width * 4


def filled(focus, ids, **options):
    cache = DynamicCache(config=focus.model.config)
    with torch.inference_mode(), focus.routing("hard", **options):
        focus(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return cache


@pytest.mark.parametrize(("share", "options"), [(0.2, [{}]), (None, [{"top_k": 1}, {"top_k": 2}])])
def test_caches_of_narrow_groups_and_of_the_untouched_model(tiny_llama, share, options):
    ids = torch.randint(len(tiny_llama.tokenizer), (90,), generator=torch.Generator().manual_seed(0))
    focus = retrofit(tiny_llama.model, NARROW.replace(read_share=share), seed=0)
    settings = ModelBenchSettings(prefill=(16,), decode=(40, 80), repetitions=1, steps=5, full_below=0)
    rows = run_model_bench(focus, ids, settings)
    assert not any("cache_bytes" in row for row in rows if row["task"] == "prefill")
    for tokens in (40, 80):
        off, *routed = (row for row in rows if (row["task"], row["tokens"]) == ("decode", tokens))
        assert off["routing"] == "off" and off["cache_bytes"] == on_paper(tiny_llama.model, tokens)
        caches = [filled(focus, ids[None, :tokens], **each) for each in options]
        assert [row["cache_bytes"] for row in routed] == [written(cache) for cache in caches]
        assert all(row["cache_bytes"] > off["cache_bytes"] for row in routed)  # all keys and values, and sums of pages


def test_caches_of_groups_that_tokens_share(tiny_llama):
    focus = retrofit(tiny_llama.model, FocusConfig(num_groups=4, window=8), seed=0)
    settings = ModelBenchSettings(prefill=(16,), decode=(40,), top_k=(1, 2), repetitions=1, steps=2)
    off, *routed = (row for row in run_model_bench(focus, torch.arange(60), settings) if row["task"] == "decode")
    assert off["cache_bytes"] == on_paper(tiny_llama.model, 40)
    groups = 3 * 40 * 4  # one bool for each layer, token and group
    assert [row["cache_bytes"] - off["cache_bytes"] for row in routed] == [groups, groups]


def test_views_of_one_storage_count_once_and_whole():
    class Holder:
        def __init__(self):
            whole = torch.zeros(100)
            self.parts = {"first": whole[:10], "list": [whole[50:], (torch.zeros(3, dtype=torch.int64),)]}
            self.nothing, self.itself, self.module = None, self, torch.nn.Linear(9, 9)

    assert held_bytes(Holder()) == 100 * 4 + 3 * 8


def test_the_terminal_shows_caches_where_a_record_has_them(tiny_llama):
    focus = retrofit(tiny_llama.model, FocusConfig(num_groups=4, window=8), seed=0)
    settings = ModelBenchSettings(prefill=(16,), decode=(40,), top_k=(1,), repetitions=1, steps=1)
    rows = run_model_bench(focus, torch.arange(60), settings)
    rows[-1]["cache_bytes"] = 3 * 2**30
    record = {"model": {"name": "tiny"}, "made": {"device": "cpu", "threads": 1, "versions": {}}, "results": rows}
    older = {**record, "results": [{name: row[name] for name in row if name != "cache_bytes"} for row in rows]}
    for shown, last in ((record, "3,072"), (older, "")):
        (memory,) = (column for column in model_bench_table(shown).columns if column.header == "MiB")
        assert list(memory.cells)[-1] == last

"""An alignment on a real Ray cluster of two workers, one of which is killed, is that of one process."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

from focus_core import FocusError, cli, retrofit
from focus_core.analysis.linguistics.documents import AlignSettings, find_documents, route_documents
from focus_core.analysis.linguistics.run import align_texts
from focus_core.cluster import Cluster
from focus_core.progress import silent
from focus_core.report.corpus import scan

SETTINGS = AlignSettings(length=64, passages=0, repeats=20, top_k=1)


@pytest.fixture
def texts(tmp_path):
    """Two texts of many passages."""
    files = [tmp_path / f"text-{number}.txt" for number in range(2)]
    for number, file in enumerate(files):
        sentences = [f"The old keeper of light {each * number} saw {each} ships near London." for each in range(12)]
        file.write_text(" ".join(sentences))
    return files


def aligned(texts, folder, **options):
    return align_texts(texts, model=folder, routers=folder / "routers", settings=SETTINGS, **options)


def test_two_workers_align_what_one_process_aligns_though_one_is_killed(texts, model_folder, cluster, killing):
    kill = killing("Tagging and routing")
    one, two = aligned(texts, model_folder), aligned(texts, model_folder, cluster=cluster, progress=kill)
    assert len(kill.killed) == 1 and not kill.killed[0].is_running()
    assert one.sample.num_documents >= 20
    for name in ("groups", "membership", "tokens", "types", "sentences", "documents"):
        assert np.array_equal(getattr(one.sample, name), getattr(two.sample, name)), name
    for name in ("words", "tags", "relations", "entities"):
        assert getattr(one.sample, name) == getattr(two.sample, name)
    assert {**two.record, "made": 0} == {**one.record, "made": 0}


def test_documents_of_a_worker_are_this_processs_own(texts, model_folder, cluster, tiny_llama):
    """Arrays that Ray sent would hold its shared memory for as long as they live."""
    focus, tokenizer = retrofit(tiny_llama.model), tiny_llama.tokenizer
    documents = find_documents(scan(texts), tokenizer, SETTINGS)[1][:3]
    where = {"cluster": cluster, "model": model_folder, "progress": silent}
    found = route_documents(focus, tokenizer, documents, SETTINGS, **where)
    assert len(found) == 3 and all(each.words.groups.flags.writeable for each in found)
    focus.detach()


def test_faults_are_one_sentence(texts, model_folder, tiny_llama):
    with pytest.raises(FocusError, match="Workers load the model themselves"):
        align_texts(texts, model=tiny_llama, untrained=True, settings=SETTINGS, cluster=Cluster())
    done = CliRunner().invoke(
        cli.app, ["align", str(texts[0]), "--model", str(model_folder), "--untrained", "--workers", "2"]
    )
    assert (done.exit_code, done.output.count("\n")) == (2, 1) and "--workers belongs to a cluster" in done.output

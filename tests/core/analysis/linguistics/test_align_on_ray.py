"""An alignment on a real Ray cluster of two workers is that of one process, also one that was stopped.

That a worker which is killed changes nothing is a test of the cluster and of reports, which work in the same way.
"""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

from focus_core import FocusError, cli
from focus_core.analysis.linguistics.corpus.documents import AlignJob, AlignSettings
from focus_core.analysis.linguistics.run import align_texts
from focus_core.cluster import Cluster

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


@pytest.mark.slow
def test_what_is_stopped_here_and_on_two_workers_resumes_to_what_one_process_aligns(
    texts, model_folder, cluster, monkeypatch, tmp_path, stops
):
    runs = tmp_path / "runs"
    monkeypatch.setenv("FOCUS_RUNS", str(runs))
    work, worked = AlignJob.work, []
    monkeypatch.setattr(AlignJob, "work", lambda *given: worked.append(given[3]) or work(*given))
    one, documents, stored = aligned(texts, model_folder), len(worked), [0]
    assert one.sample.num_documents >= 20 and not list(runs.rglob("0???????"))
    for share, options in ((0.05, {}), (0.4, {"cluster": cluster})):  # half of the whole is routing
        with pytest.raises(KeyboardInterrupt):
            aligned(texts, model_folder, progress=stops("Tagging", share), **options)
        stored.append(len(list(runs.rglob("0???????"))))
    assert 0 < stored[1] < stored[2] < documents
    worked.clear()
    with pytest.raises(KeyboardInterrupt):
        aligned(texts, model_folder, progress=stops("Scoring", 0.0))
    assert len(worked) == documents - stored[2] and len(list(runs.rglob("0???????"))) == documents
    worked.clear()
    two = aligned(texts, model_folder)
    assert not worked and not list(runs.rglob("0???????"))
    for name in ("groups", "membership", "tokens", "types", "sentences", "documents"):
        assert np.array_equal(getattr(one.sample, name), getattr(two.sample, name)), name
    for name in ("words", "tags", "relations", "entities"):
        assert getattr(one.sample, name) == getattr(two.sample, name)
    assert {**two.record, "made": 0} == {**one.record, "made": 0}


def test_faults_are_one_sentence(texts, model_folder, tiny_llama):
    with pytest.raises(FocusError, match="Workers load the model themselves"):
        align_texts(texts, model=tiny_llama, untrained=True, settings=SETTINGS, cluster=Cluster())
    done = CliRunner().invoke(
        cli.app, ["align", str(texts[0]), "--model", str(model_folder), "--untrained", "--workers", "2"]
    )
    assert (done.exit_code, done.output.count("\n")) == (2, 1) and "--workers belongs to a cluster" in done.output

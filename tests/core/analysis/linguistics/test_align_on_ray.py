"""An alignment on a real Ray cluster of two workers, one of which is killed, is that of one process."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

from focus_core import FocusError, cli
from focus_core.analysis.linguistics.documents import AlignJob, AlignSettings
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


@pytest.mark.slow
def test_what_is_stopped_resumes_with_and_without_a_cluster(texts, model_folder, cluster, monkeypatch, tmp_path, stops):
    runs = tmp_path / "runs"
    monkeypatch.setenv("FOCUS_RUNS", str(runs))
    work, worked = AlignJob.work, []
    monkeypatch.setattr(AlignJob, "work", lambda *given: worked.append(given[3]) or work(*given))
    one, documents, stored = aligned(texts, model_folder), len(worked), [0]
    assert not list(runs.rglob("0???????"))
    for share, options in ((0.1, {}), (0.25, {"cluster": cluster})):  # half of the whole is routing
        with pytest.raises(KeyboardInterrupt):
            aligned(texts, model_folder, progress=stops("Tagging", share), **options)
        stored.append(len(list(runs.rglob("0???????"))))
    assert 0 < stored[1] < stored[2] < documents
    worked.clear()
    with pytest.raises(KeyboardInterrupt):
        aligned(texts, model_folder, progress=stops("Scoring", 0.0))
    assert len(worked) == documents - stored[2] and len(list(runs.rglob("0???????"))) == documents
    worked.clear()
    again = aligned(texts, model_folder, cluster=cluster)
    assert not worked and not list(runs.rglob("0???????"))
    assert {**again.record, "made": 0} == {**one.record, "made": 0}
    assert again.sample.words == one.sample.words and np.array_equal(again.sample.groups, one.sample.groups)


def test_faults_are_one_sentence(texts, model_folder, tiny_llama):
    with pytest.raises(FocusError, match="Workers load the model themselves"):
        align_texts(texts, model=tiny_llama, untrained=True, settings=SETTINGS, cluster=Cluster())
    done = CliRunner().invoke(
        cli.app, ["align", str(texts[0]), "--model", str(model_folder), "--untrained", "--workers", "2"]
    )
    assert (done.exit_code, done.output.count("\n")) == (2, 1) and "--workers belongs to a cluster" in done.output

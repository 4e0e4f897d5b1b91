"""Chance, kinds of predictions, and the record of `focus effects`."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from focus_core import FocusConfig, FocusError, cli, retrofit
from focus_core.analysis.interventions import Change, Experiment
from focus_core.analysis.interventions.chance import Trial, against_chance, corrected, random_keys
from focus_core.analysis.interventions.groups import EffectSettings, group_effect
from focus_core.analysis.interventions.run import effects_of_text, first_tokens
from focus_core.analysis.interventions.slices import (
    COPIED,
    NEW,
    SEEN,
    Kinds,
    by_kind,
    copied_or_new,
    distances,
    parts_of_speech,
)
from focus_core.analysis.linguistics.corpus.tagging import tag_text
from focus_core.routing.narrow.fitting.fit import fit_narrow

TEXT = "The ships came back to the harbour of the old town, and the town waited for the ships. " * 3


def narrow(loaded):
    blocks = np.random.default_rng(0).integers(1, 200, (4, 200))
    settings = FocusConfig(router="narrow", num_groups=6, top_k=1, window=20, sink_tokens=3, chunk=8, read_share=0.3)
    return fit_narrow(loaded.model, blocks, settings)


def test_p_values_count_random_sets_that_reach_the_value():
    random = np.arange(1.0, 20.0)
    assert against_chance(19.5, random).p_value == 1 / 20
    assert against_chance(18.0, random).p_value == 3 / 20
    assert against_chance(-18.0, random, two_sided=True).p_value == 3 / 20
    assert against_chance(0.0, np.zeros(0)).p_value == 1


def test_a_stopped_test_divides_by_the_draws_it_needed():
    random = np.array([0, 5, 0, 5, 0, 5, 9, 9])
    assert against_chance(4.0, random, stop_after=3).p_value == 3 / 6
    assert against_chance(4.0, random, stop_after=9).p_value == 6 / 9


def test_p_values_of_nothing_are_even():
    """Under the null hypothesis, a stopped test says p <= 0.1 in at most about a tenth of the cases."""
    rng = np.random.default_rng(1)
    low = [against_chance(*_one(rng), stop_after=10).p_value <= 0.1 for _ in range(4000)]
    assert 0.07 < np.mean(low) < 0.115


def _one(rng):
    values = rng.normal(size=200)
    return values[0], values[1:]


def test_holm_over_groups():
    values = [against_chance(v, np.arange(100.0)) for v in (99.5, 50.0, 98.5)]
    assert [each.adjusted for each in corrected(values)] == pytest.approx([3 / 101, 10 / 60, 4 / 101])


def test_random_keys_are_as_many_and_readable(tiny_llama):
    focus = narrow(tiny_llama)
    experiment = Experiment(focus, np.random.default_rng(2).integers(1, 200, 120), 1, 0)
    seen = []
    random_keys(experiment, 5, seen.append)(np.random.default_rng(0))
    assert len(set(seen[0].tolist())) == 5
    assert set(seen[0]) <= set(experiment.eligible())
    assert experiment.eligible().tolist() == list(range(3, 120 - 20 - 1))


def test_copied_seen_and_new_tokens():
    kinds = copied_or_new(np.array([5, 6, 7, 5, 6, 5, 9]))
    assert kinds.labels.tolist() == [NEW, NEW, SEEN, COPIED, SEEN, NEW]


def test_distances_are_to_the_nearest_key_beyond_the_window():
    labels = distances(np.array([2, 10]), 40, 4).labels
    assert labels[6] == "no such key" and labels[7] == "5–8 tokens"
    assert labels[14] == "9–16 tokens"  # 12 from key 2; key 10 is in the window
    assert labels[15] == "5–8 tokens" and labels[38] == "17–32 tokens"


def test_parts_of_speech_are_those_of_the_predicted_word(byte_tokenizer):
    text = "Dogs bark."
    kinds = parts_of_speech(tag_text(text), np.array([[i, i + 1] for i in range(len(text))]))
    assert kinds.labels[3] == "" and kinds.labels[-1] == "PUNCT"
    assert len(set(kinds.labels[4:8])) == 1


def test_kinds_are_compared_within_themselves():
    labels = np.array(["a"] * 6 + ["b"] * 6)
    own = np.where(labels == "a", 1.0, 0.0).astype(np.float32)
    random = np.tile(np.linspace(0, 0.5, 19, dtype=np.float32)[:, None], 12)
    found = Trial(Change(own, own, 1), random, random)
    table = by_kind(found, Kinds("kind", labels, ("a", "b", "c"))).set_index("kind")
    assert table.index.tolist() == ["a", "b"]
    assert table.loc["a", "p"] == 1 / 20 and table.loc["a", "p (Holm)"] == 2 / 20
    assert table.loc["b", "p"] == 1


def test_draws_stop_once_the_effect_is_common(tiny_llama):
    focus = narrow(tiny_llama)
    experiment = Experiment(focus, np.random.default_rng(2).integers(1, 200, 120), 1, 0)
    group = int(experiment.site.members[experiment.eligible()].sum(0).argmin())
    stopped = group_effect(experiment, group, EffectSettings(draws=60, stop_after=1))
    whole = group_effect(experiment, group, EffectSettings(draws=60, stop_after=None))
    assert stopped.kl.draws < whole.kl.draws == 60
    again = group_effect(experiment, group, EffectSettings(draws=60, stop_after=None))
    assert np.array_equal(whole.trial.random_kl, again.trial.random_kl)


def test_a_record_is_resumed_group_by_group(tiny_llama, tmp_path):
    focus, out = narrow(tiny_llama), tmp_path / "effects.json"
    settings = {"model": tiny_llama, "routers": focus, "layer": 1, "head": 1, "tokens": 120}
    few = EffectSettings(draws=4, targets=(60,))
    first = effects_of_text(TEXT, groups=(2,), settings=few, out=out, **settings)
    stored = json.loads(out.read_text())
    assert stored["schema"] == "focus-effects/1" and [each["group"] for each in stored["points"]] == [2]
    asked = []
    both = effects_of_text(
        TEXT, groups=(2, 4), settings=few, out=out, progress=lambda text, share: asked.append(text), **settings
    )
    assert not any(text.startswith("Group 2") for text in asked)
    assert any(text.startswith("Group 4, 2 of 2") for text in asked)
    assert both.table["group"].tolist() == [2, 4]
    assert both.table["kl"][0] == pytest.approx(first.table["kl"][0])
    assert (both.table["kl p (Holm)"] >= both.table["kl p"]).all()
    point = both.record["points"][1]
    assert set(point["kinds"]) == {"copied or new", "distance", "part of speech"}
    assert len(point["token_kl"]) == 119 and len(point["targets"]) == 1
    with pytest.raises(FocusError, match="other settings"):
        effects_of_text(TEXT, settings=EffectSettings(draws=5), out=out, **settings)


def test_a_short_text_has_nothing_to_remove(tiny_llama):
    focus = retrofit(tiny_llama.model, FocusConfig(num_groups=4, top_k=1, window=64))
    with pytest.raises(FocusError, match="give a longer text"):
        effects_of_text("A short one.", model=tiny_llama, routers=focus, layer=0)


def test_a_text_is_cut_at_its_tokens(byte_tokenizer):
    text, encoding = first_tokens(byte_tokenizer, "abcdef", 4)
    assert text == "abcd" and len(encoding.input_ids) == 4
    assert first_tokens(byte_tokenizer, "ab", 4)[0] == "ab"


@pytest.mark.parametrize("wrong", [{"kind": "kill"}, {"chance": "luck"}, {"kind": "force", "chance": "links"}])
def test_settings_are_checked(wrong):
    with pytest.raises(FocusError):
        EffectSettings(**wrong)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--layer", "99"], "Layer 99 has no router"), (["--layer", "3", "--kind", "hurt"], "choose one of knock-out")],
)
def test_the_command_names_what_is_wrong(tmp_path, arguments, words, tiny_llama):
    folder, text = tmp_path / "model", tmp_path / "text.txt"
    tiny_llama.model.save_pretrained(folder)
    tiny_llama.tokenizer.save_pretrained(folder)
    text.write_text(TEXT)
    found = CliRunner().invoke(cli.app, ["effects", str(text), "-m", str(folder), "--untrained", *arguments])
    assert found.exit_code == 2 and words in found.output


def test_the_command_prints_a_table_and_a_record(tmp_path, tiny_llama):
    folder, text = tmp_path / "model", tmp_path / "text.txt"
    tiny_llama.model.save_pretrained(folder)
    tiny_llama.tokenizer.save_pretrained(folder)
    text.write_text(TEXT)
    command = ["effects", str(text), "-m", str(folder), "--untrained", "--layer", "1", "--draws", "2", "-g", "3"]
    shown = CliRunner().invoke(cli.app, command)
    assert shown.exit_code == 0 and "knock-out in layer 1, head 0" in shown.stdout
    record = CliRunner().invoke(cli.app, [*command, "--json"])
    assert json.loads(record.stdout)["points"][0]["group"] == 3

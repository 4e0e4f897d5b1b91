"""The LoRA table: adapters and routers meet the same tasks, and tasks, ranks and rates can be chosen."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from focus_core import FocusError
from focus_core.cli import app
from focus_core.reproduce.experiments import adapters
from focus_core.reproduce.registry import EXPERIMENTS
from focus_core.reproduce.runner import run_experiment

pytestmark = pytest.mark.usefixtures("runs")


@pytest.fixture
def bench(tmp_path):
    rows = [{"centerpiece": f"Is it {n}?", "options": ["no", "yes"], "correct_options_idx": [n % 2]} for n in range(9)]
    (tmp_path / "bench").mkdir()
    for name in ("truthfulqa_mc1.json", "hellaswag_dev.json"):
        (tmp_path / "bench" / name).write_text("\n".join(map(json.dumps, rows)))
    return tmp_path / "bench"


def test_adapters_and_routers_meet_the_same_tasks(context, bench):
    pytest.importorskip("lm_eval")
    pytest.importorskip("peft")
    chosen = ["untouched", "our recipe", "LoRA r4 lr 0.0001"]
    record = run_experiment("alignment", EXPERIMENTS["alignment"], replace(context, bench=bench), only=chosen)
    rows = record["results"]
    assert [(row["cell"], row.get("routing"), row.get("top_k")) for row in rows] == [
        ("untouched", "off", None),
        ("our recipe", "soft", None),
        ("our recipe", "hard", 1),
        ("our recipe", "hard", 2),
        ("LoRA r4 lr 0.0001", None, None),
    ]
    assert rows[0]["parameters"] == 0 and all(row["parameters"] > 0 for row in rows[1:])
    for row in rows[2:]:
        assert set(row["benchmarks"]) == {"truthfulqa_mc1", "hellaswag"}
        assert {"difference", "low", "high"} <= set(row["benchmarks"]["hellaswag"]["differences"]["acc_norm"])
    assert "exposure" in rows[2]["benchmarks"]["truthfulqa_mc1"] and "benchmarks" not in rows[1]
    shares = [(row["kept_share"], row["largest_group_share"]) for row in rows[2:4]]
    assert all(0 < kept <= 1 and 0 < largest <= 1 for kept, largest in shares)


def test_the_costly_tasks_of_the_lora_table_have_fewer_items(context, bench):
    cells = adapters.lora_cells(replace(context, bench=bench, scale=replace(context.scale, limit=20)))
    assert set(cells["untouched"]["tasks"]) == set(adapters.LORA_TASKS) and next(iter(adapters.LORA_TASKS)) == (
        "truthfulqa_mc1"
    )
    limits = {(name, limit) for values in cells.values() for name, limit in values["tasks"].items()}
    assert ("gsm8k", 5) in limits and ("piqa", 20) in limits and len(limits) == len(adapters.LORA_TASKS)
    assert sum("rank" in values for values in cells.values()) == 2


def test_every_task_can_be_asked_for_in_the_lora_table(context, bench):
    wide = replace(context, bench=bench, scale=replace(context.scale, limit=3))

    def tasks(*names):
        return list(adapters.lora_cells(replace(wide, tasks=names))["untouched"]["tasks"])

    assert tasks("all") == [*adapters.LORA_TASKS, *adapters.LONGER_TASKS] and tasks() == list(adapters.LORA_TASKS)
    assert tasks("needle_2048", "piqa") == ["piqa", "needle_2048"]
    assert adapters.lora_cells(wide)["untouched"]["tasks"]["gsm8k"] == 1
    with pytest.raises(FocusError, match="no task 'chess' here: choose all or of truthfulqa_mc1"):
        tasks("chess")


def test_ranks_and_rates_of_adapters_can_be_chosen(context):
    cells = adapters.lora_cells(replace(context, ranks=(8,), rates=(2e-4, 1e-3)))
    assert [name for name in cells if name.startswith("LoRA")] == ["LoRA r8"] and cells["LoRA r8"]["rates"] == (
        2e-4,
        1e-3,
    )
    assert all("rates" in values for name, values in cells.items() if name != "untouched")
    assert sum("rank" in values for values in adapters.alignment_cells(context).values()) == 3
    refused = CliRunner().invoke(app, ["reproduce", "k-sweep", "--rank", "8"])
    assert refused.exit_code == 2 and refused.stderr.startswith("--rank changes nothing in k-sweep here")

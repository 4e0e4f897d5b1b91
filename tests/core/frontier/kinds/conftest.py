"""A small world for the protocol: two kinds of text, routers of a tiny model, and a run over them."""

from __future__ import annotations

import pytest

from focus_core.frontier.kinds.protocol import ProtocolSettings, measure_protocol
from focus_core.frontier.speeds import Speeds
from focus_core.routing.config import FocusConfig
from focus_core.routing.model import retrofit

PROSE = "The quick brown fox jumps over the lazy dog, and then it sleeps. "
CODE = "def add(first, second):\n    return first + second\n\n"


@pytest.fixture
def folder(tmp_path, tiny_llama):
    config = FocusConfig(num_groups=4, top_k=1, window=4, sink_tokens=2, route_dim=8, balance="calibrated")
    for name, seed in (("mine", 1), ("other/mine", 2), ("second", 3)):
        focus = retrofit(tiny_llama.model, config, seed=seed)
        focus.save_pretrained(tmp_path / name)
        focus.detach()
    kinds = tmp_path / "kinds"
    (kinds / "prose").mkdir(parents=True)
    for number in range(3):
        (kinds / "prose" / f"{number}.txt").write_text(f"Story {number}. {PROSE * 5}")
    (kinds / "code.txt").write_text(CODE * 9)
    (tmp_path / "train.txt").write_text("Once upon a time there was a model of language. " * 60)
    return tmp_path


@pytest.fixture
def measure(folder, tiny_llama):
    def run(stop_after=None, **changes):
        seen = []

        def show(message, share):
            if message.startswith("Comparing"):
                return  # settings of a baseline, no cell
            seen.append(message)
            if len(seen) == stop_after:
                raise KeyboardInterrupt

        train = changes.pop("train", [folder / "train.txt"])
        values = {"routers": (str(folder / "mine"),), "baselines": ("streaming", "sparq"), "lengths": (32, 64)}
        settings = ProtocolSettings(**{**values, "window": 4, "sink_tokens": 2, "blocks": 2, **changes})
        record = measure_protocol(
            folder / "kinds", train, folder / "f.json", settings, model=tiny_llama, speeds=Speeds(), progress=show
        )
        return record, seen

    return run

"""Baselines are measured on a model that has narrow routers as on one without."""

import numpy as np
import torch

from focus_core.frontier.measure import baseline_point
from focus_core.routing.model import retrofit
from focus_core.training.fit import narrow_config


def test_narrow_routers_do_not_change_a_baseline(tiny_llama):
    blocks = np.random.default_rng(0).integers(5, 90, (2, 48))
    points = []
    for config in (None, narrow_config(num_groups=4, window=4)):
        focus = retrofit(tiny_llama.model, config)
        settings = {"share": 0.3, "window": 4, "sinks": 1, "training_text": torch.from_numpy(blocks)}
        points.append([baseline_point(focus, name, blocks, **settings) for name in ("streaming", "sparq", "kmeans")])
        focus.detach()
    assert points[0] == points[1]

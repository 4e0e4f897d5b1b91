"""The training gates against their formulas and the hard mask."""

import torch

from focus_core.attention import focus_attention
from focus_core.routing.config import FocusConfig
from focus_core.routing.gate import GATES
from focus_core.routing.soft import gated_attention


def test_paper_gate_halves_a_pair_without_affinity():
    logits = torch.tensor([2.0, -4.0])
    assert torch.allclose(GATES["paper"](logits, torch.zeros(2), 10.0, 0.5), logits / 2)


def test_log_gate_is_half_open_at_the_threshold():
    gated = GATES["log"](torch.zeros(1), torch.tensor([0.5]), 10.0, 0.5)
    assert torch.allclose(gated.exp(), torch.tensor([0.5]))


def test_a_sharp_log_gate_is_the_hard_mask():
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, heads, 24, 8, generator=generator) for heads in (4, 2, 2))
    groups = torch.randint(0, 3, (2, 24), generator=generator)
    membership = torch.nn.functional.one_hot(groups, 3).bool()
    positions = torch.arange(24).expand(2, -1)
    config = FocusConfig(num_groups=3, top_k=1, window=3, sink_tokens=2, gate_sharpness=1e4)
    soft = gated_attention(query, key, value, membership.float(), membership.float(), positions, config, scale=8**-0.5)
    hard = focus_attention(query, key, value, membership, window=3, sink_tokens=2, backend="dense")
    assert torch.allclose(soft.output, hard.output, atol=1e-5)
    assert torch.allclose(soft.logsumexp, hard.logsumexp, atol=1e-5)

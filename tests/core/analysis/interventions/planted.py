"""A model of two layers whose last prediction needs one known distant token, for routers of every kind.

The first layer does nothing. In the second, the token `ASK` attends to the token `SECRET`, and to nothing else; what it
finds there makes it predict `ANSWER`. Without it, it predicts nothing in particular.
"""

from __future__ import annotations

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from focus_core import FocusConfig, FocusModel, retrofit

ASK, SECRET, ANSWER, VOCABULARY = 20, 21, 22, 24
WIDTH, HEAD_SIZE, WINDOW = 32, 16, 6
SECRET_PLACE, ASK_PLACE, LENGTH = 11, 46, 48
GROUP = 2
"""The group that holds `SECRET`; the fillers are in the other three."""
_LOOKS, _IDLES, _CARRIES = 7, 6, 9  # two slow dimensions of rotary positions, and one that carries the finding


def planted_text(secret: int = SECRET) -> np.ndarray:
    """Fillers, with the secret far before the question, and the answer after that."""
    ids = np.random.default_rng(0).integers(0, 12, LENGTH)
    ids[SECRET_PLACE], ids[ASK_PLACE], ids[ASK_PLACE + 1] = secret, ASK, ANSWER
    return ids


def planted_model(router: str, **settings: object) -> FocusModel:
    """The model with routers that keep the pair: "layer", "head" or "narrow", two key/value heads."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=HEAD_SIZE,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 1e12},
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if "norm" in name else 0.0)
        one = torch.eye(VOCABULARY, WIDTH)
        model.model.embed_tokens.weight.copy_(one)
        model.lm_head.weight[:, :VOCABULARY] = torch.eye(VOCABULARY) * 2
        attention = model.model.layers[1].self_attn
        # Query heads 2 and 3 read key/value head 1, the one with the circuit.
        queries = attention.q_proj.weight.view(4, HEAD_SIZE, WIDTH)
        queries[2, _LOOKS, ASK] = 10.0
        keys = attention.k_proj.weight.view(2, HEAD_SIZE, WIDTH)[1]
        keys[_LOOKS, SECRET] = 1.0
        for filler in range(12):  # fillers look at fillers, which carry nothing; their keys have three kinds
            queries[2, _IDLES, filler] = 10.0
            keys[_IDLES, filler] = 1.0
            keys[12 + filler % 3, filler] = 1.0
        attention.v_proj.weight.view(2, HEAD_SIZE, WIDTH)[1, _CARRIES, SECRET] = 1.0
        attention.o_proj.weight.view(WIDTH, 4, HEAD_SIZE)[ANSWER, 2, _CARRIES] = 5.0
    budget = {"read_share": None, "chunk": 4} if router == "narrow" else {"route_dim": WIDTH}
    settings = {
        "num_groups": 4,
        "top_k": 1,
        "window": WINDOW,
        "sink_tokens": 1,
        "balance": "none",
        **budget,
        **settings,
    }
    focus = retrofit(model, FocusConfig(router=router, **settings))
    with torch.no_grad():
        for layer in focus.layers:
            _plant_groups(focus.router(layer))
    return focus


def _plant_groups(router) -> None:
    """`SECRET` and `ASK` in `GROUP`, fillers in the three others."""
    group_of = {SECRET: GROUP, ASK: GROUP, **{filler: (0, 1, 3)[filler % 3] for filler in range(12)}}
    if router.from_keys:
        router.centroids.zero_()
        for group, dimension in ((GROUP, _LOOKS), (0, 12), (1, 13), (3, 14)):
            router.centroids[:, group, dimension] = 1.0
        return
    centered = torch.nn.functional.layer_norm(torch.eye(VOCABULARY, WIDTH), (WIDTH,))
    for name in ("projection", "query_projection"):
        if hasattr(router, name):
            getattr(router, name).copy_(torch.eye(WIDTH).expand_as(getattr(router, name)))
    centroids = torch.stack([centered[[t for t, g in group_of.items() if g == group]].sum(0) for group in range(4)])
    router.centroids.copy_(centroids.expand_as(router.centroids))

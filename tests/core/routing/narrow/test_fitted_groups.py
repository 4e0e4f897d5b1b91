"""Groups of keys as queries see them: against Transformers' rotation, scipy's powers of matrices and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.linalg import fractional_matrix_power
from sklearn.cluster import MiniBatchKMeans
from tiny_narrow import blocks, model
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from focus_core import FocusConfig, retrofit
from focus_core.routing.layer import HeadVectors
from focus_core.routing.narrow.fitting.groups import query_moments, seen_centroids

CONFIG = FocusConfig(
    router="narrow", num_groups=6, top_k=1, window=5, sink_tokens=2, chunk=16, read_share=0.2, score="dot"
)  # fmt: skip


def vectors_of_a_layer() -> HeadVectors:
    focus, found = retrofit(model(), CONFIG), []
    with torch.inference_mode(), focus.routing("off"):
        focus.model(torch.from_numpy(blocks(2)))
    with torch.inference_mode(), focus.routing("hard"), focus.observe(lambda routing: found.append(routing.vectors)):
        focus.model(torch.from_numpy(blocks(2)))
    focus.detach()
    return found[0]


def test_moments_are_of_queries_as_keys_before_rotation_meet_them():
    vectors = vectors_of_a_layer()
    assert vectors.position_embeddings is not None
    kv_heads, width = vectors.key.shape[1], vectors.key.shape[-1]
    found = query_moments(vectors, sinks=2, window=5)
    units = torch.eye(width)[None, None]
    seen: list[list[np.ndarray]] = [[] for _ in range(kv_heads)]
    first = 2 + 5 + 1
    for place in range(first, vectors.query.shape[2]):
        read = 2 + int(place * 0.6180339887498949 % 1 * (place - 7))
        assert 2 <= read < place - 5  # beyond the window, and no sink
        cos, sin = (part[:1, read : read + 1].expand(1, width, -1) for part in vectors.position_embeddings)
        turned, _ = apply_rotary_pos_emb(units, units, cos, sin)
        for head in range(kv_heads):
            own = vectors.query.unflatten(1, (kv_heads, -1))[:, head, :, place].flatten(0, 1)
            seen[head].extend((own @ turned[0, 0].T).double().numpy())
    for head in range(kv_heads):
        told = np.array(seen[head])
        assert found[head].numpy() == pytest.approx(told.T @ told / len(told), rel=1e-4, abs=1e-7)


def test_moments_without_rotary_embedding_and_of_short_texts_are_of_all_queries():
    vectors = vectors_of_a_layer()
    kv_heads = vectors.key.shape[1]
    plain = HeadVectors(vectors.query, vectors.key, vectors.scale, vectors.softcap, None)
    own = plain.query.unflatten(1, (kv_heads, -1))[:, 0].flatten(0, 2).double()
    found = query_moments(plain, sinks=2, window=10_000)
    assert torch.allclose(found[0], own.T @ own / len(own), rtol=1e-6)


@pytest.mark.parametrize("power", [0.0, 0.25, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_the_best_score_is_of_the_nearest_mean_of_stretched_keys(seed, power):
    generator = np.random.default_rng(seed)
    width = 8
    keys = generator.normal(size=(3000, width)) * generator.uniform(0.2, 3, width) + 20 * generator.normal(size=width)
    queries = generator.normal(size=(500, width)) @ generator.normal(size=(width, width))
    moment = queries.T @ queries / len(queries)
    sample = torch.from_numpy(keys).float()
    centroids, offset = seen_centroids(sample, torch.from_numpy(moment), CONFIG, seed, power)
    stretched = (keys - keys.mean(0)) @ fractional_matrix_power(moment, power)
    means = MiniBatchKMeans(6, random_state=seed, batch_size=4096, n_init="auto", max_iter=30)
    nearest = means.fit(stretched.astype(np.float32)).predict(stretched.astype(np.float32))
    scores = keys @ centroids.numpy().T - np.square(centroids.numpy()).sum(-1) / 2 + offset.numpy()
    assert np.mean(scores.argmax(-1) == nearest) > 0.99  # centroids are rounded to half precision
    assert float(centroids.half().float().sub(centroids).abs().max()) == 0


def test_components_that_no_query_looks_at_decide_nothing():
    generator = torch.Generator().manual_seed(0)
    kinds = torch.randint(0, 2, (2000,), generator=generator)
    keys = torch.randn(2000, 4, generator=generator) * torch.tensor([0.1, 0.1, 9.0, 9.0])
    keys[:, 0] += 4 * kinds
    moment = torch.diag(torch.tensor([1.0, 1.0, 1e-8, 1e-8], dtype=torch.float64))
    centroids, offset = seen_centroids(keys, moment, CONFIG.replace(num_groups=2), 0)
    groups = (keys @ centroids.T - centroids.square().sum(-1) / 2 + offset).argmax(-1)
    agreement = float((groups == kinds).float().mean())
    assert max(agreement, 1 - agreement) > 0.99


def test_one_direction_of_long_queries_does_not_decide_alone():
    # Keys compared by their logits would be grouped along the first component alone.
    moment = torch.diag(torch.tensor([10_000.0, 1.0], dtype=torch.float64))
    generator = torch.Generator().manual_seed(0)
    kinds = torch.randint(0, 2, (2000,), generator=generator)
    keys = torch.randn(2000, 2, generator=generator) * torch.tensor([0.1, 0.1])
    keys[:, 1] += 10 * kinds
    centroids, offset = seen_centroids(keys, moment, CONFIG.replace(num_groups=2), 0)
    groups = (keys @ centroids.T - centroids.square().sum(-1) / 2 + offset).argmax(-1)
    agreement = float((groups == kinds).float().mean())
    assert max(agreement, 1 - agreement) > 0.99

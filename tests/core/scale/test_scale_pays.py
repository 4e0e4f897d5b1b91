"""Predicted times from rates, and where they cross, on machines whose answers are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from focus_core.routing.config import FocusConfig
from focus_core.scale.pays import (
    decode_gain,
    first_length,
    largest_share,
    limits,
    most_bandwidth,
    prefill_gain,
    share_in_the_limit,
)
from focus_core.scale.rates import SHEETS, Rates
from focus_core.scale.shapes import SHAPES
from focus_core.scale.times import Cluster, decode_seconds, prefill_seconds, training_seconds
from focus_core.scale.work import cache_bytes, prefill_flops, tensor_parallel_bytes, weight_bytes

NARROW = FocusConfig(
    router="narrow", num_groups=64, top_k=1, window=128, chunk=16, read_share=0.15, count_weight=1.0, score="dot"
)
SHEET = Rates.of_sheet(1e12, 1e11, 1e10)


def test_a_machine_of_one_speed_takes_its_flops_or_its_bytes():
    shape, on = SHAPES["8b"], Cluster(SHEET, size=2)
    for config in (None, NARROW):
        assert prefill_seconds(shape, 4096, on, config) == pytest.approx(
            prefill_flops(shape, 4096, config).total / 1e12
        )
    # One token of one text waits for memory.
    moved = weight_bytes(shape, 2) + cache_bytes(shape, 8192, 2, None)
    assert decode_seconds(shape, 8191, on) == pytest.approx(moved / 1e11)
    # Of many texts the weights are read once; then they wait for products.
    many = decode_seconds(shape, 1, on, batch=4096)
    assert many > 4096 * 2 * (shape.layers * shape.layer_weights) / 1e12


def test_devices_share_work_and_send_what_they_sum():
    shape, one, eight = SHAPES["70b"], Cluster(SHEET, 2), Cluster(SHEET, 2, gpus=8)
    sent = tensor_parallel_bytes(shape, 1000, 2, 8) / 1e10
    assert prefill_seconds(shape, 1000, eight) == pytest.approx(prefill_seconds(shape, 1000, one) / 8 + sent)
    assert training_seconds(shape, 1000, eight, "mass") == pytest.approx(training_seconds(shape, 1000, one, "mass") / 8)


def test_in_the_limit_a_page_costs_a_pair_and_a_pair_costs_a_pair():
    assert share_in_the_limit(SHEET, 16) == pytest.approx(15 / 16)
    slow = replace(SHEET, exact=SHEET.attention / 2, pages=SHEET.attention / 4)
    assert share_in_the_limit(slow, 16) == pytest.approx((1 - 4 / 16) / 2)
    assert share_in_the_limit(replace(SHEET, pages=SHEET.attention / 32), 16) == 0
    # The whole model crosses there too, in long texts.
    found = largest_share(lambda config: prefill_gain(SHAPES["135m"], 2**22, Cluster(slow), config), NARROW)
    assert found == pytest.approx(0.375, abs=0.005)


def test_the_first_length_is_where_a_gain_begins():
    assert first_length(lambda tokens: tokens / 3000) == pytest.approx(3000, rel=0.02)
    assert first_length(lambda tokens: tokens / 3000, 2.0) == pytest.approx(6000, rel=0.02)
    assert first_length(lambda tokens: 0.5) is None and first_length(lambda tokens: 2.0) == 1


def test_no_share_pays_where_choosing_costs_more_than_reading():
    shape, on = SHAPES["135m"], Cluster(replace(SHEET, pages=SHEET.attention / 100))
    assert largest_share(lambda config: prefill_gain(shape, 65536, on, config), NARROW) is None
    free = Cluster(replace(SHEET, exact=1e15, pages=1e15, assign=1e15))
    assert largest_share(lambda config: prefill_gain(shape, 65536, free, config), NARROW) == 1.0


def test_decode_gains_with_batch_and_length_until_the_cache_is_all():
    shape, on = SHAPES["8b"], Cluster(SHEETS["h100"], 2)
    gains = [decode_gain(shape, 131072, on, NARROW, batch) for batch in (1, 8, 64)]
    assert 1 < gains[0] < gains[1] < gains[2]
    assert decode_gain(shape, 1024, on, NARROW) < gains[0]


def test_limits_are_where_each_gain_ends():
    shape, on = SHAPES["8b"], Cluster(replace(SHEETS["h100"], step_pages=1e12, pages=1e14), 2)
    found = limits(shape, on, NARROW, [65536], batch=4)
    (at,) = found["at"]
    for length, gain in (
        (found["prefill_tokens"], lambda tokens: prefill_gain(shape, tokens, on, NARROW)),
        (found["decode_tokens"], lambda tokens: decode_gain(shape, tokens, on, NARROW, 4)),
    ):
        assert length is not None and gain(length) >= 1 > gain(1 << (length - 1).bit_length() - 1)
    share = at["decode_share"]
    less, more = (NARROW.replace(read_share=share + step) for step in (-0.01, 0.01))
    assert decode_gain(shape, 65536, on, less, 4) >= 1 > decode_gain(shape, 65536, on, more, 4)
    texts = at["decode_batch"]
    assert texts is not None and decode_gain(shape, 65536, on, NARROW, texts) >= 1


def test_with_enough_bandwidth_reading_everything_is_faster():
    shape, on = SHAPES["135m"], Cluster(replace(SHEET, step_pages=1e9, step_exact=1e10))
    limit = most_bandwidth(shape, 65536, on, NARROW)
    for factor, ours in ((0.9, True), (1.1, False)):
        rates = replace(on.rates, bandwidth=limit * factor)
        full = decode_seconds(shape, 65536, replace(on, rates=replace(rates, step_attention=float("inf"))))
        assert (full > decode_seconds(shape, 65536, replace(on, rates=rates), NARROW)) == ours


def test_kernels_of_another_machine_are_as_much_slower_than_full_attention():
    here = replace(SHEET, attention=4e12, exact=2e12, pages=1e12)
    sheet = SHEETS["h100"]
    found = sheet.with_kernels_of(here)
    assert found.exact == sheet.attention / 2 and found.pages == sheet.attention / 4
    assert found.matmul == sheet.matmul and found.bandwidth == sheet.bandwidth
    # A machine on which full attention is slow promises nothing about another.
    assert sheet.with_kernels_of(replace(here, exact=8e12)).exact == sheet.attention

"""Runs compared by seed, and on the test samples that they have right."""

from base64 import b64encode

import numpy as np
import pytest

from softnce.lab.experiment.comparison import alike, difference, difference_of_differences, for_other_samples, percent
from softnce.lab.experiment.results import Row

TOP1 = percent("top1")


def row(seed: int, right: list[int], **config: object) -> Row:
    bits = b64encode(np.packbits(np.array(right, dtype=np.uint8))).decode()
    top1 = float(np.float32(np.mean(right)))  # as torch computes it
    return Row("", {"seed": seed} | config, {"test": {"top1": top1}, "right": bits}, 1.0, "", {})


@pytest.mark.parametrize("samples", [8, 9, 100, 4500, 10_000])
def test_bits_of_no_sample_do_not_count(samples):
    numbers = np.random.default_rng(0)
    rows = [[row(seed, numbers.integers(0, 2, samples).tolist()) for seed in range(3)] for _ in range(2)]
    found = for_other_samples(*rows)
    assert found.mean == pytest.approx(difference(*rows, TOP1).mean, abs=1e-4)


def test_without_bits_there_is_no_interval_for_other_samples():
    known, unknown = row(0, [1, 0, 1]), row(0, [1, 0, 1])
    del unknown.result["right"]
    assert for_other_samples([known], [unknown]) is None
    assert for_other_samples([known], [row(1, [1, 0, 1])]) is None, "no seed that both have"
    nothing_right = [row(0, [0] * 9)]
    assert for_other_samples(nothing_right, nothing_right).mean == 0


def test_only_seeds_that_all_have_count():
    a, b, c, d = ([row(seed, [1] * right + [0] * (8 - right)) for seed, right in pairs.items()] for pairs in (
        {0: 4, 1: 6, 2: 8}, {1: 4, 2: 4, 3: 0}, {2: 6, 1: 4}, {1: 2, 2: 5, 7: 8},
    ))  # fmt: skip
    assert difference(a, b, TOP1).mean == pytest.approx((25 + 50) / 2)
    extra = difference_of_differences(a, b, c, d, TOP1)
    assert extra.mean == pytest.approx((25 - 25 + 50 - 12.5) / 2)
    assert extra.count == 2


def test_rows_are_grouped_by_fields_of_fields():
    rows = [row(0, [1], head={"kind": kind}, batch=batch) for kind, batch in (("mlp", 1), ("linear", 1), ("mlp", 1))]
    assert [len(group) for group in alike(rows, "head.kind", "batch")] == [2, 1]

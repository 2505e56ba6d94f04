"""Annotations become shares of annotators, whatever their ids are."""

import random
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softnce import SoftTargets


def test_annotations_are_shares_of_annotators() -> None:
    sample = [0, 0, 0, 2, 2, 2, 2, 3]
    annotator = ["a", "b", "c", "a", "a", "b", "c", "b"]
    label = [1, 1, 0, 2, 3, 3, 3, 0]
    t, samples, classes = SoftTargets.from_annotations(sample, annotator, label, 4, num_samples=5)
    expected = torch.tensor([[1 / 3, 2 / 3, 0, 0], [0, 0, 1 / 6, 5 / 6], [1, 0, 0, 0]])
    torch.testing.assert_close(t.dense()[[0, 2, 3]], expected)
    assert t.mask.tolist() == [True, False, True, True, False]
    assert (list(samples), list(classes)) == ([0, 1, 2, 3, 4], [0, 1, 2, 3])
    plain = SoftTargets.from_annotations(np.array(sample), None, np.array(label), 4, smoothing=0.1)
    assert (plain.targets.shape, plain.samples) == ((3, 4), [0, 2, 3])
    torch.testing.assert_close(plain.targets.dense()[1], 0.9 * torch.tensor([0, 0, 0.25, 0.75]) + 0.025)
    many = SoftTargets.from_annotations(torch.arange(100), None, torch.arange(100) * 9_999, 1_000_000).targets
    assert many.index.shape == (100, 1)


IDS = {
    "large": lambda i: 9 * 10**7 + 10**11 * i,
    "names": lambda i: f"image {i}",
    "tuples": lambda i: (i, "x"),
    "mixed": lambda i: i if i % 2 else f"{i}",
}


@given(st.sampled_from(sorted(IDS)), st.sampled_from(sorted(IDS)), st.integers(1, 30), st.integers(0, 1000))
def test_ids_and_labels_of_any_kind_are_counted(ids: str, names: str, size: int, seed: int) -> None:
    draw = random.Random(seed)
    sample = [IDS[ids](draw.randrange(5)) for _ in range(size)]
    label = [IDS[names](draw.randrange(4)) for _ in range(size)]
    found = SoftTargets.from_annotations(sample, None, label)
    assert set(found.samples) == set(sample)
    assert len(found.targets) == len(found.samples)
    dense, total, count = found.targets.dense(torch.float64), Counter(sample), Counter(zip(sample, label, strict=True))
    for i, name in enumerate(found.samples):
        for k, chosen in enumerate(found.classes):
            assert dense[i, k].item() == pytest.approx(count[name, chosen] / total[name], abs=1e-15)


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 30), st.integers(0, 1000))
def test_annotations_by_different_people_are_votes(samples: int, classes: int, size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    sample = torch.cat([torch.arange(samples), torch.randint(samples, (size,), generator=generator)])
    label = torch.randint(classes, (len(sample),), generator=generator)
    counts = torch.zeros(samples, classes).index_put_((sample, label), torch.ones(()), accumulate=True)
    t = SoftTargets.from_annotations(sample, torch.arange(len(sample)), label, classes).targets
    torch.testing.assert_close(t.dense(torch.float64), SoftTargets.from_votes(counts, classes).dense(torch.float64))


@pytest.mark.parametrize(
    ("argument", "values"),
    [
        ("sample", ["text", None, [], [0, 1], [[0], [0], [1]], [0.0, float("nan"), 1.0]]),
        ("annotator", ["ann", 3, ["a", "b"], [["a"], ["b"], ["a"]]]),
        ("label", ["text", None, [0.5, 1.0, 2.0], [0, 1], [0, 1, 3], [-1, 0, 1], ["cat", "dog", "cat"]]),
        ("num_classes", ["3", 0, 2.5]),
        ("num_samples", ["2", 1.5, 1, 0]),
        ("smoothing", ["1", None, 1.5]),
    ],
)
def test_wrong_annotations_are_named(argument: str, values: list) -> None:
    given = {"sample": [0, 0, 1], "annotator": ["a", "b", "a"], "label": [2, 1, 0], "num_classes": 3}
    for value in values:
        with pytest.raises((ValueError, TypeError), match=rf"\b{argument}\b"):
            SoftTargets.from_annotations(**{**given, argument: value})

"""Constructors make what people have; wrong arguments are refused in one sentence that names the argument."""

import math
import random
from collections import Counter
from collections.abc import Callable
from inspect import signature
from typing import Any

import numpy as np
import pytest
import torch
from batches import Series, seeded
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from softnce import SoftTargets, mixing


@pytest.mark.parametrize("kind", [list, tuple, np.array, Series, torch.tensor])
def test_arrays_and_lists_are_read(kind: type) -> None:
    labels = [0, 2, 1, 2]
    t = SoftTargets.from_labels(kind(labels), 4)
    assert t.labels.tolist() == labels
    assert_close(t.mix(t.flip(), kind([1.0, 0.0, 0.5, 0.5])).argmax()[:2], torch.tensor([0, 1]))
    rows = [[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]]
    assert_close(SoftTargets.from_dense(kind(rows)).dense(torch.float64), torch.tensor(rows).double())
    votes = SoftTargets.from_votes(kind([[3, 1, 0], [0, 0, 5]]), 3)
    assert_close(votes.dense(), torch.tensor([[0.75, 0.25, 0], [0, 0, 1]]))
    top = SoftTargets.from_topk(kind([[2.0, 1.0, 0.0]]), 1)
    assert_close(top.dense(torch.float32), torch.tensor([[1.0, 0, 0]]))


def test_arrays_that_torch_cannot_share_are_copied() -> None:
    labels = np.array([0, 1, 2])
    assert SoftTargets.from_labels(labels[::-1], 3).labels.tolist() == [2, 1, 0]
    labels.flags.writeable = False
    assert SoftTargets.from_labels(labels, 3).labels.tolist() == [0, 1, 2]


# -------------------------------------------------------------------------------------------------------- teachers


def test_topk_renormalised_spread_and_grouped() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    p = (logits / 2).softmax(1)
    kept = SoftTargets.from_topk(logits, k=2, temperature=2.0)
    assert_close(kept.dense()[0, :2], p[0, :2] / p[0, :2].sum())
    spread = SoftTargets.from_topk(logits, k=2, temperature=2.0, remainder="spread").dense()[0]
    assert_close(spread, torch.tensor([p[0, 0], p[0, 1], 0, 0]) + p[0, 2:].sum() / 4)
    assert_close(SoftTargets.from_topk(logits, k=4, temperature=2.0).dense(), p)
    group = SoftTargets.from_topk(3 * torch.randn(4, 9, generator=seeded()), 3, remainder="group")
    assert_close(group.rest + group.weight.sum(1), torch.ones(4))


def test_top_k_log_probabilities_and_the_use_of_the_rest() -> None:
    top = np.array([[3, 1], [0, 2]]), np.log([[0.5, 0.25], [0.6, 0.1]])
    rows = torch.tensor([[0, 0.25, 0, 0.5, 0], [0.6, 0, 0.1, 0, 0]], dtype=torch.float64)
    rest = torch.tensor([0.25, 0.3], dtype=torch.float64)
    assert_close(SoftTargets.from_topk_log_probs(*top, 5, rest="spread").dense(), rows + rest[:, None] / 5)
    renormalised = SoftTargets.from_topk_log_probs(*top, 5, rest="renormalise")
    assert_close(renormalised.dense(), rows / rows.sum(1, keepdim=True))
    group = SoftTargets.from_topk_log_probs(*top, 5)
    assert_close(group.rest, rest)
    assert_close(group.at(group.classes), torch.tensor(np.exp(top[1])))


# ----------------------------------------------------------------------------------------------------------- pairs


def test_pairs_may_name_a_class_twice_and_differ_in_number() -> None:
    twice = SoftTargets.from_pairs(torch.tensor([[1, 1, 0]]), torch.tensor([[0.25, 0.75, 0.0]]), 3)
    assert_close(twice.dense(), torch.tensor([[0.0, 1.0, 0.0]]))
    t = SoftTargets.from_pairs([[0], [1, 3], [2, 1, 0]], [[1], [0.5, 0.5], [0.5, 0.25, 0.25]], 4)
    assert_close(t.dense(), torch.tensor([[1, 0, 0, 0], [0, 0.5, 0, 0.5], [0.25, 0.25, 0.5, 0]], dtype=t.dtype))
    for index, weight in (([[0], [1, 3]], [[1.0], [1.0]]), ([[0], []], [[1.0], []])):
        with pytest.raises(ValueError, match=r"at least one, got \[1, [20]\] and \[1, [10]\]"):
            SoftTargets.from_pairs(index, weight, 4)


# ----------------------------------------------------------------------------------------------------------- votes


def test_votes_become_shares_and_stay_small_when_few_classes_are_chosen() -> None:
    counts = torch.tensor([[3, 1] + [0] * 18, [0, 5] + [0] * 18])
    t = SoftTargets.from_votes(counts, 20)
    assert_close(t.dense(), counts / counts.sum(1, keepdim=True))
    assert t.classes.shape == (2, 2)
    plain, smooth = SoftTargets.from_votes(counts[:, :3], 3), SoftTargets.from_votes(counts[:, :3], 3, smoothing=0.1)
    assert plain.index is None
    assert smooth.allclose(plain.smooth(0.1), atol=1e-7)
    assert smooth.smoothing == 0.1
    with pytest.raises(ValueError, match=r"a column per class, 10, got 3; .*use SoftTargets.from_annotations"):
        SoftTargets.from_votes(torch.randint(10, (20, 3)), 10)


def test_annotations_are_shares_of_annotators() -> None:
    sample = [0, 0, 0, 2, 2, 2, 2, 3]
    annotator = ["a", "b", "c", "a", "a", "b", "c", "b"]
    label = [1, 1, 0, 2, 3, 3, 3, 0]
    t, samples, classes = SoftTargets.from_annotations(sample, annotator, label, 4, num_samples=5)
    expected = torch.tensor([[1 / 3, 2 / 3, 0, 0], [0, 0, 1 / 6, 5 / 6], [1, 0, 0, 0]])
    assert_close(t.dense()[[0, 2, 3]], expected)
    assert t.mask.tolist() == [True, False, True, True, False]
    assert (list(samples), list(classes)) == ([0, 1, 2, 3, 4], [0, 1, 2, 3])
    plain = SoftTargets.from_annotations(np.array(sample), None, np.array(label), 4, smoothing=0.1)
    assert (plain.targets.shape, plain.samples) == ((3, 4), [0, 2, 3])
    assert_close(plain.targets.dense()[1], 0.9 * torch.tensor([0, 0, 0.25, 0.75]) + 0.025)
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
    generator = seeded(seed)
    sample = torch.cat([torch.arange(samples), torch.randint(samples, (size,), generator=generator)])
    label = torch.randint(classes, (len(sample),), generator=generator)
    counts = torch.zeros(samples, classes).index_put_((sample, label), torch.ones(()), accumulate=True)
    t = SoftTargets.from_annotations(sample, torch.arange(len(sample)), label, classes).targets
    assert_close(t.dense(torch.float64), SoftTargets.from_votes(counts, classes).dense(torch.float64))


# ----------------------------------------------------------------------------------------------------------- misuse

N, K = 4, 3
LABELS = torch.tensor([0, 1, 2, 1])
LOGITS = torch.tensor([[2.0, -1, 0], [0, 1, 0], [1, 0, 3], [-1, 2, 0]])
PROBS = LOGITS.softmax(1)
SOFT = SoftTargets.from_labels(LABELS, K)
OTHER_K = SoftTargets.from_labels(LABELS, K + 1)
NUMBERS = ["1", None, True, math.nan]
WHOLE = ["2", 2.5, None, True, 0, -1]
WRONG = {  # of every method that has the argument
    "num_classes": WHOLE,
    "ignore_index": ["255", 2.5, None, True],
    "smoothing": [*NUMBERS, 1.5, -0.1],
    "smoothing_dist": [torch.ones(K), [0.5, 0.5], "uniform", PROBS],
    "temperature": [*NUMBERS, 0.0],
    "generator": [0, "seed"],
    "alpha": [*NUMBERS, 0.0, -1.0, math.inf],
    "per_row": ["yes", None, 1],
}
NO_LABELS = ["text", None, 3, LABELS + 1, LABELS - 1, LABELS.float(), LABELS > 0, LABELS[None], np.array(["a"])]
NO_LOGITS = ["text", None, LABELS, LOGITS[0], torch.full((N, K), -math.inf), LOGITS * math.nan, LOGITS + math.inf]
NO_PROBS = [LOGITS, LABELS, PROBS[0], torch.ones(N, K), torch.ones(N, 0), PROBS * math.nan, [[0.5], [0.5, 0.5]]]
NO_VOTES = ["text", LABELS, torch.zeros(N, K), -torch.ones(N, K), torch.ones(N, K) > 0, torch.ones(N, 7)]
NO_PAIRS = [torch.ones(N), torch.ones(N, 1).long(), torch.full((N, 1), 0.5), torch.ones(N, 2)]
NO_ROWS = [N, -N - 1, None, "0", 0.5, True, [0.5], [N], (0, 0), torch.ones(N + 1) > 0, torch.zeros(1, 1).long(), ["a"]]

INDEX = LABELS[:, None]
NO_INDEX = ["text", LABELS, INDEX + 1, INDEX.float(), [[0], [1]]]
NO_LOGS = ["text", torch.zeros(N), torch.ones(N, 1), torch.full((N, 1), -math.inf), INDEX]
NO_LAM = ["half", None, 1.5, -0.1, math.nan, torch.ones(N + 1), torch.full((N,), 2.0), [0.5]]
NO_ANNOTATION = {
    "sample": ["text", None, [], [0, 1], [[0], [0], [1]], [0.0, math.nan, 1.0]],
    "annotator": ["ann", 3, ["a", "b"], [["a"], ["b"], ["a"]]],
    "label": ["text", None, [0.5, 1.0, 2.0], [0, 1], [0, 1, 3], [-1, 0, 1], ["cat", "dog", "cat"]],
    "num_classes": ["3", 0, 2.5],
    "num_samples": ["2", 1.5, 1, 0],
}
PAIRS, TOP = {"index": INDEX, "weight": torch.ones(N, 1)}, {"index": INDEX, "log_probs": torch.zeros(N, 1)}
IMAGES, MIXED = torch.zeros(N, 1, 5, 5), {"targets": LABELS, "num_classes": K}
NO_MIX = {
    "inputs": ["text", None, IMAGES.long(), torch.ones(N), IMAGES[:2]],
    "targets": ["text", None, LABELS + 1, LABELS.float(), LABELS[:2], torch.ones(N, 3), torch.ones(N, 2) / 2],
    "lam": ["half", 1.5, -0.1, torch.ones(5), torch.full((4,), 2.0), [0.5]],
}
VOTES = {"sample": [0, 0, 1], "annotator": ["a", "b", "a"], "label": [2, 1, 0]}

CALLS: list[tuple[Callable[..., Any], dict[str, Any], dict[str, list[Any]]]] = [
    (lambda index: SoftTargets(K, index, None), {"index": INDEX}, {"index": [None]}),
    (SoftTargets.from_labels, {"labels": LABELS, "num_classes": K}, {"labels": [*NO_LABELS, [0, "1"]]}),
    (SoftTargets.from_dense, {"probs": PROBS}, {"probs": ["text", None, *NO_PROBS]}),
    (
        SoftTargets.from_pairs,
        {**PAIRS, "num_classes": K},
        {"index": [*NO_INDEX, None], "weight": ["text", None, *NO_PAIRS]},
    ),
    (
        SoftTargets.from_topk,
        {"logits": LOGITS, "k": 2},
        {"logits": NO_LOGITS, "k": [*WHOLE, K + 1], "remainder": ["drop", None]},
    ),
    (
        SoftTargets.from_topk_log_probs,
        {**TOP, "num_classes": K},
        {"index": NO_INDEX, "log_probs": NO_LOGS, "rest": ["drop", None, 1]},
    ),
    (SoftTargets.from_votes, {"counts": torch.ones(N, K), "num_classes": K}, {"counts": NO_VOTES}),
    (SoftTargets.from_annotations, {**VOTES, "num_classes": K}, NO_ANNOTATION),
    (SOFT.mix, {"other": SOFT.flip(0), "lam": 0.5}, {"other": [LABELS, None, SOFT[:2], OTHER_K], "lam": NO_LAM}),
    (SOFT.smooth, {"smoothing": 0.1}, {}),
    (mixing.mixup, {"inputs": IMAGES, **MIXED}, NO_MIX),
    (mixing.cutmix, {"inputs": IMAGES, **MIXED}, NO_MIX),
    (SOFT.flip, {"dim": 0}, {"dim": [1, -1, None, "rows"]}),
    (SOFT.to, {"device": "cpu"}, {"device": [LABELS, 1.5], "dtype": [torch.long, "float32"]}),
    (SoftTargets.cat, {"parts": [SOFT, SOFT]}, {"parts": [[], SOFT, LABELS, [SOFT, LABELS], [SOFT, OTHER_K], None, 3]}),
    (lambda others: SOFT.compact(others), {"others": SOFT}, {"others": [LABELS, None, SOFT.smooth(0.1), OTHER_K]}),
    (SOFT.allclose, {"other": SOFT}, {"other": [LABELS, None, SOFT[:2]]}),
    (SOFT.argmax, {}, {}),
    (SOFT.sample, {}, {}),
    (lambda rows: SOFT[rows], {"rows": 0}, {"rows": NO_ROWS}),
]


@pytest.mark.parametrize(("call", "good", "wrong"), CALLS)
def test_wrong_arguments_are_named(call: Callable[..., Any], good: dict, wrong: dict) -> None:
    call(**good)
    checked = {name: WRONG[name] for name in signature(call).parameters if name in WRONG} | wrong
    assert checked
    for argument, values in checked.items():
        for value in values:
            with pytest.raises((ValueError, TypeError, IndexError), match=rf"\b{argument}\b"):
                call(**{**good, argument: value})

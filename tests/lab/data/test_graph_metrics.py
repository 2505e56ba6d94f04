import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softnce.lab.data import layout
from softnce.lab.data.graph_metrics import (
    class_accuracy,
    class_average,
    first_best,
    per_class,
    score,
    specimen_confusions,
    top1,
)

K = 9


def slow_scores(prediction, label, left_out, published):
    """One specimen, class by class."""
    cells = [(p, t) for p, t in zip(prediction, label, strict=True) if t != -100]
    correct = sum(p == t for p, t in cells) / len(cells)
    accuracies = []
    for k in range(K):
        if k in left_out:
            continue
        own = [p == k for p, t in cells if t == k]
        if own:
            accuracies.append(sum(own) / len(own))
        elif published and any(p == k for p, _ in cells):
            accuracies.append(0.0)
    return correct, np.mean(accuracies) if accuracies else math.nan


specimens = st.lists(
    st.lists(st.tuples(st.integers(0, K - 1), st.sampled_from([-100, *range(K)])), min_size=1, max_size=30).filter(
        lambda cells: any(t != -100 for _, t in cells)
    ),
    min_size=1,
    max_size=5,
)


@pytest.mark.slow
@given(specimens, st.sampled_from([(), (7,), (0, 7)]))
def test_scores_equal_a_slow_reading_of_their_definition(cells, left_out):
    prediction = torch.tensor([p for s in cells for p, _ in s])
    label = torch.tensor([t for s in cells for _, t in s])
    which = torch.repeat_interleave(torch.arange(len(cells)), torch.tensor([len(s) for s in cells]))
    confusions = specimen_confusions(prediction, label, which, K)
    assert confusions.shape == (len(cells), K, K)
    for published in (False, True):
        slow = np.array([slow_scores(*zip(*s, strict=True), left_out, published) for s in cells])
        np.testing.assert_allclose(top1(confusions).numpy(), slow[:, 0], rtol=1e-6)
        np.testing.assert_allclose(
            class_average(confusions, left_out, published=published).numpy(), slow[:, 1], rtol=1e-6
        )
    defined = class_average(confusions, left_out)
    both = ~defined.isnan()
    assert (class_average(confusions, left_out, published=True)[both] <= defined[both] + 1e-6).all()
    total = score(confusions, left_out)
    assert total.top1 == pytest.approx(slow[:, 0].mean(), rel=1e-6)
    assert total.top1_deviation == pytest.approx(slow[:, 0].std(), rel=1e-5, abs=1e-7), "numpy's deviation"
    if not np.isnan(slow[:, 1]).all():
        assert total.class_average_published == pytest.approx(np.nanmean(slow[:, 1]), rel=1e-6)


def test_an_example_by_hand():
    """Class 0: 2 of 3; class 1: 1 of 1; class 7 (embryo sac): 0 of 1; class 2 only predicted; one cell unlabelled."""
    label = torch.tensor([0, 0, 0, 1, 7, -100])
    prediction = torch.tensor([0, 0, 2, 1, 0, 5])
    confusion = specimen_confusions(prediction, label, None, K)
    assert confusion.sum() == 5
    assert top1(confusion)[0] == pytest.approx(3 / 5)
    assert class_average(confusion, (7,))[0] == pytest.approx((2 / 3 + 1) / 2)
    assert class_average(confusion, (7,), published=True)[0] == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert class_average(confusion)[0] == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert class_accuracy(confusion)[0].isnan().tolist() == [False, False, True, True, True, True, True, False, True]


def test_specimens_weigh_the_same_whatever_their_size():
    label = torch.cat([torch.zeros(1000, dtype=torch.long), torch.ones(10, dtype=torch.long)])
    prediction = torch.zeros(1010, dtype=torch.long)
    which = label.clone()
    assert score(specimen_confusions(prediction, label, which, 2)).top1 == pytest.approx(0.5)


def test_pooling_folds_is_concatenation_not_a_mean_of_folds():
    one, two = torch.eye(3, dtype=torch.long)[None], torch.ones(3, 3, 3, dtype=torch.long)
    assert score(torch.cat([one, two])).top1 == pytest.approx((1 + 3 * (1 / 3)) / 4)


def test_specimens_without_labels_do_not_count():
    empty = torch.zeros(1, K, K, dtype=torch.long)
    full = torch.eye(K, dtype=torch.long)[None]
    assert score(torch.cat([empty, full])).specimens == 1
    with pytest.raises(ValueError, match="no specimen holds a labelled node"):
        score(empty)


def test_embryo_sac_is_class_seven():
    assert layout.CLASS_NAMES[layout.EMBRYO_SAC] == "es"
    assert layout.EMBRYO_SAC == 7


@pytest.mark.parametrize(
    ("prediction", "label", "message"),
    [
        (torch.zeros(3), torch.zeros(3, dtype=torch.long), "prediction: got torch.float32"),
        (torch.zeros(4, dtype=torch.long), torch.zeros(3, dtype=torch.long), r"need classes of shape \(3,\)"),
        (torch.tensor([9]), torch.tensor([0]), "prediction: holds classes outside 0 to 8"),
        (torch.tensor([0]), torch.tensor([-1]), "label: holds classes outside 0 to 8"),
    ],
)
def test_wrong_input(prediction, label, message):
    with pytest.raises(ValueError, match=message):
        specimen_confusions(prediction, label, None, K)


def test_per_class_table():
    confusions = torch.zeros(2, 3, 3, dtype=torch.long)
    confusions[0] = torch.tensor([[8, 2, 0], [1, 3, 0], [0, 0, 0]])
    confusions[1] = torch.tensor([[0, 0, 0], [0, 4, 2], [0, 0, 0]])
    a, b, c = per_class(confusions, ("a", "b", "c"))
    assert a == {"class": "a", "cells": 10, "specimens": 1, "accuracy": 0.8, "precision": 8 / 9, "taken for": "b"}
    assert b == {"class": "b", "cells": 10, "specimens": 2, "accuracy": 0.7, "precision": 7 / 9, "taken for": "c"}
    assert (c["cells"], c["specimens"], c["precision"], c["taken for"]) == (0, 0, 0.0, "")
    assert math.isnan(c["accuracy"])


def test_first_best_refuses_what_is_no_history():
    for accuracy in (torch.tensor([]), torch.tensor([0.1, math.nan]), torch.rand(2, 2)):
        with pytest.raises(ValueError, match="need one number per epoch"):
            first_best(accuracy)

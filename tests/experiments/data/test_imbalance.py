import pytest
import torch

from experiments.data.imbalance import exponential_counts, thinned, thirds


def test_the_first_class_keeps_all_and_the_last_its_share():
    counts = exponential_counts(torch.full((100,), 500), 100)
    assert counts[0] == 500
    assert counts[-1] == 5
    assert (counts.diff() <= 0).all()
    assert counts[33] == round(500 * 100 ** (-33 / 99))


def test_imbalance_one_changes_nothing_and_no_class_dies():
    counts = torch.tensor([4, 9, 2])
    assert torch.equal(exponential_counts(counts, 1), counts)
    assert exponential_counts(counts, 1e6).tolist() == [4, 1, 1]
    with pytest.raises(ValueError, match=r"imbalance: got 0\.5"):
        exponential_counts(counts, 0.5)


def test_the_same_samples_stay_every_time():
    labels = torch.arange(1000) % 10
    rows = thinned(labels, 10, 10)
    assert torch.equal(rows, thinned(labels, 10, 10))
    assert len(rows.unique()) == len(rows)
    assert torch.equal(torch.bincount(labels[rows]), exponential_counts(torch.full((10,), 100), 10))


def test_thirds_are_ordered_and_hold_every_class_once():
    counts = torch.tensor([5, 100, 7, 80, 60, 1, 9])
    many, some, few = thirds(counts)
    assert counts[many].min() >= counts[some].max() >= counts[some].min() >= counts[few].max()
    assert sorted(torch.cat([many, some, few]).tolist()) == list(range(7))

"""Parts of a data set: a share of every class, long-tailed copies."""

import pytest
import torch

from experiments.data.samples import exponential_counts, stratified, thinned, thirds


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


def test_a_stratified_part_is_a_fixed_share_of_every_class():
    labels = torch.arange(103) % 4
    kept, held = stratified(labels, 0.25)
    assert sorted(torch.cat([kept, held]).tolist()) == list(range(103))
    assert labels[held].bincount().tolist() == [round(0.25 * n) for n in labels.bincount().tolist()]
    assert torch.equal(held, stratified(labels, 0.25)[1])
    with pytest.raises(ValueError, match="leaves one part of the 3 training samples empty"):
        stratified(torch.zeros(3, dtype=torch.long), 0.01)

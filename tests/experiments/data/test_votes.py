"""People's votes: read, drawn without replacement, simulated, in parts."""

import numpy as np
import pytest
import torch

from experiments.data import votes

VOTES = torch.tensor([[3, 0, 2], [1, 0, 0], [20, 20, 20]])


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_votes_are_drawn_without_replacement():
    for number in (1, 2, 4, 100):
        drawn = votes.draw(VOTES, number, generator())
        assert (drawn <= VOTES).all()
        assert drawn.sum(1).tolist() == [min(number, total) for total in (5, 1, 60)]
    assert torch.equal(votes.draw(VOTES, 60, generator()), VOTES)
    with pytest.raises(ValueError, match="number: got 0"):
        votes.draw(VOTES, 0, generator())


def test_a_drawn_vote_is_as_likely_as_its_share():
    """4000 rows of 3, 0 and 2 votes, two of each drawn: the first class has mean 1.2 and variance 0.36 by hand.

    A deviation of 5 standard errors has probability 6e-7.
    """
    drawn = votes.draw(VOTES[:1].expand(4000, 3), 2, generator()).double()
    assert abs(drawn[:, 0].mean() - 1.2) < 5 * 0.6 / 4000**0.5
    assert drawn[:, 0].var() == pytest.approx(0.36, rel=0.1)
    assert drawn[:, 1].max() == 0


def test_the_majority_wins_and_ties_are_broken_both_ways():
    assert votes.majority(VOTES[:2], generator()).tolist() == [0, 0]
    ties = votes.majority(VOTES[2:].expand(300, 3), generator())
    assert torch.bincount(ties, minlength=3).min() > 60


def test_simulated_votes_are_the_same_every_time_and_mostly_right():
    found = votes.simulated()
    assert torch.equal(found.votes, votes.simulated().votes)
    assert (found.votes.sum(1) == 51).all()
    agree = (found.votes.argmax(1) == found.y).double().mean()
    assert 0.9 < agree < 1  # people, too, are not always right
    assert (found.votes.amax(1) < 51).double().mean() > 0.5


def test_parts_are_disjoint_and_standardised():
    parts = votes.load("simulated")
    sizes = [len(part) for part in (parts.train, parts.held_out, parts.test)]
    assert sum(sizes) == 1797
    assert sizes[0] / 1797 == pytest.approx(0.5, abs=0.02)
    everything = torch.cat([part.x for part in (parts.train, parts.held_out, parts.test)])
    assert len(everything.unique(dim=0)) == 1797
    varies = parts.train.x.std(0) > 0
    assert parts.train.x[:, varies].std(0) == pytest.approx(torch.ones(int(varies.sum())), abs=1e-4)


def test_a_wrong_file_is_named(tmp_path, monkeypatch):
    votes.load.cache_clear()
    (tmp_path / "cifar10h").mkdir()
    file = tmp_path / "cifar10h" / "cifar10h.npz"
    np.savez(file, y=np.zeros(3), votes=np.ones((2, 10)), resnet56_feat=np.ones((3, 4)))
    monkeypatch.setenv("SOFTNCE_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=r"cifar10h\.npz needs .* got shapes"):
        votes.load("cifar10h")
    file.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"cannot be read as CIFAR-10H"):
        votes.load("cifar10h")

import torch

from softnce.lab.data.features import Part, load, split


def test_parts_are_disjoint_and_standardised_by_the_training_part():
    digits = load("digits")
    assert (len(digits.train), len(digits.held_out), len(digits.test)) == (1295, 143, 359)
    assert digits.held_out.y.bincount().min() >= 13  # a tenth of every class
    varying = digits.train.x.std(0) > 0
    torch.testing.assert_close(digits.train.x[:, varying].std(0), torch.ones(int(varying.sum())), atol=1e-4, rtol=0)
    assert digits.train.x.mean(0).abs().max() < 1e-4
    assert digits.held_out.x.mean(0).abs().max() > 1e-3  # its own statistics have no part in it
    rows = {tuple(row) for row in digits.train.x.tolist()}
    assert not any(tuple(row) in rows for row in digits.test.x.tolist())


def test_a_constant_feature_stays_finite():
    x = torch.randn(40, 3)
    x[:, 1] = 7.0
    parts = split(Part(x, torch.arange(40) % 2), Part(x[:4], torch.arange(4) % 2), 2)
    assert parts.train.x.isfinite().all()
    assert parts.test.x[:, 1].eq(0).all()

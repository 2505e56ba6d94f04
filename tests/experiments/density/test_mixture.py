import math

import pytest
import torch

from experiments.density.mixture import sample_mixtures, spherical_modes


@pytest.mark.parametrize("alignment", [0, 10, 45, 80, 99.9])
@pytest.mark.parametrize(("num_modes", "dimension"), [(20, 20), (3, 3), (2, 7), (5, 12)])
def test_modes_have_unit_length_and_one_angle_to_the_first(alignment, num_modes, dimension):
    modes = spherical_modes(alignment, num_modes, dimension)
    assert modes.shape == (num_modes, dimension)
    torch.testing.assert_close(modes.norm(dim=1), torch.ones(num_modes, dtype=torch.float64))
    angle = torch.tensor(math.pi / 2 * (1 - alignment / 100), dtype=torch.float64)
    torch.testing.assert_close(modes[1:] @ modes[0], angle.cos().expand(num_modes - 1))


def test_ends_of_alignment():
    torch.testing.assert_close(spherical_modes(0, 20, 20), torch.eye(20, dtype=torch.float64))
    modes = spherical_modes(80, 20, 20)
    assert math.degrees(math.acos(float(modes[0] @ modes[5]))) == pytest.approx(18)


def test_clear_errors():
    for alignment in (-1, 100, 120):
        with pytest.raises(ValueError, match=rf"alignment: got {alignment} %, need a value in \[0, 100\)"):
            spherical_modes(alignment, 20, 20)
    with pytest.raises(ValueError, match=r"num_modes: got 21, need 2 to 20"):
        spherical_modes(0, 21, 20)
    with pytest.raises(ValueError, match="shorter"):
        sample_mixtures([0, 20], [0])


def test_a_seed_fixes_the_data_set_whatever_stands_beside_it():
    together = sample_mixtures([0, 40, 80], [3, 1, 3], num_points=50, num_samples=200)
    alone = sample_mixtures([80], [3], num_points=50, num_samples=200)
    other = sample_mixtures([80], [4], num_points=50, num_samples=200)
    for name in ("points", "index", "labels", "conditional"):
        assert torch.equal(getattr(together, name)[2:], getattr(alone, name))
        assert not torch.equal(getattr(other, name), getattr(alone, name))


def test_shares_count_the_samples():
    data = sample_mixtures([60], [0], num_points=30, num_samples=500, num_modes=4, dimension=6)
    share, weight = data.label_share[0], data.weight[0]
    for point, label in ((0, 0), (7, 3), (29, 1)):
        chosen = (data.index[0] == point) & (data.labels[0] == label)
        assert float(share[point, label]) == int(chosen.sum()) / 500
    torch.testing.assert_close(share.sum(1), weight)
    assert weight.sum() == pytest.approx(1)


def test_labels_follow_the_conditional():
    # 200,000 labels at one point: chi-square against p with 19 degrees of freedom; false alarm 1e-6.
    from scipy.stats import chi2

    data = sample_mixtures([70], [1], num_points=1, num_samples=200_000)
    expected = data.conditional[0, 0] * 200_000
    observed = torch.bincount(data.labels[0], minlength=20)
    assert float(((observed - expected) ** 2 / expected).sum()) < chi2.isf(1e-6, 19)


def test_points_surround_their_modes():
    data = sample_mixtures([30], [0], num_points=20_000, num_samples=1)
    distance = torch.cdist(data.points[0], 10 * data.modes[0]).min(1).values
    assert float(distance.square().mean()) == pytest.approx(20, rel=0.05)

import numpy as np
import pytest

from softnce.lab.data import layout
from softnce.lab.data.layout import absolute_z_score, one_hot_hops, orientation, unit_sum, z_score


def test_published_widths_and_order():
    assert layout.NUM_NODE_FEATURES == 74
    assert layout.NUM_EDGE_FEATURES == 11
    assert list(layout.NODE_COLUMNS) == [
        "com_grs",
        "lrs_orientation_axis1_grs",
        "lrs_orientation_axis2_grs",
        "lrs_orientation_axis3_grs",
        "pca_orientation_axis1_grs",
        "pca_orientation_axis2_grs",
        "pca_orientation_axis3_grs",
        "degree_centrality",
        "rw_centrality",
        "hops_to_bg",
        "volume_um",
        "surface_um",
        "length_axis1_grs",
        "length_axis2_grs",
        "length_axis3_grs",
        "lrs_axis12_dot_grs",
        "lrs_axis2_angle_grs",
        "lrs_proj_axis1_grs",
        "lrs_proj_axis2_grs",
        "lrs_proj_axis3_grs",
        "pca_proj_axis1_grs",
        "pca_proj_axis2_grs",
        "pca_proj_axis3_grs",
        "pca_explained_variance_grs",
    ]
    assert layout.NODE_COLUMNS["hops_to_bg"] == slice(41, 46)
    assert layout.NODE_COLUMNS["pca_explained_variance_grs"] == slice(71, 74)
    assert list(layout.EDGE_COLUMNS) == [
        "surface_um",
        "com_distance_um",
        "com_grs",
        "lrs_dot_axis1_grs",
        "lrs_dot_axis2_grs",
        "lrs_dot_axis3_grs",
        "lrs_proj_grs",
    ]
    assert layout.EDGE_COLUMNS["lrs_proj_grs"] == slice(8, 11)


def test_transforms_on_numbers_one_can_check_by_hand():
    # One mean (3) and one deviation (√5) for the whole array, not one a column.
    np.testing.assert_allclose(
        z_score(np.array([[0.0, 2.0], [4.0, 6.0]])), np.array([[-3, -1], [1, 3]]) / np.sqrt(5), rtol=1e-15
    )
    np.testing.assert_allclose(absolute_z_score(np.array([[-1.0], [3.0]])), [[-1], [1]])
    # Divided by |1 + 2 − 5| = 2, not by the Euclidean norm √30.
    np.testing.assert_allclose(unit_sum(np.array([[1.0, 2.0, -5.0]])), [[0.5, 1.0, -2.5]])
    # From the smallest number of hops on; the last channel collects the rest.
    hops = one_hot_hops(np.array([[1.0], [2.0], [5.0], [9.0]]))
    assert hops.argmax(1).tolist() == [0, 1, 4, 4]
    assert hops.sum(1).tolist() == [1, 1, 1, 1]


def test_the_sum_of_an_orientation_stays_away_from_zero():
    """(1 + (x + y + z)²)/2 for a unit vector, so the published division is safe."""
    vectors = np.random.default_rng(0).standard_normal((1000, 3))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    total = orientation(vectors).sum(1)
    np.testing.assert_allclose(total, (1 + vectors.sum(1) ** 2) / 2, rtol=1e-12)
    assert total.min() >= 0.5 - 1e-12
    assert total.max() <= 2 + 1e-12


@pytest.mark.parametrize("sign", [1, -1])
def test_orientation_forgets_the_sign(sign):
    v = np.array([[0.2, -0.5, 0.7]])
    np.testing.assert_array_equal(
        orientation(sign * v)[0], [0.04000000000000001, 0.25, 0.48999999999999994, -0.1, -0.35, 0.13999999999999999]
    )

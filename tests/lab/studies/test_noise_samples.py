"""Small batches: what is trained with which seeds, and the test of equivalence."""

import pytest
from scipy.stats import ttest_1samp

from softnce.lab.experiment.statistics import estimate
from softnce.lab.studies.noise_samples.findings import SHARPER, equivalence, expected_gaps, find
from softnce.lab.studies.noise_samples.run import Config

OPTIONS = (
    *("--batches", "[16, 64, 256]", "--tested_batch", "16", "--tested_seeds", "3", "--numbers", "[8]"),
    *(
        "--confirming_seeds",
        "2",
        "--expected_batches",
        "[64, 256]",
        "--expected_seeds",
        "[2, 2]",
        "--rates",
        "[0.003]",
        "--seeds",
        "2",
    ),
)


@pytest.mark.slow
def test_candidates_nearer_to_the_classes_are_another_training(made):
    found = find(made("noise-samples", *OPTIONS))
    assert found.batches == [16, 64, 256]
    assert found.numbers == [8, found.num_candidates]
    assert len(found.of(SHARPER, 16)) == 3  # as many seeds as are tested
    assert not found.of(SHARPER, 64)
    as_targets, sharper = found.of("sampled", 16).rows[0], found.of(SHARPER, 16).rows[0]
    assert as_targets.result["test"]["nll"] != sharper.result["test"]["nll"]
    for method in ("soft-ce", "sampled", SHARPER):
        assert [row.config["seed"] for row in found.of(method, 16, further=True).rows] == [1000, 1001]
    assert not found.of("batch", 16, further=True)
    assert not found.of("expected", 16)
    assert not found.of("expected-0", 64)
    for method, batch in (("expected", 64), ("expected", 256), ("expected-0", 256)):
        assert len(found.of(method, batch)) == 2
        assert [row.config["seed"] for row in found.of(method, batch, further=True).rows] == [1000, 1001]
    default, bare = (found.of(method, 256).rows[0].result["test"] for method in ("expected", "expected-0"))
    assert default != bare
    assert expected_gaps(found).startswith("batch 64: ")
    assert found.gap("sampled", 16).count == 3
    assert found.gap("sampled", 16, further=True).count == 2


def test_equivalence_is_two_one_sided_tests():
    gaps = [0.3, -0.1, 0.2, 0.05, 0.12]
    below = ttest_1samp(gaps, 0.5, alternative="less").pvalue
    above = ttest_1samp(gaps, -0.5, alternative="greater").pvalue
    assert equivalence(estimate(gaps)) == pytest.approx(max(below, above))
    assert equivalence(estimate([0.2])) == 1.0
    assert equivalence(estimate([0.9, 0.9])) == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batches": (1,)}, "batches: got"),
        ({"tested_batch": 5}, "tested_batch: got 5"),
        ({"expected_seeds": (3,)}, "expected_seeds: got"),
    ],
)
def test_bad_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        Config(**options)

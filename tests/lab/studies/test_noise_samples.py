"""Small batches: what is trained with which seeds, and the test of equivalence."""

from collections.abc import Sequence

import pytest
from scipy.stats import ttest_1samp

from softnce.lab.configuration import to_mapping
from softnce.lab.experiment.probe import Probe
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.statistics import estimate
from softnce.lab.studies.noise_samples.findings import SHARPER, equivalence, expected_gaps, find
from softnce.lab.studies.noise_samples.run import Config, follow_up, runs

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
    rows = made("noise-samples", *OPTIONS)
    found = find(rows)
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
    assert expected_gaps(rows).startswith("batch 64: ")
    assert found.gap("sampled", 16).count == 3
    assert found.gap("sampled", 16, further=True).count == 2


def test_three_seeds_decide_the_rate_of_the_test():
    """Seed 0 alone would choose another one, which is trained beside it."""
    config = Config(
        data="cifar100", batches=(8, 32), expected_batches=(8,), expected_seeds=(2,), alone_seeds=2, confirming_seeds=2,
        tested_seeds=3, numbers=(), rates=(1e-3, 3e-3),
    )  # fmt: skip

    def rows(trained: Sequence[Probe]) -> list[Row]:
        def top1(run: Probe) -> float:
            misled = run.loss.name == "expected-info-nce" and run.seed == 0
            return 0.6 + (run.lr == (3e-3 if misled else 1e-3)) / 100 + run.seed / 1e5

        result = [{"held_out": {"top1": top1(run)}, "test": {"top1": top1(run)}} for run in trained]
        return [Row("", to_mapping(run), one, 0.0, "", {}) for run, one in zip(trained, result, strict=True)]

    tried = runs(config)
    searched = {(run.loss.name, run.seed) for run in tried if run.batch == 8 and run.seed > 0}
    assert searched == {(name, seed) for name in ("soft-ce", "expected-info-nce") for seed in (1, 2)}
    more = follow_up(config, rows(tried))
    further = {(run.lr, run.seed) for run in more if run.loss.name == "expected-info-nce" and run.seed >= 1000}
    assert further == {(lr, seed) for lr in (1e-3, 3e-3) for seed in (1000, 1001)}
    everything = rows(list(dict.fromkeys([*tried, *more])))
    assert (find(everything).of("expected", 8).lr, find(everything, 1).of("expected", 8).lr) == (1e-3, 3e-3)
    assert expected_gaps(everything).endswith(
        "in a first test at the learning rate that one seed chose −1.00 [−1.00, −1.00]"
    )


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

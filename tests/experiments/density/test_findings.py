"""Verdicts, from results made up to have one."""

import itertools

import pytest

from experiments.density import EXPERIMENT
from experiments.harness import Row

numbers = itertools.count()


def row(config, result):
    return Row(str(next(numbers)), config, result)


def fits(seeds, *, adam_gap=0.0, sgd_gap=0.0, rise=0.0):
    """Fits at 0 % and 80 % with InfoNCE at 6 thousandths of a nat, and NLL above it at 80 % by the gaps."""
    rows = []
    for alignment, seed, (optimiser, gap) in itertools.product(
        (0.0, 80.0), range(seeds), (("adam", adam_gap), ("sgd", sgd_gap))
    ):
        for loss in ("nll", "info-nce"):
            data = {"alignment": alignment, "seed": seed}
            data |= {"num_modes": 20, "dimension": 20, "num_points": 1600, "num_samples": 32000}
            config = {"part": "fit", "data": data, "loss": loss, "optimiser": optimiser}
            config |= {"lr": 0.1 if optimiser == "sgd" else 1e-3, "batch_size": 1024, "epochs": 500}
            config |= {"patience": 20, "tolerance": 1e-5, "tail": 0}
            kl = 0.006 + 1e-5 * seed + (alignment == 80) * (rise + gap * (loss == "nll") * (1 + 0.01 * seed))
            rows.append(row(config, {"kl": kl}))
    return rows


@pytest.mark.parametrize(
    ("seeds", "gap", "verdict"), [(5, 0.003, "beyond"), (5, 0.0, "not reproduced"), (1, 0.003, "undecided")]
)
def test_expected_info_nce_beside_nll(seeds, gap, verdict):
    rows = fits(seeds, sgd_gap=gap)
    ours = [r for r in rows if (r.config["loss"], r.config["optimiser"]) == ("info-nce", "sgd")]
    ours = [row(r.config | {"loss": "expected-info-nce"}, r.result) for r in ours]
    found = EXPERIMENT.findings([*rows, *ours])
    assert found["density-expected"].verdict == verdict
    assert "expected InfoNCE − InfoNCE +0.00" in found["density-expected"].ours
    assert "density-expected" not in EXPERIMENT.findings(rows)


@pytest.mark.parametrize(
    ("rows", "gap", "trend"),
    [
        (fits(5, adam_gap=0.003, sgd_gap=0.003), "reproduced", "not reproduced"),
        (fits(5, sgd_gap=0.003), "explained", "not reproduced"),
        (fits(5), "not reproduced", "not reproduced"),
        (fits(5, rise=0.004), "not reproduced", "reproduced"),
        (fits(1, sgd_gap=0.003), "undecided", "undecided"),
    ],
)
def test_density(rows, gap, trend):
    found = EXPERIMENT.findings(rows)
    assert (found["density-gap"].verdict, found["density-trend"].verdict) == (gap, trend)
    seeds = len({r.config["data"]["seed"] for r in rows})
    assert found["density-orthogonal"].verdict == ("reproduced" if seeds == 5 else "undecided")
    assert "density-soft-target" not in found, "nothing was measured about it"

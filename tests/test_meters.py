"""Meters of several ranks: together they have seen what one meter sees of everything."""

import pytest
import torch
import torch.distributed as dist
from batches import seeded
from ranks import on_ranks

from softnce.calibration import CalibrationMeter
from softnce.ranking import RankingMeter, ranks
from softnce.theory.information import InformationMeter

LOGITS, LABELS = torch.randn(16, 20, generator=seeded()), torch.randint(20, (16,), generator=seeded(1))
BOUNDS = [{"abs": 1e-6}, {"abs": 1e-12}, {"rel": 1e-12}]
PARTS = {"uneven": [slice(0, 7), slice(7, 16)], "all on one": [slice(0, 16), slice(0, 0)]}


def measured(rows: slice) -> list:
    calibration, ranking, information = CalibrationMeter(), RankingMeter(ks=(3,)), InformationMeter()
    if rows.stop > rows.start:
        calibration.update(LOGITS[rows], LABELS[rows])
        ranking.update(ranks(LOGITS[rows], LABELS[rows]))
        information.update(LOGITS[rows, 0])
    return [calibration, ranking, information]


def gathered(rank: int) -> dict[str, list[dict[str, float]]]:
    dist.init_process_group("gloo")
    found = {}
    for name, parts in PARTS.items():
        meters = measured(parts[rank])
        for meter in meters:
            if not isinstance(meter, RankingMeter):  # which does so by itself
                meter.gather()
        found[name] = [meter.compute() for meter in meters]
    dist.destroy_process_group()
    return found


@pytest.mark.slow
def test_meters_gather_over_processes() -> None:
    for found in on_ranks(gathered, 2):
        for meters in found.values():
            for mine, whole, bound in zip(meters, measured(slice(0, 16)), BOUNDS, strict=True):
                assert mine == pytest.approx(whole.compute(), **bound)

"""Rows of the study, made by hand."""

from dataclasses import replace

from softnce.lab.configuration import to_mapping
from softnce.lab.experiment.results import Row
from softnce.lab.studies.distillation import run as study


def rows_with(top1, data="cifar100"):
    """Rows of three seeds with a top-1 for each method, from labels and from the teacher (at temperature 2, halved)."""
    config = study.Config(data=data, rates=(1e-3,))
    teacher = {"train": {"top1": 0.9}, "test": {"top1": 0.7}, "confidence": 0.8}
    found = [Row("0", to_mapping(study.teacher(config)), teacher, 1.0, "", {})]
    for setting in study.settings(config):
        for seed in range(3):
            value = top1[setting.method][setting.k is not None] + 0.1 * seed
            value = value / 2 if setting.temperature == 2 and setting.remainder == "spread" else value
            scores = {"top1": value / 100, "ece": 0.1, "nll": 1.0}
            run = replace(setting, lr=1e-3, seed=seed)
            result = {"held_out": scores, "test": scores, "scaled": scores}
            found.append(Row(str(len(found)), to_mapping(run), result, 1.0, "", {}))
    return found


TOP1 = dict.fromkeys(("nll", "info-nce", study.EXPECTED, *study.SOFT), (50.0, 55.0))
TOP1["soft-target-info-nce"] = (50.0, 52.0)

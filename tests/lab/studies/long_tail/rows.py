"""Rows of the study, made by hand."""

import math
from dataclasses import replace

from softnce.lab.configuration import to_mapping
from softnce.lab.experiment.results import Row
from softnce.lab.studies.long_tail import run as long_tail


def rows_with(shift=1.0, effect=3.0, after=2.0, data="cifar100"):
    """Rows of three seeds: leaving the correction out moves scores by −shift·log p(y) and accuracy by ``effect``.

    Switching the prior afterwards adds ``after`` points.
    """
    config = long_tail.Config(data=data, imbalance=(100.0,), rates=(1e-3,))
    counts = [round(500 * 100 ** (-k / 9)) for k in range(10)]
    surprise = [math.log(sum(counts) / count) for count in counts]
    found = []
    for setting in long_tail.settings(config):
        bare = setting.loss.noise == "uniform"
        for seed in range(3):
            top1 = (50 + 0.3 * seed + (effect if bare else 0)) / 100
            scores = {"top1": top1, "ece": 0.1, "nll": 1.0}
            result = {
                "held_out": {"top1": top1},
                "test": scores,
                "switched": scores | {"top1": top1 + after / 100},
                "groups": {"many": top1, "some": top1, "few": top1},
                "class_counts": counts,
                "class_accuracy": [top1] * 10,
                "class_score": [shift * s if bare else 0.0 for s in surprise],
            }
            run = replace(setting, lr=1e-3, seed=seed)
            found.append(Row(str(len(found)), to_mapping(run), result, 1.0, "", {}))
    return found

"""Rows of the study, made by hand."""

from dataclasses import replace

from softnce.lab.configuration import to_mapping
from softnce.lab.experiment.results import Row
from softnce.lab.studies.human_labels import run as human_labels


def rows_with(kl, data="cifar10h"):
    """Rows of three seeds with a given KL for each method at all votes, and 0.3 for all with one vote."""
    config = human_labels.Config(data=data, votes=(1, 0), draws=(2,), rates=(1e-3,))
    found = []
    for setting in human_labels.settings(config):
        for seed in range(3):
            value = (kl[setting.method] if setting.votes == 0 else 0.3) + 0.01 * seed
            scores = {"top1": 0.9, "cross_entropy": value + 0.16, "kl": value, "kl_disputed": 2 * value, "ece": 0.02}
            result = {"held_out": scores, "test": scores, "scaled": scores, "temperature": 1.0}
            run = replace(setting, lr=1e-3, seed=seed)
            found.append(Row(str(len(found)), to_mapping(run), result, 1.0, "", {}))
    return found


KL = {"nll": 0.24, "soft-ce": 0.21, "soft-dist-info-nce": 0.212, "soft-target-info-nce": 0.22, "averaged": 0.21}
KL["expected-info-nce"] = 0.211

"""Rows of the digits study to test scores by loss."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from softnce.lab.experiment.comparison import largest, mean
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.statistics import Estimate
from softnce.lab.losses import LOSSES


@dataclass(frozen=True)
class Digits:
    """The runs of the sizes that most have: a configuration, number of seeds, and scores of each loss by their
    names."""

    config: dict[str, Any]
    seeds: int
    scores: dict[str, dict[str, Estimate]]

    def of(self, score: str) -> dict[str, Estimate]:
        """One score, by loss."""
        return {loss: scores[score] for loss, scores in self.scores.items()}


def read(rows: Sequence[Row]) -> Digits:
    chosen = largest(rows, "train_size", "epochs", "batch_size", "hidden", "lr")
    losses = sorted(LOSSES, key=lambda loss: not LOSSES[loss].labels_only)  # those trained on labels first
    by_loss = {loss: [row for row in chosen if row.config["loss"] == loss] for loss in losses}
    scores = {
        loss: {
            "accuracy": mean(found, lambda row: 100 * row.result["accuracy"]),
            "nll": mean(found, lambda row: row.result["nll"]),
            "ece": mean(found, lambda row: 100 * row.result["ece"]),
            "nll_at_best_temperature": mean(found, lambda row: row.result["nll_at_best_temperature"]),
            "best_temperature": mean(found, lambda row: row.result["best_temperature"]),
        }
        for loss, found in by_loss.items()
        if found
    }
    return Digits(chosen[0].config, max(map(len, by_loss.values())), scores)

import pytest
import torch
from torch import nn

from softnce.lab.scores import Scores


def test_scores_agree_with_counting():
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(60, 8, generator=generator), torch.randint(7, (60,), generator=generator)
    scores = Scores(8)
    for rows in torch.arange(60).split(17):
        scores.update(logits[rows], labels[rows])
    measured = scores.compute()
    ranks = [sorted(range(8), key=lambda k, r=row: -r[k]).index(y) for row, y in zip(logits, labels, strict=True)]
    by_class = {
        k: [r == 0 for r, y in zip(ranks, labels.tolist(), strict=True) if y == k] for k in set(labels.tolist())
    }
    assert measured["top1"] == pytest.approx(sum(r == 0 for r in ranks) / 60)
    assert measured["top5"] == pytest.approx(sum(r < 5 for r in ranks) / 60)
    assert measured["class_average"] == pytest.approx(sum(sum(v) / len(v) for v in by_class.values()) / len(by_class))
    assert measured["nll"] == pytest.approx(nn.functional.cross_entropy(logits, labels).item(), rel=1e-6)

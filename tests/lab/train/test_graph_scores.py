import pytest
import torch

from softnce.lab.data.graph_metrics import score, specimen_confusions
from softnce.lab.targets import IGNORED
from softnce.lab.train.graph_scores import NodeScores


def test_scores_are_the_benchmarks():
    """Two graphs of 4 and 2 nodes: means over graphs, not over nodes, however they are batched."""
    logits = torch.eye(3)[torch.tensor([0, 1, 1, 2, 0, 2])] * 5
    labels = torch.tensor([0, 1, 1, 1, 1, IGNORED])

    class Inputs:
        batch = torch.tensor([0, 0, 0, 0, 1, 1])

    scores = NodeScores(3, left_out=(0,))
    scores.update(logits, labels, Inputs)
    found = scores.compute()
    expected = score(specimen_confusions(logits.argmax(1), labels, Inputs.batch, 3), (0,))
    assert found["top1"] == expected.top1 == (3 / 4 + 0) / 2
    assert found["class_average"] == expected.class_average == pytest.approx((2 / 3 + 0) / 2)
    assert found["nll"] > 0
    scores.reset()
    assert len(scores.confusions) == 0

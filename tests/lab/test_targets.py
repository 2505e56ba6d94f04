import torch

from softnce import SoftTargets
from softnce.lab.targets import IGNORED, soft_targets


def test_votes_become_soft_targets_and_unlabelled_nodes_do_not_count():
    labels = torch.tensor([0, IGNORED, 2])
    votes = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 2, 0]])
    soft = soft_targets(labels, votes, 4, 0.2)
    assert soft.mask.tolist() == [True, False, True]
    expected = torch.tensor([[0.45, 0.45, 0.05, 0.05], [0.05, 0.05, 0.85, 0.05]])
    torch.testing.assert_close(soft.dense()[soft.mask], expected)
    plain = soft_targets(labels, None, 4, 0.2)
    torch.testing.assert_close(
        plain.dense()[plain.mask], SoftTargets.from_labels(labels[[0, 2]], 4, smoothing=0.2).dense()
    )
    assert soft_targets(labels[[0, 2]], votes[[0, 2]], 4, 0.0).mask is None

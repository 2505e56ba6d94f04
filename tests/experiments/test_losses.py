import pytest
import torch

from experiments import losses
from experiments.data.targets import Targets
from experiments.losses import LOSSES, Loss, build_loss, class_counts
from softnce import NLL, InfoNCE, SoftDistributionInfoNCE, SoftTargetCrossEntropy, SoftTargetInfoNCE, SoftTargets
from softnce.candidates import BatchCandidates, ClassCandidates, SampledCandidates

LABELS = torch.tensor([0, 0, 1, 2])


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_can_be_built_and_called(name):
    loss = build_loss(Loss(name, temperature=0.5), Targets(), LABELS, 3)
    targets = SoftTargets.from_labels(LABELS, 3, 0.0 if LOSSES[name].labels_only else 0.1)
    assert float(loss.temperature) == 0.5
    assert torch.isfinite(loss(torch.randn(4, 3), targets))


def test_a_loss_is_what_its_name_says():
    built = {name: type(build_loss(Loss(name), Targets(), LABELS, 3)) for name in losses.PAPER}
    assert built == {
        "nll": NLL,
        "soft-ce": SoftTargetCrossEntropy,
        "info-nce": InfoNCE,
        "soft-dist-info-nce": SoftDistributionInfoNCE,
        "soft-target-info-nce": SoftTargetInfoNCE,
    }
    assert [name for name, kind in LOSSES.items() if kind.labels_only] == ["nll", "info-nce"]


def test_noise_comes_from_the_training_labels():
    labels = torch.tensor([0, 0, 0, 1])
    loss = build_loss(Loss(), Targets(), labels, 2)
    torch.testing.assert_close(loss.noise.log_probs().exp(), torch.tensor([0.75, 0.25]))
    uniform = build_loss(Loss(noise="uniform"), Targets(), labels, 2)
    torch.testing.assert_close(uniform.noise.log_probs().exp(), torch.tensor([0.5, 0.5]))
    with pytest.raises(ValueError, match=r"1 of 3 classes have no count \(2\).*--loss.noise uniform"):
        build_loss(Loss(), Targets(), labels, 3)
    assert isinstance(build_loss(Loss("soft-ce"), Targets(), labels, 3), SoftTargetCrossEntropy)


def test_candidates():
    def candidates(name):
        return build_loss(Loss(candidates=name, num_candidates=16), Targets(mixup=0.8), LABELS, 3).candidates

    assert isinstance(candidates("batch"), BatchCandidates)
    assert isinstance(candidates("classes"), ClassCandidates)
    assert isinstance(candidates("sampled"), SampledCandidates)
    for name in ("queue", "batch+classes"):
        assert torch.isfinite(build_loss(Loss(candidates=name), Targets(), LABELS, 3)(torch.randn(4, 3), LABELS))


def test_soft_distribution_info_nce_has_the_authors_noise_or_the_smoothed_one():
    """Labels are drawn from targets smoothed by ε, so their marginal is (1 − ε)·p + ε/K; the authors pass p."""
    labels, smooth = torch.tensor([0, 0, 0, 1]), Targets(smoothing=0.2)
    theirs = build_loss(Loss("soft-dist-info-nce"), smooth, labels, 2).noise.log_probs().exp()
    ours = build_loss(Loss("soft-dist-info-nce-smoothed-noise"), smooth, labels, 2).noise.log_probs().exp()
    torch.testing.assert_close(theirs, torch.tensor([0.75, 0.25]))
    torch.testing.assert_close(ours, SoftTargets.from_labels(labels, 2, 0.2).dense().mean(0))


def test_the_noise_of_votes_is_their_mean():
    votes = torch.tensor([[3.0, 1.0], [0.0, 2.0]])
    torch.testing.assert_close(class_counts(votes, 2), torch.tensor([0.75, 1.25]).double())
    assert class_counts(torch.tensor([0, 1, -100, 1]), 2).tolist() == [1, 2]


@pytest.mark.parametrize(
    "options",
    [
        {"name": "sof-ce"},
        {"temperature": 0.0},
        {"temperature": float("nan")},
        {"num_candidates": 0},
        {"name": "nll", "candidates": "queue"},
        {"name": "soft-target-info-nce", "noise_count": 5.0},
        {"name": "expected-info-nce", "noise_count": -1.0},
    ],
)
def test_options_that_a_loss_cannot_use_are_refused(options):
    with pytest.raises(ValueError, match=f"loss.{list(options)[-1]}"):
        Loss(**options)

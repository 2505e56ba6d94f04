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
    built = [type(build_loss(Loss(name), Targets(), LABELS, 3)) for name in losses.PAPER]
    assert built == [NLL, SoftTargetCrossEntropy, InfoNCE, SoftDistributionInfoNCE, SoftTargetInfoNCE]
    assert [name for name, kind in LOSSES.items() if kind.labels_only] == ["nll", "info-nce"]


def test_noise_comes_from_the_training_labels():
    """Labels drawn from targets smoothed by ε have the marginal (1 − ε)·p + ε/K; the authors pass p."""
    labels, smooth = torch.tensor([0, 0, 0, 1]), Targets(smoothing=0.2)
    for loss, eta in (
        (Loss(), [0.75, 0.25]),
        (Loss(noise="uniform"), [0.5, 0.5]),
        (Loss("soft-dist-info-nce"), [0.75, 0.25]),
        (Loss("soft-dist-info-nce-smoothed-noise"), SoftTargets.from_labels(labels, 2, 0.2).dense().mean(0)),
    ):
        found = build_loss(loss, smooth, labels, 2).noise.log_probs().exp()
        torch.testing.assert_close(found, torch.as_tensor(eta))
    with pytest.raises(ValueError, match=r"1 of 3 classes have no count \(2\).*--loss.noise uniform"):
        build_loss(Loss(), Targets(), labels, 3)
    assert isinstance(build_loss(Loss("soft-ce"), Targets(), labels, 3), SoftTargetCrossEntropy)


def test_candidates():
    for name, kind in (("batch", BatchCandidates), ("classes", ClassCandidates), ("sampled", SampledCandidates)):
        loss = build_loss(Loss(candidates=name, num_candidates=16), Targets(mixup=0.8), LABELS, 3)
        assert isinstance(loss.candidates, kind)
    for name in ("queue", "batch+classes"):
        assert torch.isfinite(build_loss(Loss(candidates=name), Targets(), LABELS, 3)(torch.randn(4, 3), LABELS))


def test_the_noise_of_votes_is_their_mean():
    votes = torch.tensor([[3.0, 1.0], [0.0, 2.0]])
    torch.testing.assert_close(class_counts(votes, 2), torch.tensor([0.75, 1.25]).double())
    assert class_counts(torch.tensor([0, 1, -100, 1]), 2).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("sof-ce", "name", "sof-ce"), ("nll", "temperature", 0.0), ("nll", "temperature", float("nan")),
        ("nll", "num_candidates", 0), ("nll", "candidates", "queue"), ("soft-target-info-nce", "noise_count", 5.0),
        ("expected-info-nce", "noise_count", -1.0),
    ],
)  # fmt: skip
def test_options_that_a_loss_cannot_use_are_refused(name, option, value):
    with pytest.raises(ValueError, match=f"loss.{option}"):
        Loss(**{"name": name, option: value})

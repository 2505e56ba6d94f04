import pytest
import torch

from softnce import NLL, InfoNCE, SoftDistributionInfoNCE, SoftTargetCrossEntropy, SoftTargetInfoNCE, SoftTargets
from softnce.candidates import BatchCandidates, ClassCandidates, SampledCandidates
from softnce.lab import losses
from softnce.lab.losses import LOSSES, Loss, build_loss
from softnce.lab.report import style
from softnce.lab.targets import Targets

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
    torch.testing.assert_close(loss.log_noise.exp(), torch.tensor([0.75, 0.25]))
    assert build_loss(Loss(noise="uniform"), Targets(), labels, 2).log_noise is None
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


def test_every_loss_has_a_colour_of_its_own():
    assert set(style.LOSSES) == set(LOSSES)
    assert all(style.LOSSES[name].name == kind.title for name, kind in LOSSES.items())

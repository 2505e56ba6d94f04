import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from softnce import InfoNCE, SoftTargets, noise

LABELS = torch.tensor([0, 1, 1, 2, 2, 2, 2, 2])


def test_from_labels_and_counts() -> None:
    expected = torch.tensor([1, 2, 5]) / 8
    torch.testing.assert_close(noise.from_labels(LABELS, 3), expected)
    torch.testing.assert_close(noise.from_counts(torch.tensor([1, 2, 5])), expected)
    torch.testing.assert_close(noise.from_counts(torch.tensor([3, 0, 1]), floor=1), torch.tensor([0.6, 0.2, 0.2]))
    torch.testing.assert_close(noise.uniform(4), torch.full((4,), 0.25))
    assert noise.from_counts(torch.tensor([16.0, 1.0]), exponent=0.5).tolist() == pytest.approx([0.8, 0.2])
    assert noise.from_counts(torch.tensor([16.0, 1.0]), exponent=0.0).tolist() == [0.5, 0.5]
    ignored = torch.cat([LABELS, torch.tensor([-100])])
    torch.testing.assert_close(noise.from_labels(ignored, 3), expected)


def test_from_a_loader_of_labels_probabilities_or_soft_targets() -> None:
    images = torch.zeros(8, 1)
    one_hot = torch.nn.functional.one_hot(LABELS, 3).float()
    for targets in (LABELS, one_hot):
        loader = DataLoader(TensorDataset(images, targets), batch_size=3)
        torch.testing.assert_close(noise.from_loader(loader, 3), noise.from_labels(LABELS, 3))
    soft = [(images, SoftTargets.from_labels(LABELS, 3, smoothing=0.3))]
    torch.testing.assert_close(noise.from_loader(soft, 3), 0.7 * noise.from_labels(LABELS, 3) + 0.1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: noise.from_labels(LABELS, 4), r"1 of 4 classes have no count \(3\).*pass floor=1"),
        (lambda: noise.from_labels(LABELS, 2), "label 2"),
        (lambda: noise.from_counts(torch.tensor([-1.0, 2.0])), "not negative"),
        (lambda: noise.from_counts(torch.ones(2, 2)), r"shape \(K,\)"),
        (lambda: noise.from_counts(torch.ones(2), floor=0.0), "floor must be a positive number"),
        (lambda: noise.from_counts(torch.ones(2), exponent=-1.0), "exponent must be finite and at least 0, got -1"),
        (
            lambda: InfoNCE(noise.RunningNoise(4))(torch.randn(2, 5), LABELS[:2]),
            "the running noise has 4 classes, but there are 5 classes",
        ),
        (lambda: noise.uniform(0), "num_classes must be a whole number of at least 1"),
        (lambda: noise.RunningNoise(3, decay=0.0), "decay must be a positive number"),
        (lambda: noise.RunningNoise(3, prior=0.0), "prior must be a positive number"),
        (lambda: noise.from_loader([(torch.zeros(2), "cat")], 3), "must end in targets of 3 classes"),
    ],
)
def test_misuse(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_noise_by_its_name() -> None:
    assert InfoNCE("uniform").noise is None is InfoNCE(None).noise
    assert isinstance(InfoNCE().noise, noise.RunningNoise)

import pytest
import torch

from softnce import InfoNCE, noise

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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: noise.from_labels(LABELS, 4), r"1 of 4 classes have no count \(3\).*pass floor=1"),
        (lambda: noise.from_labels(LABELS, 2), "label 2"),
        (lambda: noise.from_counts(torch.tensor([-1.0, 2.0])), "not negative"),
        (lambda: noise.from_counts(torch.ones(2, 2)), r"counts must be floating point \(K,\)"),
        (lambda: noise.from_counts(torch.ones(2), floor=0.0), "floor must be a positive number"),
        (lambda: noise.from_counts(torch.ones(2), exponent=-1.0), "exponent must be a finite number of at least 0"),
        (
            lambda: InfoNCE(noise.RunningNoise(4))(torch.randn(2, 5), LABELS[:2]),
            "the running noise has 4 classes, but there are 5 classes",
        ),
        (lambda: noise.uniform(0), "num_classes must be a whole number of at least 1"),
        (lambda: noise.RunningNoise(3, decay=0.0), "decay must be a positive number"),
        (lambda: noise.RunningNoise(3, prior=0.0), "prior must be a positive number"),
    ],
)
def test_misuse(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_noise_by_its_name() -> None:
    assert InfoNCE("uniform").noise is None is InfoNCE(None).noise
    assert isinstance(InfoNCE().noise, noise.RunningNoise)

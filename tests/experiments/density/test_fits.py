import pytest
import torch

import softnce
from experiments.density.fits import Gradient, Variant, fit, fit_plainly
from experiments.density.mixture import maximum_likelihood, sample_mixtures

VARIANTS = [
    Variant("nll"), Variant("info-nce"), Variant("nll", "sgd", 0.1), Variant("info-nce", "sgd", 0.03),
    Variant("info-nce-without-noise", lr=1e-2), Variant("soft-dist-info-nce", smoothing=0.1),
    Variant("expected-info-nce", "sgd", 0.1), Variant("expected-info-nce"), Variant("soft-ce"),
    Variant("soft-ce", "sgd", 0.1), Variant("soft-target-info-nce"), Variant("soft-target-info-nce", "sgd", 0.1),
]  # fmt: skip


def numbers():
    return torch.Generator().manual_seed(0)


def small(*variants):
    """A data set, the gradient of some variants, random weights, and the slope of the objective there."""
    data = sample_mixtures([50], [0], num_points=40, num_samples=300)
    gradient = Gradient(data, variants, torch.float64)
    weights = torch.randn(1, len(variants), 20, 20, generator=numbers(), dtype=torch.float64).requires_grad_()
    (slope,) = torch.autograd.grad(gradient.objective(weights).sum(), weights)
    return data, gradient, weights.detach(), slope


def test_batched_fits_equal_single_fits():
    alignments, seeds = [0, 20, 80, 80], [0, 1, 0, 5]
    data = sample_mixtures(alignments, seeds, num_modes=3, dimension=7, num_points=40, num_samples=300)
    weights, _ = fit(data, VARIANTS, seeds, batch_size=64, epochs=5, dtype=torch.float64)
    for i, seed in enumerate(seeds):
        for j, variant in enumerate(VARIANTS):
            single = fit_plainly(data[[i]], variant, seed, batch_size=64, epochs=5, dtype=torch.float64)
            assert (weights[i, j] - single).abs().max() < 1e-9, (alignments[i], variant)


def test_gradients_are_those_of_the_library_losses():
    data = sample_mixtures([10, 70], [0, 1], num_points=60, num_samples=400)
    names = ("nll", "info-nce", "expected-info-nce", "soft-ce", "soft-target-info-nce")
    gradient = Gradient(data, [Variant(name) for name in names], torch.float64)
    weights = torch.randn(2, 5, 20, 20, generator=numbers(), dtype=torch.float64)
    point, labels = next(gradient.batches([(numbers(), numbers())] * 2, 96))
    ours = gradient(weights, point, labels)
    for i in range(2):
        place = point[i] - 60 * i
        x, y, soft = data.points[i][place], labels[i, 0], data.conditional[i][place]
        label_noise = torch.bincount(data.labels[i], minlength=20).double() / 400
        target_noise = (data.weight[i, :, None] * data.conditional[i]).sum(0)
        losses = [
            (softnce.NLL(), y),
            (softnce.InfoNCE(label_noise), y),
            (softnce.ExpectedInfoNCE(label_noise), y),
            (softnce.SoftTargetCrossEntropy(), soft),
            (softnce.SoftTargetInfoNCE(target_noise), soft),
        ]
        for j, (loss, target) in enumerate(losses):
            w = weights[i, j].clone().requires_grad_()
            loss(x @ w.T, target).backward()
            torch.testing.assert_close(ours[i, j], w.grad, rtol=1e-10, atol=1e-10)


def test_objective_is_what_the_whole_data_set_as_one_batch_has_as_loss():
    # Differences between two points: the objective is defined up to a constant.
    data, gradient, weights, slope = small(
        *(v for v in VARIANTS if v.loss != "soft-dist-info-nce" and v.optimiser == "adam")
    )
    found = gradient(weights, data.index, data.labels[:, None])
    torch.testing.assert_close(found, slope, rtol=1e-9, atol=1e-12)


def test_redrawn_labels_have_the_smoothed_objective_on_average():
    _, gradient, weights, slope = small(Variant("soft-dist-info-nce", smoothing=0.3))
    generator = numbers()
    draws = torch.stack([gradient(weights, *next(gradient.batches([(generator,) * 2], 300))) for _ in range(2000)])
    # The counts' fluctuation biases InfoNCE by O(K/N) of its gradient: allow 5 standard errors and 0.02 beyond.
    assert ((draws.mean(0) - slope).abs() < 5 * draws.std(0) / 2000**0.5 + 0.02 * slope.abs().max()).all()


@pytest.mark.slow
def test_each_run_stops_by_itself_and_stays():
    seeds = [0, 1]
    data = sample_mixtures([80, 0], seeds)
    variants = [Variant("nll", lr=1e-2), Variant("nll", lr=1e-3)]
    weights, epochs = fit(data, variants, seeds, epochs=40, patience=5, tolerance=1e-3, every=1)
    assert epochs[0, 0] < epochs[0, 1], "the faster optimiser stops first"
    assert epochs.unique().numel() > 2
    # A fit that stopped after e epochs is the fit that ran e epochs.
    for i in range(2):
        for j in range(2):
            again, _ = fit(data[[i]], [variants[j]], [seeds[i]], epochs=int(epochs[i, j]))
            torch.testing.assert_close(again[0, 0], weights[i, j], rtol=1e-4, atol=1e-5)


def test_fits_find_the_maximum_of_the_likelihood():
    data = sample_mixtures([60], [0], num_points=200, num_samples=4000, num_modes=5, dimension=5)
    best = maximum_likelihood(data)
    variants = [Variant("nll", lr=1e-2), Variant("info-nce", lr=1e-2)]
    weights, _ = fit(data, variants, [0], batch_size=4000, epochs=1000, dtype=torch.float64)
    objective = Gradient(data, variants, torch.float64).objective
    least = objective(best[:, None].expand(1, 2, 5, 5))
    gap = objective(weights) - least
    assert (gap >= -torch.finfo(torch.float64).eps * least.abs()).all()  # an ulp: the fit can land on the optimum
    assert gap.max() < 1e-5


def test_a_class_nobody_has_does_no_harm():
    data = sample_mixtures([0], [2], num_points=3, num_samples=40)
    assert torch.bincount(data.labels[0], minlength=20).eq(0).any()
    weights, _ = fit(data, VARIANTS, [2], batch_size=20, epochs=3, patience=20, every=1)
    assert weights.isfinite().all()


def test_options_out_of_range():
    data = sample_mixtures([0], [0], num_points=3, num_samples=40)
    for batch_size in (0, 41):
        with pytest.raises(ValueError, match=rf"batch_size: got {batch_size}, need 1 to 40"):
            fit(data, [Variant()], [0], batch_size=batch_size)
    with pytest.raises(ValueError, match="smoothing"):
        Variant("nll", smoothing=0.1)

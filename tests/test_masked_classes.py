"""A logit of −∞ masks a class: the loss is that of the other classes, where the row's target has no weight on it."""

import itertools
from collections.abc import Callable
from functools import partial

import pytest
import torch
from batches import seeded, value_and_gradients
from torch import Tensor

from softnce import BatchCandidates, SoftTargets, functional

KINDS = ("labels", "pairs", "padded", "dense", "spread")
SIZES = [(4, 6), (4, 20), (6, 300), (64, 100)]
FAR = -1e6
"""As good as −∞ in float64, and 0·FAR is 0."""
Loss = Callable[..., Tensor]
CONTRASTS: dict[str, Loss] = {
    "geometric": functional.soft_target_info_nce,
    "hits removed": partial(functional.soft_target_info_nce, remove_accidental_hits=True),
    "in chunks": partial(functional.soft_target_info_nce, chunk_size=3),
    "expected": functional.expected_info_nce,
    "expected, batch alone": partial(functional.expected_info_nce, candidates=BatchCandidates()),
}
CASES = [(name, kind) for name in CONTRASTS for kind in KINDS]
CASES += [("cross-entropy", "labels"), ("cross-entropy", "pairs"), ("cross-entropy", "padded")]
LOSSES = {**CONTRASTS, "cross-entropy": functional.soft_target_cross_entropy}


def targets(kind: str, n: int, k: int) -> SoftTargets:
    """Targets without weight on class 0, which pairs of weight 0 name."""
    generator = seeded()
    labels = SoftTargets.from_labels(torch.randint(1, k, (n,), generator=generator), k)
    mixed = labels.mix(labels.flip(0), torch.rand(n, dtype=torch.float64, generator=generator))
    dist = torch.ones(k, dtype=torch.float64).index_fill(0, torch.tensor(0), 0)
    return {
        "labels": lambda: labels,
        "pairs": lambda: mixed,
        "padded": lambda: SoftTargets.cat([mixed[: n // 2], labels[n // 2 :]]),
        "dense": mixed.to_dense,
        "spread": lambda: SoftTargets.from_labels(labels.labels, k, 0.1, dist / dist.sum()),  # over all classes but 0
    }[kind]()


def masked(soft: SoftTargets, by_row: bool) -> Tensor:
    """Classes (N, K) to mask: class 0, or random ones that the row's target has no weight on."""
    mask = torch.zeros(soft.shape, dtype=torch.bool)
    mask[:, 0] = True
    if by_row:
        mask |= torch.rand(soft.shape, generator=seeded(1)) < 0.4
    return mask & (soft.dense() == 0)


@pytest.mark.parametrize("by_row", [False, True], ids=["for all rows", "by row"])
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_masked_classes_add_nothing(name: str, kind: str, by_row: bool) -> None:
    """In value, in the gradients of logits and temperature, and by operations that autograd knows."""
    for size in SIZES:
        soft = targets(kind, *size)
        mask = masked(soft, by_row)
        logits = torch.randn(size, dtype=torch.float64, generator=seeded(2))
        eta = torch.arange(1, size[1] + 1).double()
        noise = {} if name == "cross-entropy" else {"noise_probs": eta / eta.sum()}
        loss = partial(LOSSES[name], targets=soft, **noise)

        def losses(x: Tensor, temperature: Tensor | float, loss: Loss = loss) -> Tensor:
            return loss(x, temperature=temperature, reduction="none")

        learned = torch.tensor(0.7, dtype=torch.float64)
        ours, expected = (logits.masked_fill(mask, fill) for fill in (-torch.inf, FAR))
        wanted = value_and_gradients(losses, expected, learned)
        found = value_and_gradients(losses, ours, learned)
        fixed = value_and_gradients(lambda x: losses(x, 0.7), ours)
        plain = torch.func.grad(lambda x: losses(x, 0.7).sum())(ours)
        for mine, its in zip([*found, *fixed, plain], [*wanted, *wanted[:2], wanted[1]], strict=True):
            torch.testing.assert_close(mine, its, rtol=0, atol=1e-9)
        torch.testing.assert_close(fixed[1], plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_they_add_nothing_in_low_precision(name: str, kind: str, dtype: torch.dtype) -> None:
    for size, temperature in itertools.product(SIZES, (0.7, torch.tensor(0.7))):
        soft = targets(kind, *size)
        logits = torch.randn(size).to(dtype).masked_fill(masked(soft, True), -torch.inf).requires_grad_()
        exact = logits.detach().double().requires_grad_()
        values = [LOSSES[name](x, soft, temperature=temperature) for x in (logits, exact)]
        torch.testing.assert_close(values[0].double(), values[1], rtol=1e-5, atol=1e-6)
        gradients = [torch.autograd.grad(*pair)[0] for pair in zip(values, (logits, exact), strict=True)]
        torch.testing.assert_close(gradients[0], gradients[1].to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_cross_entropy_of_dense_rows_is_that_of_the_other_classes() -> None:
    """torch's is NaN there, because 0·(−∞) is, with the right gradient."""
    soft = targets("dense", 4, 6)
    logits = torch.randn(4, 6, dtype=torch.float64).masked_fill(masked(soft, False), -torch.inf).requires_grad_()
    ours = functional.soft_target_cross_entropy(logits, soft)
    theirs = torch.nn.functional.cross_entropy(logits, soft.dense())
    kept = ~masked(soft, False)[0]
    alone = torch.nn.functional.cross_entropy(logits.detach()[:, kept], soft.dense()[:, kept])
    torch.testing.assert_close(ours.detach(), alone)
    assert theirs.isnan()
    torch.testing.assert_close(torch.autograd.grad(ours, logits), torch.autograd.grad(theirs, logits))


def test_a_label_on_a_masked_class_has_an_infinite_or_huge_loss() -> None:
    labels = torch.tensor([1, 2, 3])
    for classes in (5, 50):
        logits = torch.randn(3, classes).index_fill(1, torch.tensor(2), -torch.inf)
        for loss in (functional.info_nce, functional.expected_info_nce, functional.nll):
            value = loss(logits, labels, reduction="none")
            assert (value > 1e20).tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["labels", "pairs", "dense"])
@pytest.mark.parametrize("name", ["geometric", "hits removed", "expected, batch alone"])
def test_a_row_without_negatives_is_not_pulled(name: str, kind: str, dtype: torch.dtype) -> None:
    """Every class is masked but those of the row's target: no loss, and no gradient of the logits or temperature."""
    soft = targets(kind, 1, 20)
    logits = torch.randn(1, 20, dtype=dtype, generator=seeded(3)).masked_fill(soft.dense() == 0, -torch.inf)
    others = SoftTargets.from_labels([0, 0], 20)
    options = {"candidates": others, "temperature": torch.tensor(0.7, dtype=dtype)}
    value, *gradients = value_and_gradients(
        lambda x, t: LOSSES[name](x, soft, **{**options, "temperature": t}), logits, options["temperature"]
    )
    assert value.abs().max() == 0
    assert all(gradient.abs().max() == 0 for gradient in gradients)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LOSSES)
def test_nan_is_not_hidden(name: str, kind: str) -> None:
    """A logit or a whole row that is NaN gives a NaN loss: a diverged training is seen."""
    soft = targets(kind, 4, 20)
    for place in ((2, slice(None)), (2, 5), (2, int(soft.argmax()[2]))):
        logits = torch.randn(4, 20, generator=seeded(3))
        logits[place] = torch.nan
        logits.requires_grad_()
        loss = LOSSES[name](logits, soft)
        (gradient,) = torch.autograd.grad(loss, logits)
        assert loss.isnan()
        assert gradient[2].isnan().any()

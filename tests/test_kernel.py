"""The blocked log-sum-exp: any block size, both ways of keeping the gradient, a second backward, and its memory."""

import subprocess
import sys

import pytest
import torch
from batches import KINDS, make_targets

from softnce import SoftTargetInfoNCE, functional
from softnce._scores import geometric

N = 9


@pytest.fixture(autouse=True)
def _no_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates as few as these would be scored by one product, without the kernel."""
    monkeypatch.setattr(geometric, "SMALL_PRODUCT", 0)


@pytest.mark.parametrize("kind", KINDS)
def test_few_candidates_by_one_product_are_the_same(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    targets = make_targets(kind, N, 20, torch.Generator().manual_seed(0))
    logits = torch.randn(N, 20, dtype=torch.float64, requires_grad=True)
    noise = torch.rand(20, dtype=torch.float64).softmax(0)

    def run(reduction: str) -> tuple[torch.Tensor, torch.Tensor]:
        loss = functional.soft_target_info_nce(logits, targets, noise, temperature=0.6, reduction=reduction)
        return loss.detach(), torch.autograd.grad(loss.sum(), logits)[0]

    for reduction in ("mean", "none"):
        kernel = run(reduction)
        with monkeypatch.context() as patch:
            patch.setattr(geometric, "SMALL_PRODUCT", 1 << 20)
            for ours, expected in zip(run(reduction), kernel, strict=True):
                torch.testing.assert_close(ours, expected, rtol=0, atol=1e-14)


def test_no_product_where_it_would_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(geometric, "SMALL_PRODUCT", 1 << 20)
    targets = make_targets("mixed", N, 20, torch.Generator().manual_seed(0))
    logits = torch.randn(N, 20)
    assert geometric._is_small(logits, targets, targets)
    assert not geometric._is_small(logits.to("meta"), targets, targets)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert not geometric._is_small(logits, targets, targets)
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("classes", [5, 300])  # few: the gradient is kept; many: the candidates' weights are
def test_chunks_change_nothing_but_rounding(kind: str, classes: int) -> None:
    targets = make_targets(kind, N, classes, torch.Generator().manual_seed(0))
    candidates = make_targets("mixed", 14, classes, torch.Generator().manual_seed(1))
    logits = torch.randn(N, classes, dtype=torch.float64, requires_grad=True)
    for others in (None, candidates):

        def run(chunk_size: int | None, others=others) -> tuple[torch.Tensor, torch.Tensor]:
            value = functional.soft_target_info_nce(logits, targets, candidates=others, chunk_size=chunk_size)
            return value, torch.autograd.grad(value, logits)[0]

        expected = run(None)
        for chunk_size in (1, 2, 4, 100):
            for ours, whole in zip(run(chunk_size), expected, strict=True):
                torch.testing.assert_close(ours, whole, rtol=0, atol=1e-14)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_few_logits_and_many_take_labels_alike(monkeypatch: pytest.MonkeyPatch, smoothing: float) -> None:
    classes = 6
    labels = torch.randint(classes, (N,), generator=torch.Generator().manual_seed(0))
    logits = torch.randn(N, classes, dtype=torch.float64, requires_grad=True)
    noise = torch.tensor([0.3, 0.25, 0.2, 0.1, 0.1, 0.05], dtype=torch.float64)

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        loss = functional.soft_target_info_nce(
            logits, labels, noise, temperature=0.6, reduction="none", label_smoothing=smoothing
        )
        return loss.detach(), torch.autograd.grad(loss, logits, torch.arange(N).double())[0]

    few = run()
    monkeypatch.setattr(geometric, "SMALL", 0)
    for ours, expected in zip(run(), few, strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", ["mixed", "spread", "dense"])
@pytest.mark.parametrize("classes", [5, 300])
def test_a_second_backward_gives_the_same_gradient(kind: str, classes: int) -> None:
    targets = make_targets(kind, N, classes, torch.Generator().manual_seed(0))
    logits = torch.randn(N, classes, dtype=torch.float64, requires_grad=True)
    loss = SoftTargetInfoNCE(reduction="none")(logits, targets)
    first = torch.autograd.grad(loss, logits, torch.ones(N).double(), retain_graph=True)[0]
    second = torch.autograd.grad(loss, logits, 2 * torch.ones(N).double(), retain_graph=True)[0]
    torch.testing.assert_close(second, 2 * first, rtol=0, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mixed", "spread", "dense"])
@pytest.mark.parametrize("classes", [5, 300])
def test_gradcheck_in_both_regimes(kind: str, classes: int) -> None:
    targets = make_targets(kind, 3, classes, torch.Generator().manual_seed(0))
    logits = torch.randn(3, classes, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x: functional.soft_target_info_nce(x, targets, temperature=0.7, reduction="none"), logits
    )


@pytest.mark.parametrize("kind", ["labels", "mixed", "dense"])
def test_second_derivatives_are_right(kind: str) -> None:
    targets = make_targets(kind, 3, 4, torch.Generator().manual_seed(0))
    logits = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return functional.soft_target_info_nce(x, targets, temperature=0.7)

    assert torch.autograd.gradgradcheck(loss, logits)
    hessian = torch.autograd.functional.hessian(loss, logits)
    assert hessian.abs().max() > 0.01
    torch.testing.assert_close(torch.func.grad(loss)(logits), torch.autograd.grad(loss(logits), logits)[0])


def test_overwritten_targets_are_noticed() -> None:
    targets = make_targets("mixed", 3, 300, torch.Generator().manual_seed(0))
    logits = torch.randn(3, 300, dtype=torch.float64, requires_grad=True)
    loss = functional.soft_target_info_nce(logits, targets)
    targets.index.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_half_precision_logits_get_half_precision_gradients() -> None:
    targets = make_targets("mixed", 3, 5, torch.Generator().manual_seed(0))
    for classes_dtype in (torch.bfloat16, torch.float16):
        logits = torch.randn(3, 5, dtype=classes_dtype, requires_grad=True)
        SoftTargetInfoNCE()(logits, targets).backward()
        assert logits.grad.dtype == classes_dtype


MEMORY = """
import resource, sys, torch
from softnce import SoftTargets, functional
torch.set_num_threads(1)
n, k, chunk = 4096, 2000, int(sys.argv[1])
def step(n, k, chunk):
    t = SoftTargets.from_labels(torch.arange(n) % k, k, smoothing=0.1)
    t = t.mix(t.flip(0), torch.rand(n))
    x = torch.randn(n, k).requires_grad_()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    functional.soft_target_info_nce(x, t, chunk_size=chunk).backward()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
step(64, 64, 8)
print(step(n, k, chunk) * 1024)
"""


@pytest.mark.slow
def test_chunks_bound_the_memory() -> None:
    """Peak extra memory ≤ 1.5 × (logits + one chunk); the (N, M) scores alone would be 67 MB. Peak resident set."""
    chunk = 256
    out = subprocess.run([sys.executable, "-c", MEMORY, str(chunk)], capture_output=True, text=True, check=True)
    logits, scores = 4 * 4096 * 2000, 4 * chunk * 4096
    assert int(out.stdout) <= 1.5 * (logits + scores)

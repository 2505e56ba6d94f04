"""Cross-entropy from a table against the logits form, in value and every gradient; and with a group of classes."""

import functools
import itertools
import math
from unittest import mock

import pytest
import torch
from allocations import peak
from core_cases import Draw
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from softnce import SoftTargetCrossEntropy, SoftTargetInfoNCE, SoftTargets
from softnce._core import exact
from softnce._core.exact import exact_cross_entropy, group_cross_entropy

N, K, D = 13, 37, 6


def reference(z, table, bias, temperature, alpha: Tensor, rest: Tensor | None, cosine: bool, class_weight) -> Tensor:
    """−Σ_k w_k α_k log p_k − r log Σ_{α_k = 0} p_k, from dense rows."""
    logits = F.normalize(z) @ F.normalize(table).T if cosine else z @ table.T
    logs = ((logits if bias is None else logits + bias) / temperature).log_softmax(1)
    weight = alpha if class_weight is None else alpha * class_weight
    total = -(weight * logs.masked_fill(weight == 0, 0)).sum(1)
    if rest is None:
        return total
    group = torch.stack([logs[i, alpha[i] == 0].logsumexp(0) for i in range(len(alpha))])
    return total - rest * group


def doubles(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def targets(kind: str) -> SoftTargets:
    labels, weight = Draw(1).classes(N, below=K), doubles(N, 3).softmax(1)
    hard, scores = SoftTargets.from_labels(labels, K), doubles(N, K, seed=1)
    return {
        "labels": lambda: hard,
        "pairs": lambda: SoftTargets(K, Draw(2).classes(N, 3, below=K), weight),  # some rows name a class twice
        "smoothed": lambda: hard.smooth(0.1).mix(hard.flip(0).smooth(0.1), 0.7).to(torch.float64),
        "epsilon per row": lambda: SoftTargets(
            K, labels[:, None], 1 - weight[:, :1], weight[:, 0], scores[0].softmax(0)
        ),
        "ignored": lambda: SoftTargets.from_labels(labels.index_fill(0, torch.arange(0, N, 3), -100), K, smoothing=0.2),
        "dense": lambda: SoftTargets(K, None, scores.softmax(1)),
        "half dense": lambda: SoftTargets(K, None, scores.where(torch.arange(K) % 2 == 1, -torch.inf).softmax(1)),
    }[kind]()


def compare(soft: SoftTargets, rest: Tensor | None = None, masked: bool = False, **options) -> None:
    leaves = {"z": doubles(N, D, seed=2), "table": doubles(K, D), "bias": doubles(K, seed=1)}
    leaves["temperature"] = torch.tensor(0.7, dtype=torch.float64)
    if masked:
        leaves["bias"][soft.dense().sum(0) == 0] = -torch.inf
    leaves = {name: leaf.requires_grad_() for name, leaf in leaves.items()}
    row_weight = doubles(N).sigmoid()
    reduced, cosine = options.get("reduced", False), options.get("cosine", False)
    upstream = torch.tensor(1.7, dtype=torch.float64) if reduced else doubles(N, seed=3)
    z, table, bias, temperature = leaves.values()
    given = {"bias": bias, "temperature": temperature, "row_weight": row_weight, "divisor": N if reduced else None}
    found = exact_cross_entropy(z, table, soft, **given, **options)
    alpha = soft.unmasked_dense(torch.float64) if rest is None else torch.zeros(N, K, dtype=torch.float64)
    if rest is not None:
        alpha.scatter_(1, soft.classes, soft.weight)
    losses = reference(z, table, bias, temperature, alpha, rest, cosine, options.get("class_weight"))
    losses = (losses if soft.mask is None else torch.where(soft.mask, losses, 0)) * row_weight
    expected = losses.sum() / N if reduced else losses
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    if masked:
        del leaves["temperature"]  # 0·∞ in both forms
    ours, theirs = (torch.autograd.grad(value, list(leaves.values()), upstream) for value in (found, expected))
    for name, mine, its in zip(leaves, ours, theirs, strict=True):
        torch.testing.assert_close(mine, its, rtol=0, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")


KINDS = ["labels", "pairs", "smoothed", "epsilon per row", "ignored", "dense", "half dense"]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "FEWEST", 1)
    monkeypatch.setattr(exact, "KEPT", 0.4)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reduced", [False, True])
def test_it_is_the_logits_form(kind: str, reduced: bool) -> None:
    weight = doubles(K).sigmoid()
    for cosine, class_weight, chunk_size in itertools.product([False, True], [None, weight], [None, 5]):
        options = {"cosine": cosine, "class_weight": class_weight, "chunk_size": chunk_size}
        compare(targets(kind), reduced=reduced, **options)
    if kind in ("labels", "pairs", "half dense"):
        compare(targets(kind), masked=True, reduced=reduced)  # by a bias of −∞


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("reduced", [False, True])
def test_the_classes_that_are_not_named_are_one_group(reduced: bool) -> None:
    index, weight = doubles(N, K).topk(3).indices, doubles(N, 4).softmax(1)
    weight[0] = torch.tensor([0.5, 0.3, 0.2, 0.0])  # nothing is left for the group
    soft = SoftTargets(K, index, weight[:, :3])
    soft.rest = weight[:, 3]
    for cosine, chunk_size in itertools.product([False, True], [None, 5]):
        compare(soft, soft.rest, reduced=reduced, cosine=cosine, chunk_size=chunk_size)
    with pytest.raises(ValueError, match="class_weight"):
        exact_cross_entropy(torch.ones(N, D), torch.ones(K, D), soft, class_weight=torch.ones(K))


def losses_of(kind: str, **options) -> tuple[Tensor, list[Tensor]]:
    z, table = doubles(N, D, seed=1).requires_grad_(), doubles(K, D).requires_grad_()
    return exact_cross_entropy(z, table, targets(kind), **options), [z, table]


def test_every_path_has_the_same_gradient() -> None:
    for kind in KINDS:
        value, leaves = losses_of(kind, reduced=True)
        first = torch.autograd.grad(value, leaves, retain_graph=True)
        again = torch.autograd.grad(value, leaves)  # the kept gradients are gone
        value, leaves = losses_of(kind, reduced=True)
        graph = torch.autograd.grad(value, leaves, create_graph=True)
        torch.testing.assert_close(again, first, rtol=0, atol=1e-13)
        torch.testing.assert_close(graph, first, rtol=0, atol=1e-13)
    z, table = (t.detach() for t in leaves)  # of the last kind
    found = torch.func.grad(lambda t: exact_cross_entropy(z, t, targets(kind), reduced=True))(table)
    torch.testing.assert_close(found, first[1], rtol=0, atol=1e-13)


def test_it_can_be_differentiated_twice() -> None:
    inputs, soft = (doubles(N, 2, seed=1).requires_grad_(), doubles(K, 2).requires_grad_()), targets("smoothed")
    for reduced in (False, True):
        loss = functools.partial(exact_cross_entropy, targets=soft, reduced=reduced)
        assert torch.autograd.gradgradcheck(loss, inputs)


def test_targets_and_row_weights_may_carry_a_gradient() -> None:
    z, table = doubles(N, D, seed=1), doubles(K, D)
    weight, row_weight = doubles(N, K).softmax(1).requires_grad_(), doubles(N).sigmoid().requires_grad_()
    value = exact_cross_entropy(z, table, SoftTargets(K, None, weight), row_weight=row_weight, reduced=True)
    logs = (z @ table.T).log_softmax(1)
    found = torch.autograd.grad(value, [weight, row_weight])
    torch.testing.assert_close(found[0], -row_weight.detach()[:, None] * logs)
    torch.testing.assert_close(found[1], -(weight.detach() * logs).sum(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_half_precision_is_scored_in_float32(dtype: torch.dtype) -> None:
    """Against the same rounded inputs in fp64; the logits form in float32 is the yardstick."""
    soft, g = targets("smoothed"), torch.Generator().manual_seed(0)
    z, table = ((5 * torch.randn(n, D, generator=g)).to(dtype).requires_grad_() for n in (N, K))
    with torch.autocast("cpu", torch.bfloat16):
        value = exact_cross_entropy(z, table, soft)
    assert value.dtype == torch.float32
    found = value, *torch.autograd.grad(value.sum(), [z, table])
    assert [gradient.dtype for gradient in found[1:]] == [dtype, dtype]
    true, plain = [], []
    for results, wider in ((true, torch.float64), (plain, torch.float32)):
        leaves = [leaf.detach().to(wider).requires_grad_() for leaf in (z, table)]
        losses = F.cross_entropy(leaves[0] @ leaves[1].T, soft.unmasked_dense(wider), reduction="none")
        results += losses, *torch.autograd.grad(losses.sum(), leaves)
    rounding = [torch.finfo(torch.float32).eps, *(torch.finfo(dtype).eps * wanted.abs().max() for wanted in true[1:])]
    for mine, its, wanted, most in zip(found, plain, true, rounding, strict=True):
        assert (mine.double() - wanted).abs().max() <= 2 * (its - wanted).abs().max() + most


def test_a_batch_without_rows_gives_zero_and_zero_gradients() -> None:
    empty, ignored = targets("labels")[:0], targets("labels")
    ignored.mask = torch.zeros(N, dtype=torch.bool)
    for soft in (empty, ignored):
        z, table = torch.full((len(soft), D), torch.nan, requires_grad=True), torch.ones(K, D, requires_grad=True)
        value = exact_cross_entropy(z, table, soft, reduced=True)
        assert value == 0
        gradients = torch.autograd.grad(value, [z, table])
        assert not any(gradient.count_nonzero() for gradient in gradients)
        assert exact_cross_entropy(z, table, soft).tolist() == [0.0] * len(soft)


def test_memory_beyond_the_tables_gradient_is_a_fraction_of_the_logits() -> None:
    rows, classes, dim = 512, 20_000, 64
    z, table = torch.randn(rows, dim, requires_grad=True), torch.randn(classes, dim, requires_grad=True)
    soft = SoftTargets.from_labels(torch.arange(rows), classes, smoothing=0.1)
    bytes_of_table = 4 * classes * dim
    for reduced, most in ((True, 0.8), (False, 2.2)):
        highest = peak(lambda r=reduced: exact_cross_entropy(z, table, soft, reduced=r).sum().backward())
        assert highest - bytes_of_table <= most * bytes_of_table < 4 * rows * classes / 3
        z.grad = table.grad = None


def test_a_small_table_takes_few_blocks() -> None:
    """Most of 500 × 16 numbers would be a few rows at a time."""
    table, soft = torch.randn(500, 16, requires_grad=True), SoftTargets.from_labels(torch.arange(256), 500)
    with mock.patch.object(exact, "counted", wraps=exact.counted) as each_block:
        exact_cross_entropy(torch.randn(256, 16), table, soft, reduced=True)
    assert each_block.call_count <= 2


# --------------------------------------------- targets known by their top k: a loop over classes in Python numbers


def slow(scores: list[float], top: dict[int, float], rest: float) -> float:
    total = sum(math.exp(s) for s in scores)
    loss = -sum(w * math.log(math.exp(scores[k]) / total) for k, w in top.items() if w)
    others = sum(math.exp(s) for k, s in enumerate(scores) if k not in top)
    return loss - rest * math.log(others / total) if rest else loss


@given(n=st.integers(1, 6), classes=st.integers(2, 9), k=st.integers(1, 9), seed=st.integers(0, 1000))
def test_it_equals_a_loop_over_classes(n: int, classes: int, k: int, seed: int) -> None:
    teacher, scores = 3 * doubles(2, n, classes, seed=seed)
    log_probs, index = teacher.log_softmax(1).topk(min(k, classes))
    targets = SoftTargets.from_topk_log_probs(index, log_probs, classes)
    scores.requires_grad_()
    loss = group_cross_entropy(scores, targets)
    rests = targets.rest if index.shape[1] < classes else torch.zeros(n)
    rows = zip(*(t.tolist() for t in (scores, index, log_probs.exp(), rests)), strict=True)
    expected = [slow(row, dict(zip(named, weights, strict=True)), rest) for row, named, weights, rest in rows]
    torch.testing.assert_close(loss, torch.tensor(expected, dtype=torch.float64), rtol=1e-11, atol=1e-11)
    gradient = torch.autograd.grad(loss.sum(), scores)[0]
    p = scores.detach().softmax(1)
    others = p.scatter(1, index, 0)
    share = others / others.sum(1, keepdim=True).clamp(min=1e-300) * targets.rest[:, None]
    alpha = torch.zeros_like(p).scatter(1, index, log_probs.exp()) + share
    torch.testing.assert_close(gradient, p - alpha, rtol=0, atol=1e-11)
    assert torch.autograd.gradcheck(lambda x: group_cross_entropy(x, targets), scores)


def test_masked_classes_and_ignored_rows() -> None:
    scores = torch.tensor([[0.0, 1.0, -torch.inf, 2.0], [1.0, 0.0, 0.0, 0.0]], requires_grad=True)
    targets = SoftTargets.from_topk_log_probs([[0, 2], [0, 1]], torch.tensor([[0.75, 0.0], [0.5, 0.25]]).log(), 4)
    targets.mask = torch.tensor([True, False])
    loss = group_cross_entropy(scores, targets)
    assert loss.tolist() == [pytest.approx(slow([0, 1, -math.inf, 2], {0: 0.75, 2: 0.0}, 0.25)), 0]
    gradient = torch.autograd.grad(loss.sum(), scores)[0]
    assert gradient.isfinite().all()
    assert not gradient[1].any()


def test_a_group_without_classes_is_an_error() -> None:
    of_3, of_2 = (SoftTargets.from_topk_log_probs([[0, 1]], torch.tensor([[0.5, 0.25]]).log(), k) for k in (3, 2))
    for scores, soft, message in (
        (torch.tensor([[0.0, 0.0, -torch.inf]]), of_3, r"targets leave 0\.25 to a group without classes in row 0"),
        (torch.zeros(1, 2), of_2, "targets leave"),
        (torch.zeros(1, 3), SoftTargets.from_labels([0], 3), "targets must hold"),
    ):
        with pytest.raises(ValueError, match=message):
            group_cross_entropy(scores, soft)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_the_loss_takes_groups_from_logits_and_from_a_table(reduction: str) -> None:
    z, y = doubles(5, 3).requires_grad_(), doubles(9, 3, seed=1).requires_grad_()
    log_probs, index = doubles(5, 9).log_softmax(1).topk(3)
    targets = SoftTargets.from_topk_log_probs(index, log_probs, 9)
    weight, loss = doubles(5).sigmoid(), SoftTargetCrossEntropy(temperature=0.7, reduction=reduction)
    each = group_cross_entropy(z @ y.T / 0.7, targets) * weight
    values = (
        each if reduction == "none" else each.sum() / weight.sum(),
        loss(z @ y.T, targets, sample_weight=weight),
        loss.linear(z, y, targets, sample_weight=weight),
    )
    wanted, *found = [(value.detach(), *torch.autograd.grad(value.sum(), (z, y))) for value in values]
    for one in found:
        torch.testing.assert_close(one, wanted, rtol=0, atol=1e-12)


def test_other_options_and_losses_refuse_groups() -> None:
    targets, logits = SoftTargets.from_topk_log_probs([[0, 1]], torch.tensor([[0.5, 0.25]]).log(), 4), torch.zeros(1, 4)
    for refused in (SoftTargetCrossEntropy(label_smoothing=0.1), SoftTargetInfoNCE()):
        with pytest.raises(ValueError, match="hold the classes beyond the top k as one group"):
            refused(logits, targets)
    weighs = SoftTargetCrossEntropy(class_weight=torch.ones(4))
    for call in (lambda: weighs(logits, targets), lambda: weighs.linear(logits, torch.eye(4), targets)):
        with pytest.raises(ValueError, match=r"class_weight .* rest"):
            call()

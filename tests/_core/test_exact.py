"""Cross-entropy from a table against the logits form, in value and every gradient."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from softnce import SoftTargets
from softnce._core import exact
from softnce._core.exact import exact_cross_entropy

N, K, D = 13, 37, 6


def reference(
    z: Tensor, table: Tensor, bias: Tensor | None, temperature: Tensor, alpha: Tensor, rest: Tensor | None,
    cosine: bool, class_weight: Tensor | None,
) -> Tensor:  # fmt: skip
    """−Σ_k w_k α_k log p_k − r log Σ_{α_k = 0} p_k, from dense rows."""
    logits = F.normalize(z) @ F.normalize(table).T if cosine else z @ table.T
    logs = ((logits if bias is None else logits + bias) / temperature).log_softmax(1)
    weight = alpha if class_weight is None else alpha * class_weight
    total = -(weight * logs.masked_fill(weight == 0, 0)).sum(1)
    if rest is None:
        return total
    group = torch.stack([logs[i, alpha[i] == 0].logsumexp(0) for i in range(len(alpha))])
    return total - rest * group


def targets(kind: str) -> SoftTargets:
    g = torch.Generator().manual_seed(1)
    labels = torch.randint(K, (N,), generator=g)
    hard = SoftTargets.from_labels(labels, K)
    spread = torch.rand(K, generator=g, dtype=torch.float64)
    if kind == "labels":
        return hard
    if kind == "pairs":
        index = torch.randint(K, (N, 3), generator=g)  # some rows name a class twice
        return SoftTargets(K, index, torch.rand(N, 3, generator=g, dtype=torch.float64).softmax(1))
    if kind == "smoothed":
        return hard.smooth(0.1).mix(hard.flip(0).smooth(0.1), 0.7).to(torch.float64)
    if kind == "epsilon per row":
        epsilon = torch.rand(N, generator=g, dtype=torch.float64)
        return SoftTargets(K, labels[:, None], (1 - epsilon)[:, None], epsilon, spread / spread.sum())
    if kind == "ignored":
        labels[::3] = -100
        return SoftTargets.from_labels(labels, K, smoothing=0.2)
    assert kind == "dense"
    return SoftTargets(K, None, torch.randn(N, K, generator=g, dtype=torch.float64).softmax(1))


def compare(soft: SoftTargets, rest: Tensor | None = None, masked: bool = False, **options) -> None:
    g = torch.Generator().manual_seed(0)
    leaves = {
        "z": torch.randn(N, D, generator=g, dtype=torch.float64),
        "table": torch.randn(K, D, generator=g, dtype=torch.float64),
        "bias": torch.randn(K, generator=g, dtype=torch.float64),
        "temperature": torch.tensor(0.7, dtype=torch.float64),
    }
    if masked:
        leaves["bias"][soft.dense().sum(0) == 0] = -torch.inf
    leaves = {name: leaf.requires_grad_() for name, leaf in leaves.items()}
    row_weight = torch.rand(N, generator=g, dtype=torch.float64)
    reduced, cosine = options.get("reduced", False), options.get("cosine", False)
    upstream = torch.tensor(1.7, dtype=torch.float64) if reduced else torch.randn(N, generator=g, dtype=torch.float64)
    found = exact_cross_entropy(
        leaves["z"], leaves["table"], soft, bias=leaves["bias"], temperature=leaves["temperature"],
        row_weight=row_weight, divisor=N if reduced else None, **options,
    )  # fmt: skip
    alpha = soft.unmasked_dense(torch.float64) if rest is None else torch.zeros(N, K, dtype=torch.float64)
    if rest is not None:
        alpha.scatter_(1, soft.classes, soft.weight)
    losses = reference(
        leaves["z"], leaves["table"], leaves["bias"], leaves["temperature"], alpha, rest, cosine,
        options.get("class_weight"),
    )  # fmt: skip
    if soft.mask is not None:
        losses = torch.where(soft.mask, losses, 0)
    losses = losses * row_weight
    expected = losses.sum() / N if reduced else losses
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    if masked:
        del leaves["temperature"]  # 0·∞ in both forms
    inputs = list(leaves.values())
    for name, mine, its in zip(
        leaves,
        torch.autograd.grad(found, inputs, upstream),
        torch.autograd.grad(expected, inputs, upstream),
        strict=True,
    ):
        torch.testing.assert_close(mine, its, rtol=0, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")


KINDS = ["labels", "pairs", "smoothed", "epsilon per row", "ignored", "dense"]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "FEWEST", 1)
    monkeypatch.setattr(exact, "KEPT", 0.4)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reduced", [False, True])
def test_it_is_the_logits_form(kind: str, reduced: bool) -> None:
    weight = torch.rand(K, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for cosine, class_weight, chunk_size in itertools.product([False, True], [None, weight], [None, 5]):
        options = {"cosine": cosine, "class_weight": class_weight, "chunk_size": chunk_size}
        compare(targets(kind), reduced=reduced, **options)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("kind", ["labels", "pairs", "dense"])
def test_a_bias_of_minus_infinity_masks_classes(kind: str) -> None:
    soft = targets(kind)
    if kind == "dense":
        weight = soft.dense().masked_fill(torch.arange(K) % 2 == 0, 0)
        soft = SoftTargets(K, None, weight / weight.sum(1, keepdim=True))
    for reduced in (False, True):
        compare(soft, masked=True, reduced=reduced)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("reduced", [False, True])
def test_the_classes_that_are_not_named_are_one_group(reduced: bool) -> None:
    g = torch.Generator().manual_seed(1)
    index = torch.stack([torch.randperm(K, generator=g)[:3] for _ in range(N)])
    weight = torch.rand(N, 4, generator=g, dtype=torch.float64).softmax(1)
    weight[0] = torch.tensor([0.5, 0.3, 0.2, 0.0])  # nothing is left for the group
    soft = SoftTargets(K, index, weight[:, :3])
    soft.rest = weight[:, 3]
    for cosine, chunk_size in itertools.product([False, True], [None, 5]):
        compare(soft, soft.rest, reduced=reduced, cosine=cosine, chunk_size=chunk_size)
    with pytest.raises(ValueError, match="class_weight"):
        exact_cross_entropy(torch.ones(N, D), torch.ones(K, D), soft, class_weight=torch.ones(K))


def losses_of(
    kind: str, dtype: torch.dtype = torch.float64, scale: float = 1.0, **options
) -> tuple[Tensor, list[Tensor]]:
    g = torch.Generator().manual_seed(0)
    z, table = (torch.randn(n, D, generator=g, dtype=torch.float64).to(dtype).requires_grad_() for n in (N, K))
    return exact_cross_entropy(z * scale, table, targets(kind), **options), [z, table]


def test_every_path_has_the_same_gradient() -> None:
    for kind in KINDS:
        value, leaves = losses_of(kind, reduced=True)
        first = torch.autograd.grad(value, leaves, retain_graph=True)
        again = torch.autograd.grad(value, leaves)  # the kept gradients are gone
        value, leaves = losses_of(kind, reduced=True)
        graph = torch.autograd.grad(value, leaves, create_graph=True)
        for a, b, c in zip(first, again, graph, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-13)
            torch.testing.assert_close(a, c, rtol=0, atol=1e-13)
    z, table = (t.detach() for t in leaves)
    f = torch.func.grad(lambda t: exact_cross_entropy(z, t, targets("pairs"), reduced=True))
    value, leaves = losses_of("pairs", reduced=True)
    torch.testing.assert_close(f(table), torch.autograd.grad(value, leaves)[1], rtol=0, atol=1e-13)


def test_it_can_be_differentiated_twice() -> None:
    for reduced in (False, True):
        g = torch.Generator().manual_seed(0)
        z, table = (torch.randn(n, 2, generator=g, dtype=torch.float64, requires_grad=True) for n in (N, K))
        soft = targets("smoothed")
        assert torch.autograd.gradgradcheck(lambda z, t: exact_cross_entropy(z, t, soft, reduced=reduced), (z, table))  # noqa: B023


def test_targets_and_row_weights_may_carry_a_gradient() -> None:
    g = torch.Generator().manual_seed(0)
    z, table = torch.randn(N, D, generator=g), torch.randn(K, D, generator=g)
    weight = torch.rand(N, K, generator=g).softmax(1).requires_grad_()
    row_weight = torch.rand(N, generator=g).requires_grad_()
    value = exact_cross_entropy(z, table, SoftTargets(K, None, weight), row_weight=row_weight, reduced=True)
    logs = (z @ table.T).log_softmax(1)
    found = torch.autograd.grad(value, [weight, row_weight])
    torch.testing.assert_close(found[0], -row_weight.detach()[:, None] * logs)
    torch.testing.assert_close(found[1], -(weight.detach() * logs).sum(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_half_precision_is_scored_in_float32(dtype: torch.dtype) -> None:
    """Against the same rounded inputs in fp64; the logits form in float32 is the yardstick."""
    soft = targets("smoothed")
    g = torch.Generator().manual_seed(0)
    z, table = ((5 * torch.randn(n, D, generator=g)).to(dtype).requires_grad_() for n in (N, K))
    with torch.autocast("cpu", torch.bfloat16):
        found = exact_cross_entropy(z, table, soft)
    assert found.dtype == torch.float32
    wide, single = ((z.detach().to(t) @ table.detach().to(t).T).log_softmax(1) for t in (torch.float64, torch.float32))
    true, plain = (-(soft.unmasked_dense(logs.dtype) * logs).sum(1) for logs in (wide, single))
    assert (found - true).abs().max() <= 2 * (plain - true).abs().max() + torch.finfo(torch.float32).eps
    gradients = torch.autograd.grad(found.sum(), [z, table])
    assert [gradient.dtype for gradient in gradients] == [dtype, dtype]
    for number, left in enumerate((table, z)):
        right = []
        for logs in (wide, single):
            share = logs.exp() - soft.unmasked_dense(logs.dtype)
            right.append((share if number == 0 else share.T) @ left.detach().to(logs.dtype))
        error = [(each.double() - right[0]).abs().max() for each in (gradients[number], right[1])]
        rounding = torch.finfo(dtype).eps * right[0].abs().max()
        assert error[0] <= 2 * error[1] + rounding


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
    from allocations import peak

    rows, classes, dim = 512, 20_000, 64
    z, table = torch.randn(rows, dim, requires_grad=True), torch.randn(classes, dim, requires_grad=True)
    soft = SoftTargets.from_labels(torch.arange(rows), classes, smoothing=0.1)
    bytes_of_table = 4 * classes * dim
    for reduced, most in ((True, 0.8), (False, 2.2)):
        beyond = (
            peak(lambda r=reduced: exact_cross_entropy(z, table, soft, reduced=r).sum().backward()) - bytes_of_table
        )
        assert beyond <= most * bytes_of_table < 4 * rows * classes / 3
        z.grad = table.grad = None


def test_a_small_table_takes_few_blocks() -> None:
    """A fifth of 500 × 16 numbers would be three rows at a time."""

    class Products(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.count += "mm" in function.__name__
            return function(*args, **(kwargs or {}))

    table = torch.randn(500, 16, requires_grad=True)
    with Products() as products:
        exact_cross_entropy(torch.randn(256, 16), table, SoftTargets.from_labels(torch.arange(256), 500), reduced=True)
    assert products.count <= 8

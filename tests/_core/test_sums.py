"""The three sums against their formulas in float64, by every route autograd can take."""

import pytest
import torch
from core_cases import SUMS, Draw, Rows, case, reference, run, simple_call, upstream_of, value_and_gradient
from torch.autograd import forward_ad

import softnce
from softnce._core import cpu


@pytest.mark.parametrize("start", range(0, 240, 40))
def test_value_and_gradient(start: int) -> None:
    for seed in range(start, start + 40):
        name, call, logits = case(seed, 12, torch.float64)
        upstream = upstream_of(call, logits)
        ours, wanted = (value_and_gradient(function, name, call, logits, upstream) for function in (run, reference))
        torch.testing.assert_close(ours, wanted, rtol=1e-10, atol=1e-10, msg=f"case {seed}")


@pytest.mark.parametrize("seed", range(12))
def test_blocks_change_nothing(seed: int) -> None:
    name, call, logits = case(seed, 12, torch.float64)
    whole = value_and_gradient(run, name, call, logits)
    torch.testing.assert_close(value_and_gradient(run, name, call | {"chunk_size": 2}, logits), whole)


@pytest.mark.parametrize("seed", range(30))
def test_backward_twice_and_twice_differentiable(seed: int) -> None:
    name, call, logits = case(seed, 6, torch.float64)
    if call["targets"].mask is not None or not logits.isfinite().all():
        return
    x = logits.clone().requires_grad_()
    value = run(name, call, x).sum()
    (first,) = torch.autograd.grad(value, x, retain_graph=True)
    (second,) = torch.autograd.grad(value, x, retain_graph=True)
    torch.testing.assert_close(first, second)
    (scaled,) = torch.autograd.grad(value, x, torch.tensor(2.5, dtype=torch.float64))
    torch.testing.assert_close(scaled, 2.5 * first)
    flat = logits * (1 if logits.abs().max() < 10 else 0.1)
    assert torch.autograd.gradgradcheck(lambda x: run(name, call, x).sum(), flat.requires_grad_())


@pytest.mark.parametrize("seed", range(20))
def test_learned_temperature(seed: int) -> None:
    name, call, logits = case(seed, 8, torch.float64)
    found = []
    for function in (run, reference):
        x = logits.clone().requires_grad_()
        temperature = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
        value = function(name, call | {"temperature": temperature}, x).sum()
        found.append(torch.autograd.grad(value, (x, temperature)))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_functorch_and_forward_mode(seed: int) -> None:
    name, call, logits = case(seed, 8, torch.float64)
    if not logits.isfinite().all():
        return
    total = lambda x: run(name, call, x).sum()  # noqa: E731
    wanted = value_and_gradient(run, name, call, logits)[1]
    torch.testing.assert_close(torch.func.grad(total)(logits), wanted)
    both = torch.stack([logits, logits])
    torch.testing.assert_close(torch.func.vmap(total)(both), total(logits).expand(2))
    with forward_ad.dual_level():
        tangent = torch.ones_like(logits)
        out = total(forward_ad.make_dual(logits, tangent))
        torch.testing.assert_close(forward_ad.unpack_dual(out).tangent, wanted.sum())


@pytest.mark.parametrize("name", SUMS)
def test_nothing_to_contrast_with(name: str) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    rows = Rows(torch.tensor([[0], [1], [2]]), None)
    empty = Rows(torch.zeros(0, 1, dtype=torch.long), None)
    call = simple_call(name, empty, 4, 0.0)
    value = run(name, call | {"targets": rows}, x)
    assert value.tolist() == [0, 0, 0]
    assert not torch.autograd.grad(value.sum(), x)[0].any()
    none = run(name, call | {"reduced": True}, x[:0])
    assert none.requires_grad
    assert none == 0


@pytest.mark.parametrize("name", SUMS)
def test_a_class_that_does_not_exist_is_an_error(name: str) -> None:
    rows = Rows(torch.tensor([[0], [4], [2]]), None)
    with pytest.raises(ValueError, match="row 1"):
        run(name, simple_call(name, rows, 4), torch.randn(3, 4))


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("scale", [1e4, -1e4])
def test_huge_logits_give_numbers(seed: int, scale: float) -> None:
    name, call, logits = case(seed, 20)
    logits = logits.sign() * scale
    logits[:, 0] = -torch.inf
    value, gradient = value_and_gradient(run, name, call, logits)
    assert not value.isnan().any()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("seed", range(10))
def test_half_precision(seed: int, dtype: torch.dtype) -> None:
    name, call, logits = case(seed, 20)
    value, gradient = value_and_gradient(run, name, call, logits.to(dtype).float())
    found = value_and_gradient(run, name, call, logits.to(dtype))
    assert found[0].dtype == torch.float32
    torch.testing.assert_close(found, (value, gradient.to(dtype)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_class_mass(dtype: torch.dtype) -> None:
    rows, mask = torch.rand(37, 21).to(dtype), torch.rand(37) < 0.5
    torch.testing.assert_close(cpu.class_mass(rows), rows.double().sum(0))
    torch.testing.assert_close(cpu.class_mass(rows.T.contiguous().T, mask), rows[mask].double().sum(0))


def test_results_are_on_the_cpu_whatever_the_default_device() -> None:
    y = torch.arange(64) % 40
    x, loss = torch.randn(64, 40, requires_grad=True), softnce.SoftTargetCrossEntropy()
    for targets in (y, torch.eye(40)[y].mul(0.9) + 0.1 / 40):
        found = []
        for device in ("cpu", "meta"):
            with torch.device(device):
                value = loss(x, targets)
                found.append((value.detach(), *torch.autograd.grad(value, x)))
        torch.testing.assert_close(*found)


@pytest.mark.slow
@pytest.mark.parametrize("name", SUMS)
def test_compiles_at_most_three_times(name: str) -> None:
    torch._dynamo.reset()
    compiles = []

    def backend(graph, inputs):
        compiles.append(graph)
        return graph

    def loss(x, labels, counts):
        rows = Rows(labels, None, 0.1)
        more = {"counted": {"counts": counts}, "expected": {"counts": counts, "own": rows}, "soft_target": {}}[name]
        return run(name, simple_call(name, rows, 7) | {"reduced": True} | more, x)

    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    draw = Draw(0)
    for n in (5, 8, 13, 21, 34):
        x, labels = draw.randn(n, 7).double().requires_grad_(), draw.classes(n, 1, below=7)
        counts = torch.bincount(labels[:, 0], minlength=7).double()
        values = [torch.autograd.grad(f(x, labels, counts), x, create_graph=True)[0] for f in (compiled, loss)]
        torch.testing.assert_close(*values)
        seconds = [torch.autograd.grad(g.pow(2).sum(), x)[0] for g in values]
        torch.testing.assert_close(*seconds)
    assert len(compiles) <= 3

"""torch.compile(fullgraph=True) and devices: no graph break, no operation that mixes devices."""

import pytest
import torch
import torch._dynamo.testing
from batches import make_targets, seeded
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from softnce import (
    NLL,
    BatchCandidates,
    ClassCandidates,
    ExpectedInfoNCE,
    InfoNCE,
    NoiseCandidates,
    QueueCandidates,
    SampledCandidates,
    SoftDistributionInfoNCE,
    SoftTargetCrossEntropy,
    SoftTargetInfoNCE,
    SoftTargets,
    noise,
)
from softnce._core import cpu

N, K = 8, 6


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["labels", "mixed", "dense"])
@pytest.mark.parametrize("loss", [SoftTargetInfoNCE, ExpectedInfoNCE, SoftTargetCrossEntropy])
def test_compiles_to_one_graph(loss: type[torch.nn.Module], kind: str) -> None:
    torch._dynamo.reset()  # all losses share one forward: their graphs would add up to the compiler's limit
    generator = torch.Generator().manual_seed(0)
    module = loss().eval()  # a running noise stays as it is
    targets: torch.Tensor | SoftTargets = make_targets(kind, N, K, generator)
    if kind == "labels":
        targets = torch.randint(K, (N,), generator=generator)
    elif kind == "dense":
        targets = targets.dense()
    logits = torch.randn(N, K, dtype=torch.float64, generator=generator, requires_grad=True)
    compiled = torch.compile(module, fullgraph=True)
    ours, eager = compiled(logits, targets), module(logits, targets)
    torch.testing.assert_close(ours, eager, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.autograd.grad(ours, logits), torch.autograd.grad(eager, logits))


@pytest.mark.skipif(cpu.library is None, reason="the kernel is not built")
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("kind", ["labels", "ignored", "spread", "dense"])
@pytest.mark.parametrize("loss", [SoftTargetInfoNCE, ExpectedInfoNCE, SoftTargetCrossEntropy])
def test_the_kernel_is_one_node_of_the_graph(loss: type[torch.nn.Module], kind: str, reduction: str) -> None:
    """Value, gradient and second derivative are those of the uncompiled loss, of a learned temperature too."""
    torch._dynamo.reset()
    nodes: list[str] = []

    def recorded(graph: torch.fx.GraphModule, _: object) -> object:
        nodes.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    generator = torch.Generator().manual_seed(0)
    temperature = torch.nn.Parameter(torch.tensor(0.7, dtype=torch.float64))
    module = loss(temperature=temperature, reduction=reduction).eval()
    targets = make_targets(kind, N, K, generator)
    logits = torch.randn(N, K, dtype=torch.float64, generator=generator, requires_grad=True)
    weight, direction = (torch.randn(shape, dtype=torch.float64, generator=generator) for shape in ((N,), (N, K)))

    def found(call: object) -> list[torch.Tensor]:
        value = call(logits, targets)
        value = value if value.dim() == 0 else (value * weight).sum()
        first = torch.autograd.grad(value, (logits, temperature), create_graph=True)
        return [value, *first, *torch.autograd.grad((first[0] * direction).sum() + first[1], (logits, temperature))]

    for backend in (recorded, "aot_eager"):
        compiled = torch.compile(module, fullgraph=True, backend=backend)
        if backend == "aot_eager":  # which refuses second derivatives
            value = compiled(logits, targets)
            first = torch.autograd.grad((value * weight).sum() if value.dim() else value, (logits, temperature))
            torch.testing.assert_close([*first], found(module)[1:3], rtol=1e-12, atol=1e-12)
        else:
            torch.testing.assert_close(found(compiled), found(module), rtol=1e-10, atol=1e-10)
    is_pairs = targets.index is not None or loss is not SoftTargetInfoNCE
    assert ("softnce.rows.default" in nodes) == is_pairs


LOSSES = {
    "batch": lambda: SoftTargetInfoNCE(noise.uniform(K)),
    "sampled": lambda: SoftTargetInfoNCE(
        "uniform", candidates=SampledCandidates(16, noise.uniform(K), 0.8, smoothing=0.1)
    ),
    "sum": lambda: SoftTargetInfoNCE("uniform", candidates=BatchCandidates() + ClassCandidates() + QueueCandidates(32)),
    "running": lambda: SoftTargetInfoNCE(noise.RunningNoise(K)),
    "info-nce": lambda: InfoNCE(noise.uniform(K)),
    "soft-distribution": lambda: SoftDistributionInfoNCE("uniform"),
    "expected": lambda: ExpectedInfoNCE(noise.uniform(K), label_smoothing=0.1),
    "expected, drawn": lambda: ExpectedInfoNCE(noise.uniform(K), negatives="drawn"),
    "expected, more": lambda: ExpectedInfoNCE(
        "uniform", candidates=BatchCandidates() + QueueCandidates(32) + NoiseCandidates(9)
    ),
    "cross-entropy": lambda: SoftTargetCrossEntropy(),
    "nll": lambda: NLL(),
}


class IndexingByOperators(TorchFunctionMode):
    """x[...] spelled as operators: Tensor.__getitem__ asks for a device guard that a CPU build does not have."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is not torch.Tensor.__getitem__:
            return function(*args, **(kwargs or {}))
        x, keys = args
        dim = 0
        for key in keys if isinstance(keys, tuple) else (keys,):
            if key is None:
                x, dim = x.unsqueeze(dim), dim + 1
            elif isinstance(key, int):
                x = x.select(dim, key)
            elif isinstance(key, slice):
                x, dim = torch.ops.aten.slice(x, dim, key.start, key.stop, key.step or 1), dim + 1
            else:
                x, dim = torch.ops.aten.index(x, [None] * dim + [key]), dim + 1
        return x


def cases(*kinds: str) -> list[tuple[str, str]]:
    return [(name, kind) for name in LOSSES for kind in kinds if kind == "labels" or name not in ("info-nce", "nll")]


@pytest.mark.parametrize(("name", "kind"), cases("labels", "ignored", "smoothed", "mixed", "spread", "dense"))
def test_every_operation_stays_on_the_device(name: str, kind: str) -> None:
    """Fake tensors know their device and refuse operations across devices."""
    targets = make_targets(kind, N, K, torch.Generator().manual_seed(0))
    with FakeTensorMode(), IndexingByOperators():
        with torch.device("cuda"):
            loss = LOSSES[name]()
        logits = torch.empty(N, K, device="cuda")
        soft = targets._map(lambda x: torch.empty(x.shape, dtype=x.dtype, device="cuda"), shared=True)
        for _ in range(2):  # the queue holds something the second time
            assert loss(logits, soft).device.type == "cuda"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), cases("labels", "mixed"))
def test_batch_sizes_do_not_recompile(name: str, kind: str) -> None:
    """Twelve batch sizes are at most four programs: F.cross_entropy has two."""
    if name in ("sum", "expected, more"):
        pytest.skip("a queue grows with every batch")
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    loss = torch.compile(LOSSES[name](), fullgraph=True, backend=counter)
    for n in range(3, 15):
        targets = make_targets(kind, n, K, torch.Generator().manual_seed(n))
        given = targets.labels if kind == "labels" else targets
        loss(torch.randn(n, K, dtype=torch.float64, requires_grad=True), given).backward()
    assert counter.frame_count <= 4


def test_rows_and_a_queue_in_training_compile_to_one_graph() -> None:
    torch._dynamo.reset()
    eager, module = (SoftTargetInfoNCE("uniform", candidates=BatchCandidates() + QueueCandidates(N)) for _ in range(2))
    compiled = torch.compile(lambda x, t: module(x[2:], t[2:]), fullgraph=True, backend="eager")
    for seed in range(3):
        targets = make_targets("mixed", N, K, seeded(seed))
        logits = torch.randn(N, K, dtype=torch.float64, generator=seeded(seed), requires_grad=True)
        torch.testing.assert_close(compiled(logits, targets), eager(logits[2:], targets[2:]), rtol=1e-12, atol=1e-12)
    assert len(module.candidates.terms[1]) == N


@pytest.mark.slow
@pytest.mark.parametrize("candidates", [None, BatchCandidates() + NoiseCandidates(4)])
def test_drawn_negatives_compile_at_any_batch_size(candidates: object) -> None:
    torch._dynamo.reset()
    counter, loss, table = torch._dynamo.testing.CompileCounter(), ExpectedInfoNCE(candidates=candidates), torch.eye(K)
    compiled = torch.compile(lambda x, y: loss.linear(x, table, y), backend=counter, fullgraph=True)
    for rows in range(4, 16):
        torch.manual_seed(rows)
        found = compiled(torch.ones(rows, K), torch.arange(rows) % K)
    with torch.no_grad():  # the estimate as it was before the last batch
        eager = ExpectedInfoNCE(candidates=candidates)
        for rows in range(4, 15):
            eager.noise.update(SoftTargets.from_labels(torch.arange(rows) % K, K))
    torch.manual_seed(15)
    torch.testing.assert_close(found, eager.linear(torch.ones(15, K), table, torch.arange(15) % K))
    assert counter.frame_count <= 3

"""Several processes give the gradients and the displayed loss of one process on the concatenated batch."""

import contextlib
import itertools
from collections.abc import Iterable

import pytest
import torch
import torch.distributed as dist
from batches import make_targets
from ranks import on_ranks
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from softnce import (
    NLL,
    BatchCandidates,
    ClassCandidates,
    ExpectedInfoNCE,
    InfoNCE,
    QueueCandidates,
    SoftTargetCrossEntropy,
    SoftTargetInfoNCE,
    SoftTargets,
    heads,
    noise,
)
from softnce._core import ranks as _ranks
from softnce._core.ranks import Exchange

K, DIM = 6, 4
SIZES = {"even": [5, 5, 5, 5], "uneven": [5, 2, 1, 4], "empty rank": [5, 0, 3, 0]}
ETA = noise.from_counts(torch.arange(1, K + 1)).double()
SOURCES = BatchCandidates() + ClassCandidates()
LOSSES = {
    "soft target": lambda: SoftTargetInfoNCE(ETA),
    "with classes and queue": lambda: SoftTargetInfoNCE(candidates=SOURCES + QueueCandidates(7)),
    "class weights": lambda: SoftTargetInfoNCE("uniform", class_weight=torch.arange(1, K + 1).double()),
    "sum": lambda: SoftTargetInfoNCE("uniform", reduction="sum"),
    "expected": lambda: ExpectedInfoNCE(ETA),
    "expected, queue": lambda: ExpectedInfoNCE("uniform", candidates=BatchCandidates() + QueueCandidates(7)),
    "cross-entropy": lambda: SoftTargetCrossEntropy(),
    "learned temperature": lambda: SoftTargetInfoNCE("uniform", temperature=nn.Parameter(torch.tensor(0.7).double())),
    "temperature of shape (1,)": lambda: SoftTargetInfoNCE("uniform", temperature=nn.Parameter(torch.ones(1).double())),
}
KINDS = ("labels", "ignored", "mixed", "spread", "dense")


def problem(sizes: list[int], kind: str) -> tuple[nn.Module, Tensor, SoftTargets, Tensor]:
    torch.manual_seed(0)
    n = sum(sizes)
    targets = make_targets(kind, n, K, torch.Generator().manual_seed(n))
    if kind == "mixed":  # what people have: float32 weights
        targets.weight = targets.weight.float()
    return nn.Linear(DIM, K).double(), torch.randn(n, DIM).double(), targets, torch.rand(n).double()


def step(
    model: nn.Module, loss: nn.Module, x: Tensor, targets: SoftTargets, weight: Tensor | None
) -> tuple[float, ...]:
    """Two steps, so that a queue holds something in the second; the loss of each, and the last gradient."""
    shown = []
    for _ in range(2):
        model.zero_grad()
        loss.zero_grad()
        value = loss(model(x), targets, sample_weight=weight)
        value.backward()
        shown.append(value.item())
    return (*shown, *flat(p.grad for p in (*model.parameters(), *loss.parameters())))


def flat(tensors: Iterable[Tensor]) -> list[float]:
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).tolist()


def rows_of(sizes: list[int], rank: int | None) -> slice:
    """The rows of a rank, or all."""
    return slice(None) if rank is None else slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))


def from_table(sizes: list[int], rows: slice) -> list[float]:
    """The loss of features and label embeddings, and the gradient of table and bias."""
    _, x, targets, _ = problem(sizes, "labels")
    table, bias = torch.randn(K, DIM).double().requires_grad_(), torch.zeros(K).double().requires_grad_()
    value = SoftTargetInfoNCE("uniform").linear(x[rows], table, targets[rows], bias=bias)
    value.backward()
    return [value.item(), *flat([table.grad, bias.grad])]


def label_table(sizes: list[int], rank: int | None) -> list[float]:
    """One SGD step of a head with sparse gradients and a bias: under DDP on a rank, or on all rows without."""
    _, x, targets, _ = problem(sizes, "labels")
    head = heads.LabelEmbeddingHead(DIM, K, bias=True).double()
    rows = rows_of(sizes, rank)
    wrapped = head if rank is None else DistributedDataParallel(head)
    for criterion in (SoftTargetInfoNCE("uniform"), ExpectedInfoNCE("uniform")):
        optimiser = torch.optim.SGD(head.parameters(), lr=0.5)
        optimiser.zero_grad()
        wrapped(x[rows], targets[rows], criterion, generator=torch.Generator().manual_seed(0)).backward()
        assert head.weight.grad.is_sparse
        optimiser.step()
    return flat([head.weight, head.bias])


def sharded_table(sizes: list[int], rank: int | None) -> list[float]:
    """One SGD step of a head with dense gradients that FSDP2 shards, also inside of a larger model; or on all rows."""
    _, x, targets, _ = problem(sizes, "labels")
    model = nn.Module()
    model.head = heads.LabelEmbeddingHead(DIM, K, sparse=False).double()
    model.forward = lambda *given: model.head(*given)
    if rank is not None:
        fully_shard(model)
    rows, optimiser = rows_of(sizes, rank), torch.optim.SGD(model.parameters(), lr=0.5)
    model(x[rows], targets[rows], SoftTargetInfoNCE("uniform")).backward()
    optimiser.step()
    return flat([model.head.weight if rank is None else model.head.weight.full_tensor()])


def refuse_sparse_and_sharded() -> None:
    model = nn.Sequential(heads.LabelEmbeddingHead(DIM, K))
    fully_shard(model)
    features, labels = torch.zeros(2, DIM, requires_grad=True), torch.tensor([0, 1])
    assert model(features).shape == (2, K)
    with pytest.raises(ValueError, match="sparse=False"):
        model[0](features, labels, SoftTargetInfoNCE("uniform"))
    dense = fully_shard(heads.LabelEmbeddingHead(DIM, K, sparse=False))
    with pytest.raises(ValueError, match="table is sharded"):
        dense.loss(features, labels, SoftTargetInfoNCE("uniform"))


def impossible_class(sizes: list[int], rows: slice) -> float:
    """The loss of logits of which one class, no row's own, is −∞."""
    model, x, _, _ = problem(sizes, "labels")
    logits = model(x).detach()
    logits[:, 0] = -torch.inf
    labels = 1 + torch.arange(len(logits)) % (K - 1)
    return NLL()(logits[rows], labels[rows]).item()


def accumulate(rank: int, world: int, sharded: bool) -> list[float]:
    """The summed gradient of three micro-batches, exchanged once, on a model that DDP copies or FSDP shards."""
    model, x, targets, _ = problem([6] * world, "mixed")
    rows = slice(6 * rank, 6 * rank + 6)
    mine, features = targets[rows], x[rows]
    loss = SoftTargetInfoNCE("uniform")
    if sharded:
        fully_shard(model)
    else:
        model = DistributedDataParallel(model)
    for own in torch.arange(6).split(2):
        is_last = int(own[-1]) == 5
        if sharded:
            model.set_requires_gradient_sync(is_last)
        with contextlib.nullcontext() if sharded or is_last else model.no_sync():
            loss(model(features[own]), mine[own], batch=mine, own=own).backward()
    return flat(p.grad.full_tensor() if sharded else p.grad for p in model.parameters())


MODES = [{}, {"static_graph": True}, {"gradient_as_bucket_view": True}]
MODES.append({"static_graph": True, "gradient_as_bucket_view": True})


def updates(mode: dict[str, bool], rank: int, world: int) -> tuple[Tensor, Tensor]:
    """The weights and the estimate of η after three updates in a mode of DDP, two parts each.

    The first update is one part: with any loss, torch's reducer asserts if a static graph's first step is in no_sync.
    """
    generator, loss = torch.Generator().manual_seed(0), ExpectedInfoNCE()
    torch.manual_seed(0)
    net: nn.Module = nn.Sequential(nn.Linear(DIM, 4), nn.Tanh(), nn.Linear(4, K)).double()
    model = DistributedDataParallel(net, **mode) if world > 1 else net
    optimiser = torch.optim.SGD(net.parameters(), lr=0.5)
    for update in range(3):
        x = torch.randn(8, DIM, dtype=torch.float64, generator=generator).chunk(world)[rank]
        targets = SoftTargets.from_labels(torch.randint(K, (8,), generator=generator).chunk(world)[rank], K)
        optimiser.zero_grad()
        parts = torch.arange(len(x)).chunk(2 if update else 1)
        for own in parts:
            with model.no_sync() if world > 1 and own is not parts[-1] else contextlib.nullcontext():
                loss(model(x[own]), targets[own], batch=targets, own=own).backward()
        loss.remember(targets)
        optimiser.step()
    return torch.tensor(flat(net.parameters()), dtype=torch.float64), loss.noise.probs()


def smoothed_on_all_but_the_first(rank: int) -> SoftTargets:
    """Targets without smoothing know no ξ."""
    targets = SoftTargets.from_labels(torch.tensor([rank, 0]), K)
    return targets if rank == 0 else targets.smooth(0.3, noise.from_counts(torch.arange(1, K + 1)))


def every_case(rank: int) -> dict:
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    found = {}
    model = DistributedDataParallel(problem([1], "labels")[0])  # every problem starts from the same weights
    for split, kind, name, weighted in itertools.product(SIZES, KINDS, LOSSES, [False, True]):
        sizes = SIZES[split][:world]
        _, x, targets, weight = problem(sizes, kind)
        rows = rows_of(sizes, rank)
        mine = weight[rows] if weighted else None
        found[split, kind, name, weighted] = step(model, LOSSES[name](), x[rows], targets[rows], mine)
    sizes = SIZES["empty rank"][:world]
    rows = rows_of(sizes, rank)
    found["label table"] = label_table([5] * world, rank)
    found["sharded table"] = sharded_table([5] * world, rank)
    refuse_sparse_and_sharded()
    found["from table"], found["impossible class"] = from_table(sizes, rows), [impossible_class(sizes, rows)]
    found["accumulated"] = accumulate(rank, world, sharded=False)
    found["sharded"] = accumulate(rank, world, sharded=True)
    found["modes"] = [updates(mode, rank, world) for mode in MODES]
    # What travels: count it at the collective.
    sent, real = [], _ranks.all_gather_single

    def counting(output: Tensor, tensor: Tensor, *args: object, **kwargs: object) -> object:
        sent.append((tensor.dtype, tensor.nbytes))
        return real(output, tensor, *args, **kwargs)

    _ranks.all_gather_single = counting
    t = SoftTargets.from_labels(torch.randint(1000, (1024,)), 1000, smoothing=0.1)
    gathered, offset = Exchange().gather(t.mix(t.flip(0), torch.rand(1024)))
    assert (len(gathered), offset) == (1024 * world, 1024 * rank)
    found["bytes"] = list(sent)
    model, x, targets, _ = problem([3] * world, "mixed")
    # Nobody waits in eval mode, nor where gradients are off and nobody thought of eval: only rank 0 calls the loss.
    if rank == 0:
        SoftTargetInfoNCE("uniform").eval()(model(x), targets)
        with torch.no_grad():
            SoftTargetInfoNCE("uniform")(model(x), targets)
    # Gradients that are added up; and groups of two ranks, each on its own.
    rows = slice(3 * rank, 3 * rank + 3)
    value = SoftTargetInfoNCE("uniform", distributed="sum")(model(x[rows]), targets[rows])
    found["sum"] = [value.item(), *flat(torch.autograd.grad(value, list(model.parameters())))]
    pairs = [dist.new_group([r, r + 1]) for r in range(0, world, 2)]
    value = SoftTargetInfoNCE("uniform", process_group=pairs[rank // 2])(model(x[rows]), targets[rows])
    found["group"] = value.item()
    found["background"] = Exchange().gather(smoothed_on_all_but_the_first(rank))[0].dense().tolist()
    with pytest.raises(ValueError, match="different numbers of classes"):
        Exchange().gather(make_targets("labels", 2, K + rank, torch.Generator()))
    dist.barrier()
    dist.destroy_process_group()
    return found


@pytest.fixture(scope="module", params=[pytest.param(n, marks=pytest.mark.slow) for n in (2, 4)])
def processes(request: pytest.FixtureRequest) -> list[dict]:
    return on_ranks(every_case, request.param)


def test_processes_equal_one_process(processes: list[dict]) -> None:
    for case in itertools.product(SIZES, KINDS, LOSSES, [False, True]):
        split, kind, name, weighted = case
        model, x, targets, weight = problem(SIZES[split][: len(processes)], kind)
        one = torch.tensor(step(model, LOSSES[name](), x, targets, weight if weighted else None), dtype=torch.float64)
        for found in processes:
            error = (torch.tensor(found[case], dtype=torch.float64) - one).abs().max()
            assert error <= 1e-12, f"{case}: {error}"


def whole_batch(rows: int, world: int) -> list[float]:
    """The loss of a batch and its gradient."""
    model, x, targets, _ = problem([rows] * world, "mixed")
    value = SoftTargetInfoNCE("uniform")(model(x), targets)
    return [value.item(), *flat(torch.autograd.grad(value, list(model.parameters())))]


ALONE = {
    "from table": lambda world: from_table(SIZES["empty rank"][:world], slice(None)),
    "label table": lambda world: label_table([5] * world, None),
    "sharded table": lambda world: sharded_table([5] * world, None),
    "impossible class": lambda world: [impossible_class(SIZES["empty rank"][:world], slice(None))],
    "sum": lambda world: whole_batch(3, world),
    "accumulated": lambda world: whole_batch(6, world)[1:],
    "sharded": lambda world: whole_batch(6, world)[1:],
}
"""What one process has; the mean of the ranks' gradients from a table, as DDP takes it, and the sum of ``sum``."""


@pytest.mark.parametrize("name", ALONE)
def test_other_ways_equal_one_process(processes: list[dict], name: str) -> None:
    one = torch.tensor(ALONE[name](len(processes)), dtype=torch.float64)
    many = torch.tensor([found[name] for found in processes], dtype=torch.float64)
    if name in ("from table", "sum"):
        many = many.mean(0, keepdim=True) if name == "from table" else many.sum(0, keepdim=True)
    torch.testing.assert_close(many, one.expand_as(many), rtol=0, atol=1e-12)


def test_static_graphs_and_bucket_views_are_exact(processes: list[dict]) -> None:
    weights, eta = updates({}, 0, 1)
    for found in processes:
        for mode, (theirs, their_eta) in zip(MODES, found["modes"], strict=True):
            torch.testing.assert_close(theirs, weights, rtol=0, atol=1e-12, msg=lambda m, mode=mode: f"{mode}: {m}")
            torch.testing.assert_close(their_eta, eta, rtol=0, atol=1e-15)


def test_a_group_keeps_to_itself(processes: list[dict]) -> None:
    model, x, targets, _ = problem([3] * len(processes), "mixed")
    for rank, found in enumerate(processes):
        rows = slice(6 * (rank // 2), 6 * (rank // 2) + 6)
        one = SoftTargetInfoNCE("uniform")(model(x[rows]), targets[rows]).item()
        assert found["group"] == pytest.approx(one, rel=1e-12)


def test_all_ranks_learn_what_some_smooth_towards(processes: list[dict]) -> None:
    expected = torch.cat([smoothed_on_all_but_the_first(rank).dense() for rank in range(len(processes))])
    for found in processes:
        torch.testing.assert_close(torch.tensor(found["background"]), expected)


def test_what_is_exchanged_is_pairs(processes: list[dict]) -> None:
    """N = 1024 a rank, K = 1000, MixUp: two int32 and two float32 a row, under 1/200 of dense rows."""
    (_, header), (block_type, block) = processes[0]["bytes"]
    assert header == 200  # 16 digests of options and 9 numbers
    assert block_type == torch.int32
    assert block == 1024 * 2 * (4 + 4)
    assert header + block <= 1024 * 1000 * 4 / 200


def test_hard_losses_across_processes_are_covered_by_the_soft_ones() -> None:
    """InfoNCE and NLL are the same code with hard labels; one process is enough to show it."""
    model, x, targets, _ = problem([5], "labels")
    assert InfoNCE("uniform")(model(x), targets) == SoftTargetInfoNCE("uniform")(model(x), targets)
    assert NLL()(model(x), targets) == SoftTargetCrossEntropy()(model(x), targets)

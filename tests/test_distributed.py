"""Several processes give the gradients and the displayed loss of one process on the concatenated batch."""

import contextlib
import itertools

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
from softnce._core.ranks import gather_targets

K, DIM = 6, 4
SIZES = {"even": [5, 5, 5, 5], "uneven": [5, 2, 1, 4], "empty rank": [5, 0, 3, 0]}
LOSSES = {
    "soft target": lambda: SoftTargetInfoNCE(noise.from_counts(torch.arange(1, K + 1)).double()),
    "with classes and queue": lambda: SoftTargetInfoNCE(
        candidates=BatchCandidates() + ClassCandidates() + QueueCandidates(7)
    ),
    "class weights": lambda: SoftTargetInfoNCE("uniform", class_weight=torch.arange(1, K + 1).double()),
    "sum": lambda: SoftTargetInfoNCE("uniform", reduction="sum"),
    "expected": lambda: ExpectedInfoNCE(noise.from_counts(torch.arange(1, K + 1)).double()),
    "expected, queue": lambda: ExpectedInfoNCE("uniform", candidates=BatchCandidates() + QueueCandidates(7)),
    "cross-entropy": lambda: SoftTargetCrossEntropy(),
    "learned temperature": lambda: SoftTargetInfoNCE("uniform", temperature=nn.Parameter(torch.tensor(0.7).double())),
    "learned temperature of shape (1,)": lambda: SoftTargetInfoNCE(
        "uniform", temperature=nn.Parameter(torch.ones(1).double())
    ),
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
    parameters = [*model.parameters(), *loss.parameters()]
    return (*shown, *torch.cat([p.grad.flatten() for p in parameters]).tolist())


def from_table(sizes: list[int], rows: slice) -> list[float]:
    """The loss of features and label embeddings, and the gradient of table and bias."""
    _, x, targets, _ = problem(sizes, "labels")
    table, bias = torch.randn(K, DIM).double().requires_grad_(), torch.zeros(K).double().requires_grad_()
    value = SoftTargetInfoNCE("uniform").linear(x[rows], table, targets[rows], bias=bias)
    value.backward()
    return [value.item(), *table.grad.flatten().tolist(), *bias.grad.tolist()]


def label_table(sizes: list[int], rank: int | None) -> list[float]:
    """One SGD step of a head with sparse gradients and a bias: under DDP on a rank, or on all rows without."""
    _, x, targets, _ = problem(sizes, "labels")
    head = heads.LabelEmbeddingHead(DIM, K, bias=True).double()
    rows = slice(None) if rank is None else slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
    wrapped = head if rank is None else DistributedDataParallel(head)
    for criterion in (SoftTargetInfoNCE("uniform"), ExpectedInfoNCE("uniform")):
        optimiser = torch.optim.SGD(head.parameters(), lr=0.5)
        optimiser.zero_grad()
        wrapped(x[rows], targets[rows], criterion, generator=torch.Generator().manual_seed(0)).backward()
        assert head.weight.grad.is_sparse
        optimiser.step()
    return [*head.weight.flatten().tolist(), *head.bias.tolist()]


def sharded_table(sizes: list[int], rank: int | None) -> list[float]:
    """One SGD step of a head with dense gradients that FSDP2 shards, also inside of a larger model; or on all rows."""
    _, x, targets, _ = problem(sizes, "labels")
    model = nn.Module()
    model.head = heads.LabelEmbeddingHead(DIM, K, sparse=False).double()
    model.forward = lambda *given: model.head(*given)
    rows = slice(None)
    if rank is not None:
        fully_shard(model)
        rows = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    model(x[rows], targets[rows], SoftTargetInfoNCE("uniform")).backward()
    optimiser.step()
    weight = model.head.weight
    return (weight if rank is None else weight.full_tensor()).flatten().tolist()


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
    gradients = [p.grad.full_tensor() if sharded else p.grad for p in model.parameters()]
    return torch.cat([g.flatten() for g in gradients]).tolist()


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
        rows = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
        mine = weight[rows] if weighted else None
        found[split, kind, name, weighted] = step(model, LOSSES[name](), x[rows], targets[rows], mine)
    sizes = SIZES["empty rank"][:world]
    rows = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
    found["label table"] = label_table([5] * world, rank)
    found["sharded table"] = sharded_table([5] * world, rank)
    refuse_sparse_and_sharded()
    found["from table"], found["impossible class"] = from_table(sizes, rows), impossible_class(sizes, rows)
    found["accumulated"] = accumulate(rank, world, sharded=False)
    found["sharded"] = accumulate(rank, world, sharded=True)
    # What travels: count it at the collective.
    sent = []
    real = _ranks.all_gather_single

    def counting(output: Tensor, tensor: Tensor, *args: object, **kwargs: object) -> object:
        sent.append((tensor.dtype, tensor.numel() * tensor.element_size()))
        return real(output, tensor, *args, **kwargs)

    _ranks.all_gather_single = counting
    t = SoftTargets.from_labels(torch.randint(1000, (1024,)), 1000, smoothing=0.1)
    gathered, offset = gather_targets(t.mix(t.flip(0), torch.rand(1024)))
    assert (len(gathered), offset) == (1024 * world, 1024 * rank)
    found["bytes"] = list(sent)
    # Nobody waits in eval mode, nor where gradients are off and nobody thought of eval: only rank 0 calls the loss.
    if rank == 0:
        model, x, targets, _ = problem([4], "mixed")
        SoftTargetInfoNCE("uniform").eval()(model(x), targets)
        with torch.no_grad():
            SoftTargetInfoNCE("uniform")(model(x), targets)
    # Gradients that are added up; and groups of two ranks, each on its own.
    model, x, targets, _ = problem([3] * world, "mixed")
    rows = slice(3 * rank, 3 * rank + 3)
    value = SoftTargetInfoNCE("uniform", distributed="sum")(model(x[rows]), targets[rows])
    found["sum"] = [value.item(), *torch.autograd.grad(value, model.weight)[0].flatten().tolist()]
    pairs = [dist.new_group([r, r + 1]) for r in range(0, world, 2)]
    value = SoftTargetInfoNCE("uniform", process_group=pairs[rank // 2])(model(x[rows]), targets[rows])
    found["group"] = value.item()
    found["background"] = gather_targets(smoothed_on_all_but_the_first(rank))[0].dense().tolist()
    mismatch = make_targets("labels", 2, K + rank, torch.Generator())
    with pytest.raises(ValueError, match="different numbers of classes"):
        gather_targets(mismatch)
    dist.barrier()
    dist.destroy_process_group()
    return found


@pytest.fixture(scope="module", params=[pytest.param(n, marks=pytest.mark.slow) for n in (2, 4)])
def processes(request: pytest.FixtureRequest) -> list[dict]:
    return on_ranks(every_case, request.param)


def test_processes_equal_one_process(processes: list[dict]) -> None:
    world = len(processes)
    for split, kind, name, weighted in itertools.product(SIZES, KINDS, LOSSES, [False, True]):
        model, x, targets, weight = problem(SIZES[split][:world], kind)
        one = torch.tensor(step(model, LOSSES[name](), x, targets, weight if weighted else None), dtype=torch.float64)
        for rank in range(world):
            many = torch.tensor(processes[rank][split, kind, name, weighted], dtype=torch.float64)
            error = (many - one).abs().max()
            assert error <= 1e-12, f"{split}, {kind}, {name}, weighted {weighted}, rank {rank}: {error}"


def test_a_rank_without_rows_takes_part_from_a_table_too(processes: list[dict]) -> None:
    world = len(processes)
    one = torch.tensor(from_table(SIZES["empty rank"][:world], slice(None)), dtype=torch.float64)
    many = torch.tensor([processes[rank]["from table"] for rank in range(world)], dtype=torch.float64)
    torch.testing.assert_close(many.mean(0), one, rtol=0, atol=1e-12)  # DDP averages gradients


def test_a_head_with_sparse_gradients_trains_under_ddp(processes: list[dict]) -> None:
    world = len(processes)
    one = torch.tensor(label_table([5] * world, None), dtype=torch.float64)
    for rank in range(world):
        many = torch.tensor(processes[rank]["label table"], dtype=torch.float64)
        torch.testing.assert_close(many, one, rtol=0, atol=1e-12)


def test_a_sharded_head_trains_with_dense_gradients(processes: list[dict]) -> None:
    world = len(processes)
    one = torch.tensor(sharded_table([5] * world, None), dtype=torch.float64)
    for rank in range(world):
        many = torch.tensor(processes[rank]["sharded table"], dtype=torch.float64)
        torch.testing.assert_close(many, one, rtol=0, atol=1e-12)


def test_gradients_and_values_of_sum_add_up(processes: list[dict]) -> None:
    world = len(processes)
    model, x, targets, _ = problem([3] * world, "mixed")
    value = SoftTargetInfoNCE("uniform")(model(x), targets)
    one = [value.item(), *torch.autograd.grad(value, model.weight)[0].flatten().tolist()]
    many = torch.tensor([processes[rank]["sum"] for rank in range(world)], dtype=torch.float64).sum(0)
    torch.testing.assert_close(many, torch.tensor(one, dtype=torch.float64), rtol=0, atol=1e-12)


def test_a_group_keeps_to_itself(processes: list[dict]) -> None:
    world = len(processes)
    model, x, targets, _ = problem([3] * world, "mixed")
    for rank in range(world):
        rows = slice(6 * (rank // 2), 6 * (rank // 2) + 6)
        one = SoftTargetInfoNCE("uniform")(model(x[rows]), targets[rows]).item()
        assert processes[rank]["group"] == pytest.approx(one, rel=1e-12)


def test_an_impossible_class_does_not_spoil_the_loss_of_many(processes: list[dict]) -> None:
    world = len(processes)
    one = impossible_class(SIZES["empty rank"][:world], slice(None))
    for rank in range(world):
        assert processes[rank]["impossible class"] == pytest.approx(one, rel=1e-12)


@pytest.mark.parametrize("way", ["accumulated", "sharded"])
def test_accumulation_and_sharding_equal_one_process(processes: list[dict], way: str) -> None:
    world = len(processes)
    model, x, targets, _ = problem([6] * world, "mixed")
    SoftTargetInfoNCE("uniform")(model(x), targets).backward()
    one = torch.cat([p.grad.flatten() for p in model.parameters()])
    for rank in range(world):
        many = torch.tensor(processes[rank][way], dtype=torch.float64)
        torch.testing.assert_close(many, one, rtol=0, atol=1e-12)


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

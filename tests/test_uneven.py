"""Two ranks with different numbers of batches: every step is that of one process, and nobody waits in vain."""

import gc
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import softnce
from softnce import (
    BatchCandidates,
    ClassifierLoss,
    ExpectedInfoNCE,
    QueueCandidates,
    RunningNoise,
    SoftDistributionInfoNCE,
    SoftTargetCrossEntropy,
    SoftTargetInfoNCE,
    SoftTargets,
)
from softnce._uneven import _Groups

K, DIM, N, RATE = 5, 4, 6, 0.5
BATCHES = (3, 1)
TIMEOUT = 120
LOSSES: dict[str, Callable[[], ClassifierLoss]] = {
    "soft target": lambda: SoftTargetInfoNCE(),
    "expected": lambda: ExpectedInfoNCE(),
    "cross-entropy": lambda: SoftTargetCrossEntropy(),
    "queue": lambda: SoftTargetInfoNCE(candidates=BatchCandidates() + QueueCandidates(20)),
    "running noise": lambda: ExpectedInfoNCE(RunningNoise(K)),
    "temperature": lambda: SoftTargetInfoNCE(temperature=nn.Parameter(torch.tensor(0.7).double())),
    "drawn": lambda: SoftDistributionInfoNCE(candidates=BatchCandidates() + QueueCandidates(20)),
}


class Net(nn.Sequential):
    """With buffers, which DDP exchanges in its forward."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(DIM, K), nn.BatchNorm1d(K, affine=False).eval())
        generator = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            nn.init.normal_(parameter, generator=generator)

    def train(self, mode: bool = True) -> "Net":
        self[0].train(mode)
        return self


def batch(rank: int, step: int) -> tuple[Tensor, SoftTargets]:
    generator = torch.Generator().manual_seed(10 * rank + step)
    labels = torch.randint(K, (N,), generator=generator)
    targets = SoftTargets.from_labels(labels, K)
    if step % 2:  # another form in some batches
        targets = targets.mix(targets.flip(0), torch.rand(N, generator=generator, dtype=torch.float64))
    return torch.randn(N, DIM, generator=generator, dtype=torch.float64), targets


def train(net: nn.Module, loss: ClassifierLoss, steps: list[tuple[Tensor, SoftTargets]], parts: int) -> list[float]:
    optimiser = torch.optim.SGD([*net.parameters(), *loss.parameters()], lr=RATE)
    shown = []
    for x, targets in steps:
        optimiser.zero_grad()
        value = 0.0
        for own in torch.arange(len(x)).chunk(parts):
            generator = torch.Generator().manual_seed(3)
            part = {"batch": targets, "own": own, "generator": generator} if parts > 1 else {}
            is_last = int(own[-1]) + 1 == len(x)
            with net.no_sync() if isinstance(net, DistributedDataParallel) and not is_last else nullcontext():
                term = loss(net(x[own]), targets[own], **part)
                term.backward()
            value += term.item()
        if parts > 1:
            loss.remember(targets, generator=torch.Generator().manual_seed(3))
        optimiser.step()
        shown.append(value)
    return shown


def state(net: nn.Module, loss: ClassifierLoss) -> list[float]:
    held = [*net.parameters(), *loss.parameters(), *loss.buffers()]
    queue = [
        m.held.dense(torch.float64) for m in loss.modules() if isinstance(m, QueueCandidates) and m.held is not None
    ]
    return torch.cat([x.detach().double().flatten() for x in (*held, *queue)]).tolist()


def every_loss(rank: int) -> dict:
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT))
    found = {}
    for name, make in LOSSES.items():
        for counts_all in (True, False):
            torch.manual_seed(rank)  # of draws
            net, loss = Net().double(), make()
            ddp = DistributedDataParallel(net)
            steps = [batch(rank, step) for step in range(BATCHES[rank])]
            with softnce.join(ddp, loss, divide_by_initial_world_size=counts_all):
                shown = train(ddp, loss, steps, parts=1)
            found[name, counts_all] = shown, state(net, loss)
    # A rank without any batch; parts of batches, and the queue told of them.
    for name, mine, parts in (("none", range(1 - rank), 1), ("parts", range(BATCHES[rank]), 2)):
        net, loss = Net().double(), LOSSES["queue"]()
        ddp = DistributedDataParallel(net)
        with softnce.join(loss, ddp):
            shown = train(ddp, loss, [batch(rank, step) for step in mine], parts)
        found[name] = shown, state(net, loss)
    # DDP's own context alone would hang: an error on every rank, and none once it has ended.
    with pytest.raises(RuntimeError, match=r"with softnce\.join\(model, loss\)"), ddp.join():
        loss(ddp(torch.zeros(2, DIM).double()), torch.tensor([0, 1]))
    value = loss(net(torch.zeros(2, DIM).double()), torch.tensor([0, 1]))
    assert value.isfinite()
    with pytest.raises(TypeError, match=r"joinables must be models wrapped by .* got Net"):
        softnce.join(net, loss).__enter__()
    dist.barrier()
    dist.destroy_process_group()
    return found


def one_process(make: Callable[[], ClassifierLoss], counts: tuple[int, ...], parts: int = 1) -> tuple:
    """All batches of a step in one."""
    net, loss = Net().double(), make()
    steps = []
    for step in range(max(counts)):
        present = [batch(rank, step) for rank, count in enumerate(counts) if step < count]
        steps.append((torch.cat([x for x, _ in present]), SoftTargets.cat([t for _, t in present])))
    return train(net, loss, steps, parts), state(net, loss)


@pytest.fixture(scope="module")
def processes() -> list[dict]:
    return on_ranks(every_loss, 2, seconds=TIMEOUT)


def same(found: tuple, expected: tuple) -> None:
    shown, end = (torch.tensor(x, dtype=torch.float64) for x in found)
    expected_shown, expected_end = (torch.tensor(x, dtype=torch.float64) for x in expected)
    torch.testing.assert_close(shown, expected_shown[: len(shown)], rtol=0, atol=1e-12)
    torch.testing.assert_close(end, expected_end, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in LOSSES if name != "drawn"])
def test_uneven_ranks_make_the_steps_of_one_process(processes: list[dict], name: str) -> None:
    expected = one_process(LOSSES[name], BATCHES)
    for found in processes:
        for counts_all in (True, False):
            same(found[name, counts_all], expected)


@pytest.mark.slow
def test_draws_end_in_the_same_state_on_both_ranks(processes: list[dict]) -> None:
    for counts_all in (True, False):
        assert processes[0]["drawn", counts_all][1] == processes[1]["drawn", counts_all][1]


@pytest.mark.slow
def test_a_rank_without_any_batch(processes: list[dict]) -> None:
    expected = one_process(LOSSES["queue"], (1, 0))
    for found in processes:
        same(found["none"], expected)


@pytest.mark.slow
def test_parts_of_batches(processes: list[dict]) -> None:
    expected = one_process(LOSSES["queue"], BATCHES)
    for found in processes:
        end = torch.tensor(found["parts"][1], dtype=torch.float64)
        torch.testing.assert_close(end, torch.tensor(expected[1], dtype=torch.float64), rtol=0, atol=1e-12)


def test_one_process_needs_no_join() -> None:
    net, loss = nn.Linear(DIM, K), SoftTargetInfoNCE()
    with softnce.join(loss):
        loss(net(torch.zeros(2, DIM)), torch.tensor([0, 1])).backward()
    assert net.weight.grad is not None


def test_what_cannot_be_joined_is_refused() -> None:
    with pytest.raises(ValueError, match="joinables must hold at least one loss or model"), softnce.join():
        pass
    with pytest.raises(TypeError, match="divide_by_initial_world_size must be"):
        softnce.join(SoftTargetInfoNCE(), divide_by_initial_world_size="no").__enter__()


def groups_after_the_end(rank: int) -> list[bool]:
    dist.init_process_group("gloo")
    loss = SoftTargetInfoNCE()
    with softnce.join(loss):
        loss(torch.zeros(N, K, requires_grad=True), torch.zeros(N, dtype=torch.long)).backward()
    kept = [group for groups in _Groups.idle.values() for group in groups]
    before = [group() is not None for group in kept]
    dist.destroy_process_group()
    gc.collect()
    return [*before, *(group() is not None for group in kept)]


def test_groups_end_with_their_world() -> None:
    """One that outlives it ends with the interpreter, where its threads can abort the process."""
    assert on_ranks(groups_after_the_end, 2) == [[True, False]] * 2

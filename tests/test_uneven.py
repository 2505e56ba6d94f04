"""Two ranks with different numbers of batches: every step is that of one process, and nobody waits in vain."""

import gc
import re
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import NamedTuple

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
from softnce._core.join import IDLE
from softnce.heads import LabelEmbeddingHead

K, DIM, N, RATE = 5, 4, 6, 0.5
BATCHES = (3, 1)
TIMEOUT = 120
Steps = list[tuple[Tensor, SoftTargets]]


def learned(temperature: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(temperature, dtype=torch.float64))


LOSSES: dict[str, Callable[[], ClassifierLoss]] = {
    "soft target": lambda: SoftTargetInfoNCE("uniform"),
    "expected": lambda: ExpectedInfoNCE("uniform"),
    "cross-entropy": lambda: SoftTargetCrossEntropy(),
    "queue": lambda: SoftTargetInfoNCE("uniform", candidates=BatchCandidates() + QueueCandidates(20)),
    "running noise": lambda: ExpectedInfoNCE(RunningNoise(K)),
    "temperature": lambda: SoftTargetInfoNCE("uniform", temperature=learned(0.7)),
    "drawn": lambda: SoftDistributionInfoNCE("uniform", candidates=BatchCandidates() + QueueCandidates(20)),
    "frozen temperature": lambda: SoftTargetInfoNCE("uniform", temperature=learned(0.7).requires_grad_(False)),
}
UNREDUCED: dict[str, Callable[[], ClassifierLoss]] = {
    "soft target": lambda: SoftTargetInfoNCE("uniform", reduction="none"),
    "soft target, temperature": lambda: SoftTargetInfoNCE("uniform", reduction="none", temperature=learned(0.7)),
    "expected, temperature": lambda: ExpectedInfoNCE("uniform", reduction="none", temperature=learned(0.7)),
    "cross-entropy, temperature": lambda: SoftTargetCrossEntropy(reduction="none", temperature=learned(0.7)),
}
FROM_TABLE: dict[str, Callable[[], ClassifierLoss]] = {
    "soft target": lambda: SoftTargetInfoNCE("uniform"),
    "expected": lambda: ExpectedInfoNCE("uniform"),
    "expected, temperature": lambda: ExpectedInfoNCE("uniform", temperature=learned(0.7)),
    "expected, in the mean": lambda: ExpectedInfoNCE("uniform", negatives="mean", label_smoothing=0.1),
}
BACKGROUND = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05])
"""ξ of smoothed targets, which a rank without batches does not know."""


class Head(LabelEmbeddingHead):
    """Whose step needs no logits."""

    def __init__(self) -> None:
        super().__init__(DIM, K, sparse=False, bias=True)
        nn.init.normal_(self.weight, generator=torch.Generator().manual_seed(0))


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


class Case(NamedTuple):
    """A training. Unreduced losses sum on each rank, whose gradients DDP averages: a ``scale`` of ½ in one process."""

    make: Callable[[], ClassifierLoss]
    net: type[nn.Module] = Net
    batches: tuple[int, int] = BATCHES
    parts: int = 1
    smoothed: bool = False
    counts_all: bool = True
    scale: float = 1.0


CASES = {
    **{f"{name}, {every}": Case(make, counts_all=every) for name, make in LOSSES.items() for every in (True, False)},
    **{f"unreduced {name}": Case(make, scale=0.5) for name, make in UNREDUCED.items()},
    **{f"table, {name}": Case(make, net=Head) for name, make in FROM_TABLE.items()},
    **{f"smoothed, {name}": Case(LOSSES[name], smoothed=True) for name in ("queue", "running noise")},
    "a rank without any batch": Case(LOSSES["queue"], batches=(1, 0)),
    "parts of batches": Case(LOSSES["queue"], parts=2),
}


def train(
    case: Case, net: nn.Module, loss: ClassifierLoss, steps: Steps, parts: int = 1, scale: float = 1.0
) -> list[float]:
    optimiser = torch.optim.SGD([*net.parameters(), *loss.parameters()], lr=RATE)
    shown = []
    for x, targets in steps:
        if case.smoothed:
            targets = targets.smooth(0.2, BACKGROUND)
        optimiser.zero_grad()
        value = 0.0
        for own in torch.arange(len(x)).chunk(parts):
            generator = torch.Generator().manual_seed(3)  # all ranks draw the same labels
            part = {"batch": targets, "own": own, "generator": generator} if parts > 1 else {}
            is_last = int(own[-1]) + 1 == len(x)
            with net.no_sync() if isinstance(net, DistributedDataParallel) and not is_last else nullcontext():
                if case.net is Head:
                    term = net(x, targets, loss, generator=generator)
                else:
                    term = loss(net(x[own]), targets[own], **part).sum() * scale
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


def every_case(rank: int) -> dict:
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT))
    found = {}
    for name, case in CASES.items():
        torch.manual_seed(rank)  # of draws
        net, loss = case.net().double(), case.make()
        ddp = DistributedDataParallel(net)
        joinables = (ddp, loss) if case.counts_all else (loss, ddp)
        with softnce.join(*joinables, divide_by_initial_world_size=case.counts_all):
            shown = train(case, ddp, loss, [batch(rank, step) for step in range(case.batches[rank])], case.parts)
        found[name] = shown, state(net, loss)
    # DDP's own context alone would hang: an error on every rank, and none once it has ended.
    with pytest.raises(RuntimeError, match=r"with softnce\.join\(model, loss\)"), ddp.join():
        loss(ddp(torch.zeros(2, DIM).double()), torch.tensor([0, 1]))
    assert loss(net(torch.zeros(2, DIM).double()), torch.tensor([0, 1])).isfinite()
    with pytest.raises(TypeError, match=r"joinables must be models wrapped by .* got Net"):
        softnce.join(net, loss).__enter__()
    kept = [group for groups in IDLE.values() for group in groups]
    found["groups"] = [{group() is not None for group in kept}]
    dist.barrier()
    dist.destroy_process_group()
    gc.collect()
    found["groups"] += [{group() is not None for group in kept}]
    return found


@pytest.fixture(scope="module")
def processes() -> list[dict]:
    return on_ranks(every_case, 2, seconds=TIMEOUT)


def close(found: list[float], expected: list[float]) -> None:
    found, expected = (torch.tensor(x, dtype=torch.float64) for x in (found, expected))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("drawn")])
def test_uneven_ranks_make_the_steps_of_one_process(processes: list[dict], name: str) -> None:
    case = CASES[name]
    net, loss = case.net().double(), case.make()
    present = [[batch(rank, step) for rank in (0, 1) if step < case.batches[rank]] for step in range(max(case.batches))]
    steps = [(torch.cat([x for x, _ in found]), SoftTargets.cat([t for _, t in found])) for found in present]
    expected = train(case, net, loss, steps, scale=case.scale)
    for shown, end in (found[name] for found in processes):
        close(end, state(net, loss))
        if case.scale == case.parts == 1:
            close(shown, expected[: len(shown)])


@pytest.mark.slow
def test_draws_end_in_the_same_state_on_both_ranks(processes: list[dict]) -> None:
    for name in ("drawn, True", "drawn, False"):
        assert processes[0][name][1] == processes[1][name][1]


@pytest.mark.slow
def test_groups_end_with_their_world(processes: list[dict]) -> None:
    """One that outlives it ends with the interpreter, where its threads can abort the process."""
    assert [found["groups"] for found in processes] == [[{True}, {False}]] * 2


class FailsAlone(BatchCandidates):
    """Candidates with a defect that a rank meets once it has run out of batches."""

    def forward(self, batch, own, *_):
        if len(own) == 0:
            raise ZeroDivisionError("no rows")
        return super().forward(batch, own)


def failing(rank: int) -> str:
    dist.init_process_group("gloo", timeout=timedelta(seconds=10 * TIMEOUT))
    loss = SoftTargetInfoNCE("uniform", candidates=FailsAlone(), temperature=learned(0.7))
    steps = [batch(rank, step) for step in range(BATCHES[rank])]
    with pytest.raises((RuntimeError, ZeroDivisionError)) as error, softnce.join(loss):
        train(Case(LOSSES["temperature"]), Net().double(), loss, steps)
    dist.barrier()
    dist.destroy_process_group()
    return f"{error.type.__name__}: {error.value}"


def test_an_error_of_a_rank_that_has_run_out_ends_the_wait_of_the_others() -> None:
    others, own = on_ranks(failing, 2, seconds=TIMEOUT)
    assert re.search("Connection (closed|reset) by peer", others)
    assert own == "ZeroDivisionError: no rows"


def test_one_process_needs_no_join() -> None:
    net, loss = nn.Linear(DIM, K), SoftTargetInfoNCE("uniform")
    with softnce.join(loss):
        loss(net(torch.zeros(2, DIM)), torch.tensor([0, 1])).backward()
    assert net.weight.grad is not None


def test_what_cannot_be_joined_is_refused() -> None:
    with pytest.raises(ValueError, match="joinables must hold at least one loss or model"), softnce.join():
        pass
    with pytest.raises(TypeError, match="divide_by_initial_world_size must be"):
        softnce.join(SoftTargetInfoNCE("uniform"), divide_by_initial_world_size="no").__enter__()

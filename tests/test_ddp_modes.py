"""DDP's modes with accumulation: two ranks, updates in two parts each, against one process.

The first update is one part: with any loss, torch's reducer asserts if the first step of a static graph is in no_sync.
"""

import contextlib

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from softnce import ExpectedInfoNCE, SoftTargets

K, DIM, ROWS = 5, 3, 8
MODES = [{}, {"static_graph": True}, {"gradient_as_bucket_view": True}]
MODES.append({"static_graph": True, "gradient_as_bucket_view": True})


def train(rank: int, world: int, mode: dict[str, bool]) -> tuple[Tensor, Tensor]:
    """The weights and the estimate of η after three updates."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    net: nn.Module = nn.Sequential(nn.Linear(DIM, 4), nn.Tanh(), nn.Linear(4, K)).double()
    model = DistributedDataParallel(net, **mode) if world > 1 else net
    loss = ExpectedInfoNCE()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.5)
    for update in range(3):
        x = torch.randn(ROWS, DIM, dtype=torch.float64, generator=generator).chunk(world)[rank]
        targets = SoftTargets.from_labels(torch.randint(K, (ROWS,), generator=generator).chunk(world)[rank], K)
        optimiser.zero_grad()
        parts = torch.arange(len(x)).chunk(2 if update else 1)
        for own in parts:
            with model.no_sync() if world > 1 and own is not parts[-1] else contextlib.nullcontext():
                loss(model(x[own]), targets[own], batch=targets, own=own).backward()
        loss.remember(targets)
        optimiser.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()]), loss.noise.probs()


def one_rank(rank: int) -> list[tuple[Tensor, Tensor]]:
    dist.init_process_group("gloo")
    found = [train(rank, 2, mode) for mode in MODES]
    dist.destroy_process_group()
    return found


@pytest.mark.slow
def test_static_graphs_and_bucket_views_are_exact() -> None:
    expected = train(0, 1, {})
    for found in on_ranks(one_rank, 2):
        for mode, (weights, eta) in zip(MODES, found, strict=True):
            torch.testing.assert_close(
                weights, expected[0], rtol=0, atol=1e-12, msg=lambda m, mode=mode: f"{mode}: {m}"
            )
            torch.testing.assert_close(eta, expected[1], rtol=0, atol=1e-15)

"""Gowalla's 40,981 places in a table that TorchRec divides between two ranks: the steps of plain torch on one process.

    torchrun --nproc_per_node 2 examples/torchrec_two_ranks.py $SOFTNCE_DATA/recommendation/gowalla/train.txt 200

A line of the file is a user and the places visited, the soft target; 1,024 places drawn in each step are negatives.
`SoftTargets.compact` names the places of a step; TorchRec returns their rows, takes the gradients back, and steps them
where they are. Needs pip install --no-deps torchrec==1.8.0 fbgemm-gpu-cpu==1.8.0, tensordict, pyre-extensions, iopath.
"""

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torchrec import EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.optim import RowWiseAdagrad, apply_optimizer_in_backward

from softnce import ExpectedInfoNCE, SoftTargets
from softnce.optimisers import RowAdagrad

DIM, BATCH, DRAWN, RATE, EPS = 64, 256, 1024, 0.1, 1e-8


class Sharded(nn.Module):
    """A table whose rows are divided among the ranks. They start at zero, as output embeddings may."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        config = EmbeddingConfig(num_classes, DIM, "table", feature_names=["id"], init_fn=nn.init.zeros_)
        whole = EmbeddingCollection(tables=[config], device=torch.device("meta"))  # nothing is allocated yet
        apply_optimizer_in_backward(RowWiseAdagrad, whole.parameters(), {"lr": RATE, "eps": EPS})
        by_row = {"table": ParameterConstraints(sharding_types=["row_wise"], compute_kernels=["fused"])}
        planner = EmbeddingShardingPlanner(Topology(dist.get_world_size(), "cpu"), constraints=by_row)
        plan = planner.collective_plan(whole, [EmbeddingCollectionSharder()], dist.group.WORLD)
        self.table = DistributedModelParallel(whole, device=torch.device("cpu"), plan=plan)

    def forward(self, classes: Tensor) -> Tensor:
        ids = KeyedJaggedTensor(["id"], values=classes, lengths=torch.ones_like(classes, dtype=torch.int32))
        return self.table(ids)["id"].values()


def train(seen: list[list[int]], num_classes: int, steps: int, shared: bool) -> Tensor:
    """The loss of every step, (steps,). If ``shared``, each rank takes its part of a batch and of the table."""
    torch.manual_seed(0)
    users = nn.Embedding(len(seen), DIM, sparse=True)
    plain = nn.Embedding.from_pretrained(torch.zeros(num_classes, DIM), freeze=False, sparse=True)
    model, table = (DistributedDataParallel(users), Sharded(num_classes)) if shared else (users, plain)
    mine = slice(dist.get_rank(), None, dist.get_world_size()) if shared else slice(None)
    optimiser, losses = RowAdagrad([users.weight, plain.weight], RATE, EPS), []  # TorchRec steps its own
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        rows = torch.randint(len(seen), (BATCH,), generator=generator)[mine]
        places = [seen[row] for row in rows]
        targets = SoftTargets.from_pairs(places, [[1 / len(each)] * len(each) for each in places], num_classes)
        drawn = SoftTargets.from_labels(torch.randint(num_classes, (DRAWN,), generator=generator), num_classes)
        classes, targets, candidates = targets.compact(drawn)  # those that this rank names
        criterion = ExpectedInfoNCE("uniform", candidates=candidates, drop_own_classes=True, distributed=shared)
        optimiser.zero_grad()
        loss = criterion(model(rows) @ table(classes).T, targets)
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def main(path: str, steps: str) -> None:
    dist.init_process_group("gloo")
    seen = [[*map(int, line.split()[1:])] for line in Path(path).read_text().splitlines()]
    num_classes, sent, exchange = 1 + max(map(max, seen)), [], dist.all_to_all_single

    def counted(output: Tensor, input: Tensor, *more: Any, **options: Any) -> Any:
        sent.append(input.nbytes)
        return exchange(output, input, *more, **options)

    dist.all_to_all_single = counted
    alone, shared = (train(seen, num_classes, int(steps), shared) for shared in (False, True))
    if dist.get_rank() == 0:
        print(f"loss {alone[0]:.6f} to {alone[-1]:.6f}; TorchRec differs by {(alone - shared).abs().max():.1e} at most")
        print(f"sent per rank and step: {sum(sent) // int(steps):,} bytes; all rows: {4 * DIM * num_classes:,} bytes")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])

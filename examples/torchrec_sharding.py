"""A label table larger than one machine: TorchRec holds its rows, SoftTargets.compact asks for those of a step.

    torchrun --nproc_per_node 2 examples/torchrec_sharding.py              # ten million classes, half of them per rank
    torchrun --nproc_per_node 2 examples/torchrec_sharding.py 100000 5     # fewer classes, five steps

A step touches only the classes that occur among its targets. `compact` names them and renumbers the targets; any engine
that returns rows for ids can then hold the table. Here that is TorchRec's row-wise sharding: a rank sends the ids, gets
the rows, and sends their gradients back; the optimiser (row-wise Adagrad) runs where the rows are. The loss of the
rows' logits equals the loss from the whole table.

TorchRec 1.8.0 and fbgemm-gpu-cpu 1.8.0 work beside torch 2.13 if installed without their dependencies (`pip install
--no-deps`), with tensordict, pyre-extensions and iopath.
"""

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
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

from softnce import SoftTargetInfoNCE, SoftTargets

DIM, BATCH = 16, 512
"""Numbers per row of the table; rows of a batch over all ranks."""


class LabelTable(nn.Module):
    """The label embeddings of class ids, whoever holds them."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        # Rows start at zero, as output embeddings may; on "meta" nothing is allocated before it is sharded.
        config = EmbeddingConfig(
            num_classes, DIM, name="labels", feature_names=["class"], weight_init_min=0.0, weight_init_max=0.0
        )
        self.collection = EmbeddingCollection(tables=[config], device=torch.device("meta"))

    def forward(self, classes: Tensor) -> Tensor:
        ids = KeyedJaggedTensor(["class"], values=classes, lengths=torch.ones_like(classes, dtype=torch.int32))
        return self.collection(ids)["class"].values()


def sharded(table: LabelTable) -> nn.Module:
    """The table with its rows divided among the ranks."""
    apply_optimizer_in_backward(RowWiseAdagrad, table.parameters(), {"lr": 0.2})
    planner = EmbeddingShardingPlanner(
        topology=Topology(dist.get_world_size(), compute_device="cpu"),
        constraints={"labels": ParameterConstraints(sharding_types=["row_wise"], compute_kernels=["fused"])},
    )
    sharders = [EmbeddingCollectionSharder()]
    plan = planner.collective_plan(table, sharders, dist.group.WORLD)
    return DistributedModelParallel(table, device=torch.device("cpu"), plan=plan, sharders=sharders)


@contextlib.contextmanager
def counted() -> Iterator[list[int]]:
    """Bytes that this rank sends to exchange ids, rows and their gradients, message by message."""
    sent: list[int] = []
    real = dist.all_to_all_single

    def all_to_all_single(output: Tensor, input: Tensor, *arguments: Any, **options: Any) -> Any:
        sent.append(input.numel() * input.element_size())
        return real(output, input, *arguments, **options)

    dist.all_to_all_single = all_to_all_single
    yield sent
    dist.all_to_all_single = real


def main(num_classes: int = 10_000_000, steps: int = 20) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    encoder = nn.Linear(DIM, DIM)
    model = DistributedDataParallel(encoder) if world > 1 else encoder
    table = sharded(LabelTable(num_classes))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.2)
    criterion = SoftTargetInfoNCE("uniform", temperature=0.2)  # the classes of a step are numbered anew: no running η

    for step in range(steps):
        # The targets of all ranks must be known on each, to agree on the classes: gather yours, or, as here, draw the
        # same. MixUp of two labels per row; a label is one of 1,000, so that they come again.
        generator = torch.Generator().manual_seed(step)
        labels = torch.randint(1000, (BATCH,), generator=generator) * (num_classes // 1000)
        x = torch.sin(labels[:, None] * torch.arange(1, DIM + 1) * 0.37)
        share = 0.5 + 0.5 * torch.rand(BATCH, generator=generator)
        x = share[:, None] * x + (1 - share[:, None]) * x.flip(0)
        whole = SoftTargets.from_labels(labels, num_classes)
        whole = whole.mix(whole.flip(0), share)

        # Ten million classes become the few hundred that occur; every rank numbers them alike.
        classes, compacted = whole.compact()
        mine = torch.arange(BATCH).chunk(world)[rank]
        with counted() as sent:
            rows = table(classes)  # (U, d), from the ranks that hold them
            loss = criterion(model(x[mine]) @ rows.T, compacted[mine])
            optimiser.zero_grad()
            loss.backward()  # sends the gradients of the rows back, and steps the table where its rows are
            optimiser.step()
        if rank == 0:
            print(f"step {step:3}  loss {loss.item():.7f}  {len(classes)} of {num_classes:,} classes")
    if rank == 0:
        print(f"the table's exchange: {sum(sent):,} bytes per rank and step in {len(sent)} messages")
        print(f"all logits of a rank's rows would be {4 * len(mine) * num_classes:,} bytes")
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*map(int, sys.argv[1:]))

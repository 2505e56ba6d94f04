"""The losses in other people's training loops: Hugging Face Trainer, Accelerate, Lightning.

Every loop makes one SGD step on the same batch of 24 samples, on one or two processes, in one part or in parts, and
must end at the weights of one plain step on the whole batch. Two processes run every loop in one go.
"""

import os
import pickle
import socket
import tempfile
import time
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from torch import Tensor, nn

from softnce import ExpectedInfoNCE, SoftTargetInfoNCE, SoftTargets
from softnce.lab.models import torchvision_operators  # noqa: F401  (transformers and Lightning import torchvision)

N, K, DIM, RATE = 24, 5, 6, 0.5
LOSSES = {"soft target": SoftTargetInfoNCE, "expected": ExpectedInfoNCE}
EXACT = 1e-6
TIMEOUT = 600


def problem() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(N, DIM, generator=generator), torch.randint(K, (N,), generator=generator)


def model() -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(DIM, K)


def plain(name: str) -> Tensor:
    """The weights after one step on the whole batch, in a loop of our own."""
    net, (x, y) = model(), problem()
    optimiser = torch.optim.SGD(net.parameters(), lr=RATE)
    LOSSES[name](label_smoothing=0.1)(net(x), y).backward()
    optimiser.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def shares(rank: int, world: int, parts: int) -> list[Tensor]:
    """The rows of this rank, part by part."""
    mine = torch.arange(N).view(world, -1)[rank]
    return list(mine.view(parts, -1))


def by_trainer(name: str, rank: int, world: int, parts: int, folder: str) -> Tensor:
    from transformers import Trainer, TrainingArguments

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = model()

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"logits": self.linear(x)}

    class SoftTrainer(Trainer):
        """Trainer multiplies a compute_loss_func's loss by the number of processes: hence distributed="sum"."""

        def get_batch_samples(self, *args):
            samples, count = super().get_batch_samples(*args)
            # All parts of the coming update: each is contrasted with, and divided by, the whole.
            labels = [sample["labels"] for sample in samples]
            self.batch = SoftTargets.from_labels(torch.cat(labels), K)
            self.parts = iter(torch.arange(len(self.batch)).split([len(part) for part in labels]))
            return samples, count

    x, y = problem()
    order = torch.cat(
        [torch.cat(column) for column in zip(*[shares(r, world, parts) for r in range(world)], strict=True)]
    )
    rows = [{"x": x[i], "labels": y[i]} for i in order]
    criterion = LOSSES[name](label_smoothing=0.1, distributed="sum")

    def loss(outputs, labels, num_items_in_batch=None) -> Tensor:
        if not torch.is_grad_enabled():
            return criterion(outputs["logits"], labels)
        return criterion(outputs["logits"], labels, batch=trainer.batch, own=next(trainer.parts))

    arguments = TrainingArguments(
        folder, per_device_train_batch_size=N // world // parts, gradient_accumulation_steps=parts, max_steps=1,
        learning_rate=RATE, lr_scheduler_type="constant", max_grad_norm=0.0, optim="sgd", use_cpu=True, report_to=[],
        save_strategy="no", disable_tqdm=True, remove_unused_columns=False, dataloader_drop_last=False,
    )  # fmt: skip
    net = Net()
    trainer = SoftTrainer(net, arguments, train_dataset=rows, compute_loss_func=loss)
    trainer._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(rows)
    trainer.train()
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def by_accelerate(name: str, rank: int, world: int, parts: int, folder: str) -> Tensor:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=parts)
    net, (x, y) = model(), problem()
    net, optimiser = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=RATE))
    criterion = LOSSES[name](label_smoothing=0.1)
    mine = shares(rank, world, parts)
    batch = SoftTargets.from_labels(y[torch.cat(mine)], K)
    places = torch.arange(len(batch)).split(len(mine[0]))
    for rows, own in zip(mine, places, strict=True):
        with accelerator.accumulate(net):
            loss = criterion(net(x[rows]), y[rows], batch=batch, own=own)
            accelerator.backward(loss * accelerator.gradient_accumulation_steps)  # which it divides by
            optimiser.step()
            optimiser.zero_grad()
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def by_lightning(name: str, rank: int, world: int, parts: int, folder: str) -> Tensor:
    import lightning as L

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.criterion = model(), LOSSES[name](label_smoothing=0.1)

        def on_train_batch_start(self, batch, batch_idx: int) -> None:
            if batch_idx % parts == 0:
                self.batch = SoftTargets.from_labels(y[torch.cat(mine)], K)

        def training_step(self, batch, batch_idx: int) -> Tensor:
            inputs, labels, own = (part[0] for part in batch)
            loss = self.criterion(self.net(inputs), labels, batch=self.batch, own=own)
            return loss * self.trainer.accumulate_grad_batches  # which Lightning divides by

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=RATE)

    x, y = problem()
    mine = shares(rank, world, parts)
    places = torch.arange(N // world).split(len(mine[0]))
    batches = [(x[rows], y[rows], own) for rows, own in zip(mine, places, strict=True)]
    module = Module()
    trainer = L.Trainer(
        accelerator="cpu", devices=world, strategy="ddp" if world > 1 else "auto", max_epochs=1,
        accumulate_grad_batches=parts, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, use_distributed_sampler=False, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(batches, batch_size=1))
    return torch.cat([p.detach().flatten() for p in module.net.parameters()])


LOOPS = {"trainer": by_trainer, "accelerate": by_accelerate, "lightning": by_lightning}
NEEDS = {"trainer": "transformers", "accelerate": "accelerate", "lightning": "lightning"}


def one_rank(rank: int, world: int, port: int, loop: str, results: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "ACCELERATE_USE_CPU": "true", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in LOSSES:
            for parts in (1, 3):
                found[name, parts] = LOOPS[loop](name, rank, world, parts, folder).tolist()
    if rank == 0:
        Path(results).write_bytes(pickle.dumps(found))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what the frameworks say of each other
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("world", [1, 2])
def test_one_step_is_the_plain_step(loop: str, world: int, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS[loop])
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    results = tmp_path / "found.pkl"
    context = mp.spawn(one_rank, (world, port, loop, str(results)), nprocs=world, join=False)
    deadline = time.monotonic() + TIMEOUT
    while not context.join(timeout=5):  # True once all have ended
        assert time.monotonic() < deadline, "the processes hang"
    found = pickle.loads(results.read_bytes())
    start = torch.cat([p.detach().flatten() for p in model().parameters()])
    for (name, parts), weights in found.items():
        error = (torch.tensor(weights) - plain(name)).abs().max().item()
        assert error <= EXACT, f"{name} in {parts} parts: {error:.2e}"
        assert (torch.tensor(weights) - start).abs().max() > 0.01

"""The losses in other people's training loops: Hugging Face Trainer, Accelerate, Lightning.

Every loop makes one SGD step on the same batch of 24 samples, on one or two processes, in one part or in parts, and
must end at the weights of one plain step on the whole batch. Two processes run every loop in one go. What makes the
step exact is the code of the examples.
"""

import itertools
import os
import tempfile
from importlib.util import find_spec

import pytest
import torch
from example_files import example
from ranks import on_ranks
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from experiments.models import torchvision_operators  # noqa: F401  (transformers and Lightning import torchvision)
from softnce import ExpectedInfoNCE, SoftTargetInfoNCE, SoftTargets

N, K, DIM, RATE = 24, 5, 6, 0.5
LOSSES = {"soft target": SoftTargetInfoNCE, "expected": ExpectedInfoNCE}
EXACT = 1e-6


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
    return parameters_to_vector(net.parameters()).detach()


def shares(rank: int, world: int, parts: int) -> list[Tensor]:
    """The rows of this rank, part by part."""
    mine = torch.arange(N).view(world, -1)[rank]
    return list(mine.view(parts, -1))


def by_trainer(name: str, rank: int, world: int, parts: int, folder: str) -> Tensor:
    from transformers import TrainingArguments

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = model()

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"logits": self.linear(x)}

    x, y = problem()
    order = torch.arange(N).view(world, parts, -1).transpose(0, 1).flatten()
    rows = [{"x": x[i], "labels": y[i]} for i in order]
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=N // world // parts, gradient_accumulation_steps=parts, max_steps=1,
        learning_rate=RATE, lr_scheduler_type="constant", max_grad_norm=0.0, optim="sgd", use_cpu=True, report_to=[],
        save_strategy="no", disable_tqdm=True, remove_unused_columns=False, dataloader_drop_last=False,
    )  # fmt: skip
    net = Net()
    criterion = LOSSES[name](label_smoothing=0.1, distributed="sum")
    make = example("hugging_face_trainer").SoftTargetTrainer
    trainer = make(net, arguments, train_dataset=rows, criterion=criterion, num_classes=K)
    trainer._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(rows)
    trainer.train()
    return parameters_to_vector(net.parameters()).detach()


def by_accelerate(name: str, rank: int, world: int, parts: int, folder: str) -> Tensor:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=parts)
    net, (x, y) = model(), problem()
    net, optimiser = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=RATE))
    mine = torch.cat(shares(rank, world, parts))
    targets = SoftTargets.from_labels(y[mine], K)
    example("accelerate_loop").update(accelerator, net, optimiser, LOSSES[name](label_smoothing=0.1), x[mine], targets)
    return parameters_to_vector(net.parameters()).detach()


def by_lightning(name: str, rank: int, world: int, parts: int, folder: str) -> Tensor:
    import lightning as L

    x, y = problem()
    lightning_module = example("lightning_module")
    updates = lightning_module.Updates(x, SoftTargets.from_labels(y, K), size=N, parts=parts)
    module = lightning_module.SoftTargetModule(model(), LOSSES[name](label_smoothing=0.1), RATE)
    trainer = L.Trainer(
        accelerator="cpu", devices=world, strategy="ddp" if world > 1 else "auto", max_epochs=1,
        accumulate_grad_batches=parts, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, use_distributed_sampler=False, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(updates, batch_size=None))
    return parameters_to_vector(module.net.parameters()).detach()


LOOPS = {  # in this order: Trainer leaves its settings in Accelerate
    "accelerate": by_accelerate,
    "transformers": by_trainer,
    "lightning": by_lightning,
}
INSTALLED = [loop for loop in LOOPS if find_spec(loop) is not None]


def one_rank(rank: int, world: int) -> dict:
    os.environ |= {"ACCELERATE_USE_CPU": "true", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        return {
            (loop, name, parts): LOOPS[loop](name, rank, world, parts, folder).tolist()
            for loop, name, parts in itertools.product(INSTALLED, LOSSES, (1, 3))
        }


@pytest.fixture(scope="module", params=[1, 2])
def weights(request: pytest.FixtureRequest) -> dict:
    """After one step of every loop, on as many processes."""
    return on_ranks(one_rank, request.param, request.param)[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what the frameworks say of each other
@pytest.mark.parametrize("loop", LOOPS)
def test_one_step_is_the_plain_step(weights: dict, loop: str) -> None:
    if loop not in INSTALLED:
        pytest.skip(f"{loop} is not installed")
    start = parameters_to_vector(model().parameters()).detach()
    for name, parts in itertools.product(LOSSES, (1, 3)):
        found = torch.tensor(weights[loop, name, parts])
        error = (found - plain(name)).abs().max().item()
        assert error <= EXACT, f"{name} in {parts} parts: {error:.2e}"
        assert (found - start).abs().max() > 0.01

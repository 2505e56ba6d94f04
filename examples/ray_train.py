"""Ray Train: the loop of ddp_torchrun.py on Ray's workers.

Ray sets up torch.distributed and wraps the model in DDP, so the loss needs nothing: it sees the targets of all workers.
"""

import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_model
from sklearn.datasets import load_digits
from torch import nn

from softnce import SoftTargetInfoNCE


def train_on_worker(config: dict[str, Any]) -> None:
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    images = images.float() / 16

    torch.manual_seed(0)
    model = prepare_model(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    criterion = SoftTargetInfoNCE()
    for epoch in range(config["epochs"]):
        order = torch.randperm(1400, generator=torch.Generator().manual_seed(epoch))
        for rows in order.split(128)[:-1]:
            mine = rows.chunk(world)[rank]
            optimiser.zero_grad()
            criterion(model(images[mine]), labels[mine]).backward()
            optimiser.step()
    with torch.no_grad():
        accuracy = (model(images[1400:]).argmax(1) == labels[1400:]).float().mean().item()
    # Ray keeps the metrics of reports that come with a checkpoint; every worker reports, one saves.
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if rank == 0:
            torch.save(model.state_dict(), Path(folder, "model.pt"))
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"accuracy": accuracy}, checkpoint=checkpoint)


def main(epochs: int = 10, workers: int = 2) -> float:
    ray.init(num_cpus=workers + 1, include_dashboard=False, ignore_reinit_error=True)
    with tempfile.TemporaryDirectory() as folder:
        trainer = TorchTrainer(
            train_on_worker,
            train_loop_config={"epochs": epochs},
            scaling_config=ray.train.ScalingConfig(num_workers=workers),
            run_config=ray.train.RunConfig(storage_path=folder),
        )
        accuracy = float(trainer.fit().metrics["accuracy"])
    ray.shutdown()
    print(f"accuracy {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main()

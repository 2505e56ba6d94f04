"""Distillation from a file: the teacher runs once, its best k classes per sample are stored, the student trains later.

k = 5 of 100 classes take 26 bytes per sample. The file knows which samples it belongs to: it is refused for other data.
"""

import tempfile
from pathlib import Path

import torch
from torch import nn

from softnce import ExpectedInfoNCE
from softnce.teacher import TeacherOutputs

CLASSES, DIM = 100, 32


def network(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(DIM, width), nn.ReLU(), nn.Linear(width, CLASSES))


def fit(model: nn.Module, criterion: nn.Module, x: torch.Tensor, targets, steps: int) -> None:
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        rows = torch.randint(len(x), (256,))
        optimiser.zero_grad()
        criterion(model(x[rows]), targets[rows]).backward()
        optimiser.step()


def main(samples: int = 4000, steps: int = 400) -> dict[str, float]:
    torch.manual_seed(0)
    centres = torch.randn(CLASSES, DIM)
    labels = torch.randint(CLASSES, (2 * samples,))
    x = centres[labels] + 1.2 * torch.randn(2 * samples, DIM)
    (x, x_test), (labels, labels_test) = x.chunk(2), labels.chunk(2)

    # The teacher knows the classes; it stands for a large network that is too slow to run beside the student.
    logits = -torch.cdist(x, centres).square() / (2 * 1.2**2)

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "teacher.pt")
        TeacherOutputs.from_logits(logits, k=5, temperature=2.0).save(file, labels)
        print(f"{file.stat().st_size / samples:.0f} bytes per sample")
        # Read with the labels of the training set: a file in another order, or of other data, raises an error here.
        outputs = TeacherOutputs.load(file, labels, num_classes=CLASSES)

    # What the five classes leave is spread over all: every row then has its own background. Expected InfoNCE takes
    # such targets as they are. Soft target InfoNCE would recognise samples by them; it wants "renormalise".
    taught = outputs.targets("spread")

    accuracy = {}
    for name, targets in (("labels", labels), ("teacher", taught)):
        torch.manual_seed(1)
        student = network(64)
        fit(student, ExpectedInfoNCE(), x, targets, steps)
        with torch.no_grad():
            accuracy[name] = (student(x_test).argmax(1) == labels_test).float().mean().item()
        print(f"student of {name:8} {accuracy[name]:.1%}")
    return accuracy


if __name__ == "__main__":
    main()

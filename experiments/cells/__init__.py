"""The paper's twenty cells and the laptop recipes: Lightning, DDP, exact resume."""

from experiments.models import torchvision_operators  # noqa: F401  (before Lightning)

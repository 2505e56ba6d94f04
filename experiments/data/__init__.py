"""Data sets of the experiments: reading, splitting and mixing. Nothing is downloaded unless asked for."""

from experiments.models import torchvision_operators  # noqa: F401  (before torchvision)

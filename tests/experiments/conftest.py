"""Slow packages, imported once and before timm, and data that tests share."""

import os
import warnings
from pathlib import Path

import pytest

from experiments.models import torchvision_operators  # noqa: F401  (before timm and Lightning)

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated")  # PyG uses it while it is imported
    import torch_geometric.nn  # noqa: F401


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder SOFTNCE_DATA."""
    folder = os.environ.get("SOFTNCE_DATA")
    if not folder:
        pytest.skip("SOFTNCE_DATA is not set")
    return Path(folder)

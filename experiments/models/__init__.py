"""Networks: images (timm), text (transformers), graphs (PyTorch Geometric), links, and the heads above them."""

from experiments.models import torchvision_operators  # noqa: F401  (before timm and transformers)

"""Networks: images (timm), text (transformers), graphs (PyTorch Geometric), links, and the heads above them."""

"""Networks: for images (timm) and for graphs (PyTorch Geometric)."""

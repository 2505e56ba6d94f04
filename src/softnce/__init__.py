"""Noise contrastive estimation with soft targets."""

__version__ = "0.1.0"

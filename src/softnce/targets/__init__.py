"""Soft targets: points on the simplex of K classes, stored as labels, as pairs or as dense rows."""

from softnce.targets.soft_targets import Form, SoftTargets

__all__ = ["Form", "SoftTargets"]

"""The laboratory: everything that trains and judges the losses. Needs ``softnce[lab]``."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softnce.lab.estimator import SoftLabelClassifier

__all__ = ["SoftLabelClassifier"]


def __getattr__(name: str) -> Any:
    """Import the estimator when it is first used: scikit-learn takes long to import."""
    if name != "SoftLabelClassifier":
        raise AttributeError(f"module 'softnce.lab' has no attribute {name!r}")
    from softnce.lab.estimator import SoftLabelClassifier

    return SoftLabelClassifier

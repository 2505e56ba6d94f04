"""The paper's theory as code: bounds on mutual information, and the analysis of the gradient."""

from softnce.theory import dynamics, information

__all__ = ["dynamics", "information"]

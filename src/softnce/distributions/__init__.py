"""Distributions on the simplex behind the losses."""

from softnce.distributions.categorical import AveragedCategorical
from softnce.distributions.continuous_categorical import ContinuousCategorical

__all__ = ["AveragedCategorical", "ContinuousCategorical"]

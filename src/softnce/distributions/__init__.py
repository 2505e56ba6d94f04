"""Distributions on the simplex behind the losses."""

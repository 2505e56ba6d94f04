"""Shared by all tests: strategies for targets, and a quiet, reproducible hypothesis."""

import torch
from hypothesis import HealthCheck, settings

settings.register_profile("softnce", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("softnce")
torch.manual_seed(0)

"""Shared by all tests: a quiet, reproducible hypothesis, and processes that import the heavy packages once."""

import multiprocessing

import torch
from hypothesis import HealthCheck, settings

settings.register_profile("softnce", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("softnce")
torch.manual_seed(0)
multiprocessing.set_forkserver_preload(["softnce", "torch.distributed.fsdp"])

"""Shared by all tests: a quiet, reproducible hypothesis, and processes that import the heavy packages once."""

import multiprocessing

import torch
from hypothesis import HealthCheck, settings

from softnce.lab.experiment import parallel

settings.register_profile("softnce", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("softnce")
torch.manual_seed(0)
parallel.PRELOADED += ["softnce.lab.train.run", "torch.distributed.fsdp"]  # in a suite many processes use them
multiprocessing.set_forkserver_preload(parallel.PRELOADED)

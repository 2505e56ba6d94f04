"""Random numbers that depend only on a key, such as (seed, epoch, sample), in any process and at any time."""

import random

import numpy as np
import torch


def derived_seed(*key: int, bits: int = 63) -> int:
    """A seed that depends on all of ``key``: of 63 bits for torch, or of 32, which every generator takes."""
    wide = bits > 32
    state = np.random.SeedSequence(key).generate_state(1, np.uint64 if wide else np.uint32)
    return int(state[0]) >> ((64 if wide else 32) - bits)


def start_generators(*key: int) -> None:
    """Start the global random generators, which transforms draw from, from ``key``."""
    start = derived_seed(*key, bits=32)
    random.seed(start)
    np.random.seed(start)  # noqa: NPY002
    torch.default_generator.manual_seed(start)

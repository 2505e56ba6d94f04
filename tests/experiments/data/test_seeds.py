import random

import numpy as np
import torch

from experiments.data.seeds import derived_seed, start_generators


def test_seeds_keep_their_values():
    """Runs that are resumed or repeated with another version must draw the same numbers."""
    assert derived_seed(3, 7) == derived_seed(3, 7)
    assert [derived_seed(0, 0), derived_seed(3, 7, 1, 0)] == [7896617691693857887, 888946925548604815]
    assert [derived_seed(0, 0, bits=32), derived_seed(3, 7, bits=32)] == [2968811710, 2580024465]


def test_every_part_of_the_key_matters():
    keys = [(a, b) for a in range(20) for b in range(20)]
    for bits in (32, 63):
        found = {derived_seed(*key, bits=bits) for key in keys}
        assert len(found) == len(keys)
        assert max(found) < 2**bits


def drawn():
    return random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002


def test_global_generators_are_started():
    found = []
    for key in ((1, 2, 3), (1, 2, 3), (1, 2, 4)):
        start_generators(*key)
        found.append(drawn())
    assert found[0] == found[1] != found[2]

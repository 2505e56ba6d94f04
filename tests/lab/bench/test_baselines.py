"""The baselines are what they say."""

import subprocess
import sys

import pytest
import torch
from torch.nn import functional as F

from softnce.lab.bench import baselines

N, K, D = 7, 11, 5


def test_nt_xent_is_its_formula() -> None:
    torch.manual_seed(0)
    queries, keys = torch.randn(2, N, D, dtype=torch.float64)
    cosine = F.cosine_similarity(queries[:, None], keys[None], dim=2) / 0.3
    expected = torch.stack([cosine[i].logsumexp(0) - cosine[i, i] for i in range(N)]).mean()
    torch.testing.assert_close(baselines.nt_xent(queries, keys, 0.3), expected)


def test_published_candidates_begin_with_the_batch() -> None:
    torch.manual_seed(0)
    logits, candidates = torch.randn(N, K), torch.randn(2 * N, K).softmax(1)
    noise = torch.rand(K).softmax(0)
    loss = baselines.published_soft_target_info_nce(logits, candidates[:N], noise, 0.5, candidates)
    scores = (logits / 0.5 - noise.log()) @ candidates.t()
    torch.testing.assert_close(loss, (scores.logsumexp(1) - scores[:, :N].diagonal()).mean())


@pytest.mark.slow
def test_baselines_need_torch_alone() -> None:
    """The library's tests import them, and must run where the laboratory's packages are not installed."""
    missing = ["rich", "matplotlib", "jsonargparse", "yaml", "scipy", "sklearn", "lightning", "filelock"]
    program = f"""
import sys
for name in {missing}:
    if name != "filelock":  # torch itself may have it
        sys.modules[name] = None
import softnce.lab.bench.baselines
"""
    subprocess.run([sys.executable, "-c", program], check=True)

"""The trace counts what lives at the peak, no more and no less."""

import torch

from softnce.lab.experiment.memory import peak_of

MB = 1_000_000


def test_counts_what_lives_together() -> None:
    def step() -> None:
        a = torch.empty(MB, dtype=torch.uint8)
        b = torch.empty(2 * MB, dtype=torch.uint8)
        del b
        c = torch.empty(MB, dtype=torch.uint8)
        del a, c

    assert peak_of(step) == 3 * MB


def test_counts_gradients_but_not_inputs() -> None:
    x = torch.randn(MB // 4, requires_grad=True)

    def step() -> None:
        x.exp().sum().backward()
        x.grad = None

    assert 2 * MB <= peak_of(step) < 2 * MB + 1000  # what exp keeps and the gradient

"""Adagrad with one number per row of a table, the usual optimiser of large embedding tables."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class RowAdagrad(torch.optim.Optimizer):
    r"""Row-wise Adagrad for tables with sparse gradients.

    For every row r that the gradient g touches, :math:`v_r \mathrel{+}= \mathrm{mean}_j\, g_{rj}^2` and
    :math:`w_r \mathrel{-}= \mathrm{lr} \cdot g_r / (\sqrt{v_r} + \epsilon)`. State: K numbers for a table (K, d), where
    SparseAdam keeps 2·K·d.

    Args:
        params: tables (K, d) whose gradients are sparse.
        lr: learning rate.
        eps: ε.
    """

    def __init__(self, params: Iterable[Tensor], lr: float, eps: float = 1e-10) -> None:
        super().__init__(params, {"lr": lr, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for table in group["params"]:
                if table.grad is None:
                    continue
                state = self.state[table]
                if not state:
                    state["sum"] = table.new_zeros(len(table))
                gradient = table.grad.coalesce()
                rows, values = gradient.indices()[0], gradient.values()
                total = state["sum"][rows] + values.square().mean(1)
                state["sum"][rows] = total
                table.index_add_(0, rows, values / (total.sqrt() + group["eps"])[:, None], alpha=-group["lr"])

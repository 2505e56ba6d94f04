"""Row-wise Adagrad, the optimiser for the table of a label embedding head."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from softnce._checks import as_number


class RowAdagrad(torch.optim.Optimizer):
    """Adagrad with one number per row of a table, for sparse gradients.

    For every row r that the gradient g touches,

        v_r += mean_j g_rj²,    w_r −= lr · g_r / (√v_r + ε).

    A step costs the rows touched. State: K numbers for a table (K, d), where ``torch.optim.SparseAdam`` keeps 2·K·d and
    ``torch.optim.Adagrad`` K·d. In ``softnce study classes`` (10,000 classes, each seen ten times) the
    contrastive losses learned more with it than with SparseAdam, both at their best rates; its best rate was 3.

    Args:
        params: tables (K, d) whose gradients are sparse, such as ``[head.weight]`` of a
            :class:`~softnce.heads.LabelEmbeddingHead`.
        lr: learning rate.
        eps: ε.

    >>> from softnce import SoftTargetInfoNCE
    >>> from softnce.heads import LabelEmbeddingHead
    >>> head = LabelEmbeddingHead(16, 100_000)
    >>> optimiser = RowAdagrad([head.weight], lr=1.0)
    >>> head.loss(torch.randn(8, 16), torch.arange(8), SoftTargetInfoNCE()).backward()
    >>> optimiser.step()
    """

    def __init__(self, params: Iterable[Tensor], lr: float, eps: float = 1e-10) -> None:
        given = {"lr": lr, "eps": eps}
        defaults = {name: as_number(value, name, "a positive number") for name, value in given.items()}
        for name, value in defaults.items():
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} must be a positive number, got {value}")
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update the rows that the gradients touch; ``closure`` is not supported.

        Raises:
            TypeError: a gradient is not sparse.
        """
        if closure is not None:
            raise ValueError("closure is not supported: compute the gradients before the step")
        for group in self.param_groups:
            for table in group["params"]:
                if table.grad is None:
                    continue
                if not table.grad.is_sparse:
                    raise TypeError("RowAdagrad needs sparse gradients, got a dense one: use torch.optim.Adagrad")
                state = self.state[table]
                if not state:
                    state["sum"] = table.new_zeros(len(table))
                gradient = table.grad.coalesce()
                rows, values = gradient.indices()[0], gradient.values()
                total = state["sum"][rows] + values.square().mean(1)
                state["sum"][rows] = total
                table.index_add_(0, rows, values / (total.sqrt() + group["eps"])[:, None], alpha=-group["lr"])

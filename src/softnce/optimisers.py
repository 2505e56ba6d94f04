"""Row-wise Adagrad, the optimiser for the table of a label embedding head."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from softnce._checks import as_number, as_positive
from softnce._precision import at_least_float32


class RowAdagrad(torch.optim.Optimizer):
    """Adagrad with one number per row of a table, for sparse gradients.

    For every row r that the gradient g touches,

        v_r += mean_j g_rj²,    w_r −= lr · g_r / (√v_r + ε).

    A step costs the rows touched. State: K numbers for a table (K, d), where ``torch.optim.SparseAdam`` keeps 2·K·d and
    ``torch.optim.Adagrad`` K·d. A parameter whose first gradient is dense, such as a head's bias, gets ordinary Adagrad
    with one number per entry. State and update are float32 for half-precision parameters.

    Args:
        params: parameters or groups of them, such as ``head.parameters()`` of a
            :class:`~softnce.heads.LabelEmbeddingHead`.
        lr: learning rate. Start at 1 and try 3 and 10: a row's first step moves each of its entries by about ``lr``
            whatever the gradient's scale, and the fewer views a class gets, the larger the best rate.
        eps: ε.
        weight_decay: L2 penalty, added to the gradient of the rows touched only.

    >>> from softnce import SoftTargetInfoNCE
    >>> from softnce.heads import LabelEmbeddingHead
    >>> head = LabelEmbeddingHead(16, 100_000, bias=True)
    >>> optimiser = RowAdagrad(head.parameters(), lr=1.0)
    >>> head.loss(torch.randn(8, 16), torch.arange(8), SoftTargetInfoNCE()).backward()
    >>> optimiser.step()
    """

    def __init__(self, params: Iterable[Any], lr: float = 1.0, eps: float = 1e-10, weight_decay: float = 0.0) -> None:
        defaults = {"lr": as_positive(lr, "lr"), "eps": as_positive(eps, "eps")}
        defaults["weight_decay"] = as_number(weight_decay, "weight_decay", "a number of at least 0")
        if not 0 <= defaults["weight_decay"] < torch.inf:
            raise ValueError(f"weight_decay must be a number of at least 0, got {weight_decay}")
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update what the gradients touch; returns the value of ``closure``, which is called first."""
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return value

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        gradient, dtype = parameter.grad, at_least_float32(parameter.dtype)
        assert gradient is not None
        state = self.state[parameter]
        if not state:
            shape = parameter.shape[:1] if gradient.is_sparse else parameter.shape
            state["sum"] = torch.zeros(shape, dtype=dtype, device=parameter.device)
        total: Tensor = state["sum"].to(parameter.device)  # a model may move after its first step
        state["sum"] = total
        rows = None
        if gradient.is_sparse:
            gradient = gradient.to(dtype).coalesce()  # half precision would round the sum of a row's gradients
            rows, values = gradient.indices()[0], gradient.values()
            weight, sums = parameter.index_select(0, rows).to(dtype), total[rows]
        else:
            values, weight, sums = gradient.to(dtype), parameter.to(dtype), total
        if group["weight_decay"]:
            values = values.add(weight, alpha=group["weight_decay"])
        by_row = total.dim() < parameter.dim()
        sums = sums + (values.square().flatten(1).mean(1) if by_row else values.square())
        scale = sums.sqrt().add_(group["eps"])
        if by_row:
            scale = scale.view(-1, *[1] * (parameter.dim() - 1))
        weight = weight.addcdiv(values, scale, value=-group["lr"]).to(parameter.dtype)
        if rows is None:
            total.copy_(sums)
            parameter.copy_(weight)
        else:
            total.index_copy_(0, rows, sums)
            parameter.index_copy_(0, rows, weight)

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As ``torch.optim.Optimizer``, which alone would round the state to the parameters' dtype."""
        super().load_state_dict(state_dict)
        saved = [number for group in state_dict["param_groups"] for number in group["params"]]
        mine = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, parameter in zip(saved, mine, strict=True):
            if number in state_dict["state"]:
                total = state_dict["state"][number]["sum"]
                self.state[parameter]["sum"] = total.to(parameter.device, at_least_float32(parameter.dtype), copy=True)

"""Row-wise Adagrad, the optimiser for the table of a label embedding head."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from softnce._inputs import as_not_negative, as_positive, at_least_float32


class RowAdagrad(torch.optim.Optimizer):
    """Adagrad with one number per row of a table, for sparse gradients: ``RowAdagrad(head.parameters(), lr=1.0)``.

    For every row r that the gradient g touches, v_r += mean_j g_rj² and w_r −= lr·g_r / (√v_r + ε).

    A step costs the rows touched. State: K numbers for a table (K, d), where ``torch.optim.SparseAdam`` keeps 2·K·d.
    A parameter whose first gradient is dense, such as a head's bias, gets ordinary Adagrad with one number per entry.
    State and update are float32 for half-precision parameters.

    Args:
        lr: learning rate. Start at 1 and try 3 and 10: a row's first step moves each of its entries by about ``lr``
            whatever the gradient's scale, and the fewer views a class gets, the larger the best rate.
        weight_decay: L2 penalty, added to the gradient of the rows touched only.
    """

    def __init__(self, params: Iterable[Any], lr: float = 1.0, eps: float = 1e-10, weight_decay: float = 0.0) -> None:
        decay = as_not_negative(weight_decay, "weight_decay")
        super().__init__(params, {"lr": as_positive(lr, "lr"), "eps": as_positive(eps, "eps"), "weight_decay": decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update what the gradients touch; returns the value of ``closure``, which is called first."""
        value = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, **group)
        return value

    def _update(self, parameter: Tensor, lr: float, eps: float, weight_decay: float, **_: Any) -> None:
        gradient, dtype = parameter.grad, at_least_float32(parameter.dtype)
        assert gradient is not None
        state = self.state[parameter]
        if not state:
            shape = parameter.shape[:1] if gradient.is_sparse else parameter.shape
            state["sum"] = torch.zeros(shape, dtype=dtype, device=parameter.device)
        total = state["sum"] = state["sum"].to(parameter.device)  # a model may move after its first step
        rows = None
        if gradient.is_sparse:
            gradient = gradient.to(dtype).coalesce()  # half precision would round the sum of a row's gradients
            rows, values = gradient.indices()[0], gradient.values()
            weight, sums = parameter.index_select(0, rows).to(dtype), total[rows]
        else:
            values, weight, sums = gradient.to(dtype), parameter.to(dtype), total
        if weight_decay:
            values = values.add(weight, alpha=weight_decay)
        by_row = total.dim() < parameter.dim()
        sums = sums + (values.square().flatten(1).mean(1) if by_row else values.square())
        scale = sums.sqrt().add_(eps)
        if by_row:
            scale = scale.view(-1, *[1] * (parameter.dim() - 1))
        weight = weight.addcdiv(values, scale, value=-lr).to(parameter.dtype)
        for old, new in ((total, sums), (parameter, weight)):
            old.copy_(new) if rows is None else old.index_copy_(0, rows, new)

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

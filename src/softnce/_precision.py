"""Scores are sums of products, and noise is a constant: neither may be rounded to half precision."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Self

import torch
from torch import Tensor, nn


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def exact_dtype(device: torch.device) -> torch.dtype:
    """The dtype of weights that come from Python numbers or counts: float64 if the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def autocast_is_on(device: torch.device) -> bool:
    """Whether autocast is on for this device; tensors without data (``meta``) have none."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Autocast switched off, where it is on."""
    is_on = autocast_is_on(device)
    return torch.autocast(device.type, enabled=False) if is_on else nullcontext()


class KeepsPrecision(nn.Module):
    """A module whose buffers keep their precision when the model around it is cast to half: they are constants."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in before.items():
            after = self._buffers[name]
            if buffer is not None and after is not None and after.dtype != buffer.dtype:
                self._buffers[name] = buffer.to(after.device)
        return self

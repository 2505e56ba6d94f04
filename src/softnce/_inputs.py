"""Inputs: checked where they enter, and computed with in float32 or better.

The host knows a shape, but not a value of a CUDA tensor, for which it would wait. Values on an accelerator are checked
in the first calls only, and never while a CUDA graph is captured. ``torch.compile`` and tensors that hold no data (fake
and functional tensors) or many at once (inside ``torch.func.vmap``) skip value checks.
"""

import operator
from array import array
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from numbers import Real
from typing import Any, Self, SupportsIndex

import torch
from torch import Tensor, nn
from torch.nn import Parameter

_enabled = _sums = True
FIRST = 8  # tensors of one kind on an accelerator whose values are checked; mistakes mostly show in the first
_seen: Counter[tuple[torch.dtype, torch.Size]] = Counter()


class set_validation:
    """Switch the value checks on or off, as a call or for the length of a ``with`` block.

    Args:
        enabled: whether values are checked at all.
        sums: whether probabilities must sum to 1. ``set_validation(True, sums=False)`` keeps every other check, for
            frameworks that try a loss on made-up targets first, such as Keras, whose dummy batch holds rows of ones.

    >>> _ = set_validation(False)               # from here on
    >>> with set_validation(True):              # in here
    ...     pass
    >>> _ = set_validation(True)

    On an accelerator the first eight tensors of a dtype and width are checked; ``set_validation(True)`` counts anew.
    Shapes, dtypes, lengths and Python numbers are always checked. Without checks, wrong values give wrong losses: a
    zero in ``noise_probs``, for example, gives NaN.
    """

    def __init__(self, enabled: bool, *, sums: bool = True) -> None:
        global _enabled, _sums
        self.previous = _enabled, _sums
        _enabled, _sums = check_flag(enabled, "enabled"), check_flag(sums, "sums")
        _seen.clear()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        global _enabled, _sums
        _enabled, _sums = self.previous


def values_are_checked(*tensors: Tensor | None) -> bool:
    """Whether the values of these tensors are to be checked: checks are on, and reading is cheap or new."""
    if not _enabled or not values_are_readable(*tensors):
        return False
    kinds = [(t.dtype, t.shape[1:]) for t in tensors if t is not None and not t.is_cpu]
    if not kinds:
        return True
    _seen.update(kinds)
    return all(_seen[kind] <= FIRST for kind in kinds)


def values_are_readable(*tensors: Tensor | None) -> bool:
    """Whether the values of these tensors can be read on the host now."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    for t in tensors:
        if t is None:
            continue
        is_captured = t.is_cuda and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
        if is_captured or t.is_meta or type(t) not in (Tensor, Parameter):
            return False
    return True


def check_tensor(value: object, name: str) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")


def as_tensor(value: object, name: str) -> Tensor:
    """A tensor as it is; an array of numpy, pandas or others (by ``__array__``) or a list of numbers converted."""
    if isinstance(value, Tensor):
        return value
    try:
        if hasattr(value, "__array__"):
            found = value.__array__()
            if not found.flags.writeable or any(stride < 0 for stride in found.strides):  # torch shares neither
                found = found.copy()
            return torch.as_tensor(found)
        if isinstance(value, (list, tuple, range, array)):
            return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        reason = str(error).partition("\n")[0].partition(". The only")[0]
        got = type(value).__name__
        raise TypeError(f"{name} must hold numbers in rows of one length, got {got}: {reason}") from None
    raise TypeError(f"{name} must be a tensor, an array or a list, got {type(value).__name__}")


def as_whole(value: object, name: str, least: int | None = 1) -> int:
    """A whole number of Python, numpy or torch, of at least ``least``, as int."""
    if type(value) is int and (least is None or value >= least):
        return value
    needed = "a whole number" if least is None else f"a whole number of at least {least}"
    try:
        if isinstance(value, bool) or not isinstance(value, SupportsIndex):
            raise TypeError
        number = operator.index(value)
    except TypeError:  # a tensor or an array that is not one integer, too
        raise TypeError(f"{name} must be {needed}, got {value!r}") from None
    if least is not None and number < least:
        raise ValueError(f"{name} must be {needed}, got {number}")
    return number


def check_flag(value: object, name: str) -> bool:
    """True or False, of Python or numpy; a number or a tensor here is mostly an argument in the wrong place."""
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise TypeError(f"{name} must be True or False, got {value!r}")


def one_of(*choices: str | bool | None) -> Callable[[Any, str], Any]:
    """A check that a value is one of these, which it returns."""

    def check(value: Any, name: str) -> Any:
        if not (value is None or isinstance(value, (str, bool))) or value not in choices:
            named = ", ".join(map(str, choices[:-1]))
            raise ValueError(f"{name} must be one of {named} or {choices[-1]}, got {value!r}")
        return value

    return check


def check_generator(generator: object) -> None:
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator or None, got {type(generator).__name__}")


def number(needed: str, fits: Callable[[float], bool] = lambda _: True) -> Callable[[Any, str], float]:
    """A check for a Python or numpy number that ``fits``, which it returns as float."""

    def check(value: Any, name: str) -> float:
        if isinstance(value, bool) or not isinstance(value, (float, Real)) or not fits(float(value)):
            raise ValueError(f"{name} must be {needed}, got {value!r}")
        return float(value)

    return check


as_positive = number("a positive number", lambda x: 0 < x < torch.inf)
as_not_negative = number("a finite number of at least 0", lambda x: 0 <= x < torch.inf)
as_share = number("a number in [0, 1]", lambda x: 0 <= x <= 1)


def check_floating(value: object, name: str, shape: str) -> None:
    """``value`` must be a floating point tensor of a shape such as "(N, K)"; "..." is any number of dimensions."""
    check_tensor(value, name)
    assert isinstance(value, Tensor)
    sizes = shape.strip("()").replace(" ", "").strip(",").split(",")
    named = len(sizes) - ("..." in sizes)
    fits = value.dim() == named or (named < len(sizes) and value.dim() > named)
    if not fits or not value.is_floating_point():
        raise ValueError(f"{name} must be floating point {shape}, got {value.dtype} of shape {tuple(value.shape)}")


def check_unit_interval(value: Tensor, name: str) -> None:
    """Every entry must lie in [0, 1]; NaN does not."""
    if values_are_checked(value) and not bool(((value >= 0) & (value <= 1)).all()):
        raise ValueError(f"{name} must lie in [0, 1], got values from {value.min():.4g} to {value.max():.4g}")


def check_weights(value: Tensor, name: str) -> None:
    if values_are_checked(value) and not bool(((value >= 0) & (value < torch.inf)).all()):
        raise ValueError(f"{name} must hold finite numbers that are not negative")


def check_distribution(p: Tensor, name: str, num_classes: int | None = None) -> None:
    """``p`` must be a (K,) tensor of probabilities: finite, not negative, summing to 1."""
    check_floating(p, name, "(K,)")
    if num_classes is not None and len(p) != num_classes:
        raise ValueError(f"{name} has {len(p)} entries, but there are {num_classes} classes")
    if values_are_checked(p):
        if len(p) == 0:
            raise ValueError(f"{name} is empty: probabilities (K,) of at least one class are needed")
        check_rows_sum_to_one(p[None], name)


def check_places(places: Tensor, shape: tuple[int, ...], size: int, name: str, least: int = 0) -> None:
    """Integers of that shape, each in [least, size)."""
    check_tensor(places, name)
    wrong = places.dtype == torch.bool or places.is_complex() or places.is_floating_point()
    if wrong or places.shape != shape:
        got = f"{places.dtype} of shape {tuple(places.shape)}"
        raise ValueError(f"{name} must hold integers of shape {tuple(shape)}, got {got}")
    if places.numel() and values_are_checked(places):
        low, high = map(int, places.aminmax())
        if low < least or high >= size:
            raise ValueError(f"{name} must lie in {least} … {size - 1}, got {low} … {high}")


def sum_slack(dtype: torch.dtype) -> float:
    """How far from 1 probabilities of a dtype may sum, by rounding."""
    return 1e-3 if dtype in (torch.float32, torch.float64) else 2e-2


def check_rows_sum_to_one(rows: Tensor, name: str, advice: str = "") -> None:
    """Each row of ``rows`` must be finite, not negative and sum to 1 within the rounding of its dtype.

    ``advice`` ends the error about a sum.
    """
    if rows.numel() == 0:
        return
    total = rows.sum(-1, dtype=torch.float64 if rows.dtype == torch.float64 else torch.float32)
    off = (total - 1).abs().amax() if _sums else total.isfinite().logical_not().any()
    low = rows.amin()
    if bool(off <= sum_slack(rows.dtype)) and bool(low >= 0):  # both false for NaN
        return
    if not bool(rows.isfinite().all()):
        raise ValueError(f"{name} holds NaN or infinite values; probabilities are needed")
    if bool(low < 0):
        raise ValueError(f"{name} holds the negative value {low.item():.4g}; probabilities are needed, not logits")
    worst = total.flatten()[(total - 1).abs().flatten().argmax()].item()
    raise ValueError(f"{name} must sum to 1 over the classes, got a sum of {worst:.6g}{advice}")


def check_labels(labels: Tensor, num_classes: int, name: str, ignore_index: int | None = None) -> bool:
    """``labels`` must be integers in [0, num_classes), or ``ignore_index`` where one is given.

    Returns whether some may be ignored: False only where it was seen that none is.
    """
    check_tensor(labels, name)
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(f"{name} must hold integer labels, got {labels.dtype}")
    if labels.numel() == 0 or not values_are_checked(labels):
        return True
    labels = labels.long()  # an unsigned label would wrap around at a negative ignore_index
    low, high = map(int, labels.aminmax())
    if low >= 0 and high < num_classes:
        return ignore_index is not None and 0 <= ignore_index < num_classes
    is_wrong = (labels < 0) | (labels >= num_classes)
    if ignore_index is not None:
        is_wrong &= labels != ignore_index
    if bool(is_wrong.any()):
        ignored = "" if ignore_index is None else f" (or ignore_index = {ignore_index})"
        wrong = labels[is_wrong].amin()
        raise ValueError(f"{name} holds the label {wrong}; labels are in [0, {num_classes}){ignored}")
    return True


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

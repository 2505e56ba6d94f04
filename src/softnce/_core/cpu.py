"""The compiled rows of ``cpu.c``, found beside this file if a C compiler was there at installation, else not used.

SOFTNCE_CPU=off turns them off; ``baseline`` and ``avx2`` limit the instructions they use.
"""

import ctypes
import os
import struct
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import Parameter

from softnce._core.build import HERE, NAME
from softnce._core.contrast import Alpha, Counted, Expected, SoftTarget, Sum

ERRORS = {1: "targets", 2: "own", 3: "exclude", 4: "candidates"}
_CALL = struct.Struct("11q2d8q5qd5qd5qd6q")
_NO_ROWS = (0, 0, 0, 0, 0, 0.0)
Losses = tuple[Tensor, Tensor | None, Tensor | None]
"""Losses (N,) or their total, and its gradients for logits and temperature."""


def _load() -> ctypes.CDLL | None:
    if os.environ.get("SOFTNCE_CPU") == "off":
        return None
    try:
        found = ctypes.CDLL(str(HERE / NAME))
    except OSError:
        return None
    found.softnce_rows.argtypes, found.softnce_rows.restype = [ctypes.c_char_p], ctypes.c_int64
    numbers, pointers = [ctypes.c_int64] * 4, [ctypes.c_void_p] * 2
    found.softnce_recognise.argtypes = [ctypes.c_void_p, *numbers, *pointers, ctypes.POINTER(ctypes.c_double)]
    found.softnce_class_mass.argtypes = [ctypes.c_void_p, *numbers[:3], *pointers]
    found.softnce_class_mass.restype = None
    found.softnce_recognise.restype = found.softnce_level.restype = ctypes.c_int64
    return found


library = _load()
"""The compiled rows, or None."""


class _Pointers:
    """Addresses of tensors in one dtype, which live as long as this object."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.kept: list[Tensor] = []

    def __call__(self, tensor: Tensor | None, dtype: torch.dtype | None = None) -> int:
        if tensor is None:
            return 0
        dtype = dtype or self.dtype
        if tensor.dtype is not dtype or not tensor.is_contiguous():
            tensor = tensor.to(dtype).contiguous()
            self.kept.append(tensor)
        return tensor.data_ptr()

    def rows(self, alpha: Alpha | None) -> tuple[int, int, int, int, int, float]:
        if alpha is None:
            return _NO_ROWS
        index, mass = alpha.index, alpha.mass
        masses, one = (mass, 0.0) if isinstance(mass, Tensor) else (None, mass)
        size = 0 if index is None else index.shape[1]
        return self(index, torch.int64), self(alpha.weight), self(masses), self(alpha.dist), size, one


def can_run(problem: Sum, logits: Tensor, tensors: list[Tensor]) -> bool:
    """Whether the compiled rows take this call: values on the CPU, and pairs where candidates are scored."""
    if library is None or logits.dtype.itemsize == 1:
        return False
    if isinstance(problem, SoftTarget) and (problem.targets.index is None or problem.candidates.index is None):
        return False
    return all(t.is_cpu and (type(t) is Tensor or type(t) is Parameter) for t in (logits, *tensors))


def run(
    problem: Sum,
    logits: Tensor,
    temperature: float | Tensor,
    mask: Tensor | None,
    row_weight: Tensor | None,
    scale: float,
    wants: tuple[bool, bool],
    wants_total: bool,
) -> Losses:
    """The losses (N,) times ``row_weight``, or their sum times ``scale``, and the gradients of that sum."""
    assert library is not None
    n, classes = logits.shape
    dtype = torch.float64 if logits.dtype is torch.float64 else torch.float32
    x = logits.detach()
    x = x if x.dtype is dtype else x.to(dtype)
    x = x if x.stride(1) == 1 and x.stride(0) >= classes else x.contiguous()
    wants_gradient = wants[0] or wants[1]
    gradient = torch.empty(n, classes, dtype=dtype, device="cpu") if wants_gradient else None
    losses = None if wants_total else torch.empty(n, dtype=dtype, device="cpu")
    of_temperature = torch.empty(n, dtype=dtype, device="cpu") if wants[1] else None
    total = torch.empty((), dtype=dtype, device="cpu") if wants_total else None
    at = _Pointers(dtype)
    packed = _CALL.pack(
        _kind(problem), dtype.itemsize * 8, n, classes, x.stride(0), torch.get_num_threads(),
        x.data_ptr(), at(gradient), at(losses), at(of_temperature), at(total),
        1 / float(temperature), scale, at(problem.log_noise), *_parts(problem, at, row_weight, mask),
    )  # fmt: skip
    error = library.softnce_rows(packed)
    if error:
        _raise(error, problem, classes)
    if gradient is not None and gradient.dtype is not logits.dtype:
        gradient = gradient.to(logits.dtype)
    summed = None
    if of_temperature is not None and isinstance(temperature, Tensor):
        summed = of_temperature.sum().to(temperature.dtype)
    value = losses if total is None else total
    assert value is not None
    return value, gradient if wants[0] else None, summed


def _kind(problem: Sum) -> int:
    return 0 if isinstance(problem, Counted) else 1 if isinstance(problem, Expected) else 2


def _parts(
    problem: Sum, at: Callable[..., int], row_weight: Tensor | None, mask: Tensor | None
) -> tuple[int | float, ...]:
    """The fields of a call from ``counts`` on, in the order of ``cpu.c``."""
    assert isinstance(at, _Pointers)
    weight, ignored = at(row_weight), at(mask, torch.bool)
    target = at.rows(problem.targets)
    if isinstance(problem, Counted):
        counts = at(problem.counts, torch.float64)
        fields = (counts, at(problem.class_weight), weight, ignored, 0, 0, 1 if problem.adds_own else 0)
        return *fields, *target, *_NO_ROWS, *_NO_ROWS, 0, 0, 0, 0, 0, 0
    if isinstance(problem, Expected):
        own = None if problem.drop_own_classes else problem.own
        flags = 4 if problem.drop_own_classes else 2 if own is not None else 0
        mine = target if own is problem.targets else at.rows(own)
        size = 0 if problem.exclude is None else problem.exclude.shape[1]
        counts, exclude = at(problem.counts, torch.float64), at(problem.exclude, torch.int64)
        return counts, 0, weight, ignored, exclude, size, flags, *target, *mine, *_NO_ROWS, 0, 0, 0, 0, 0, 0
    assert isinstance(problem, SoftTarget)
    others = target if problem.candidates is problem.targets else at.rows(problem.candidates)
    mask_of_others, place = at(problem.candidate_mask, torch.bool), at(problem.own, torch.int64)
    ours, theirs = at(problem.signatures, torch.float64), at(problem.candidate_signatures, torch.float64)
    more = (len(problem.candidates), mask_of_others, place, ours, theirs, int(problem.shares_background))
    return 0, 0, weight, ignored, 0, 0, 0, *target, *_NO_ROWS, *others, *more


def _raise(error: int, problem: Sum, classes: int) -> None:
    what, row = error >> 48, (error & (1 << 48) - 1) - 1
    if what == 6:
        raise MemoryError("no memory for the rows of a loss")
    if what == 5:
        assert isinstance(problem, SoftTarget)
        assert problem.own is not None
        raise ValueError(f"own must be in [0, {len(problem.candidates)}), got {int(problem.own[row])} in row {row}")
    parts = {1: problem.targets, 2: getattr(problem, "own", None), 4: getattr(problem, "candidates", None)}
    index = problem.exclude if what == 3 and isinstance(problem, Expected) else parts[what].index  # type: ignore[union-attr]
    assert index is not None
    raise ValueError(f"{ERRORS[what]} must be classes in [0, {classes}), got {index[row].tolist()} in row {row}")


def recognise(dense: Tensor, most: int) -> tuple[Tensor, Tensor | None, float] | None:
    """Dense rows (N, K) as ``(index, weight, smoothing)``: at most ``most`` peaks on a floor that all rows share.

    ``weight`` (N, S) is the part above the floor, highest first, and None for labels. None if the rows are not that.
    """
    most = min(most, dense.shape[1] - 1)
    if library is None or dense.dtype not in (torch.float32, torch.float64) or most < 1 or len(dense) == 0:
        return None
    dense = dense.detach().contiguous()
    n, classes = dense.shape
    index = torch.empty(n, most, dtype=torch.int64, device="cpu")
    weight = torch.empty(n, most, dtype=dense.dtype, device="cpu")
    floor = ctypes.c_double()
    bits = dense.dtype.itemsize * 8
    found = library.softnce_recognise(
        dense.data_ptr(), bits, n, classes, most, index.data_ptr(), weight.data_ptr(), ctypes.byref(floor)
    )
    mass = floor.value * classes
    if not found or mass > 1 + 1e-3:
        return None
    mass = min(1.0, mass)
    index, weight = index[:, :found].contiguous(), weight[:, :found].contiguous()
    rounding = 4 * torch.finfo(dense.dtype).eps
    is_label = found == 1 and bool(((weight - (1 - mass)).abs() <= rounding).all())
    return index, None if is_label else weight, mass


def class_mass(dense: Tensor, mask: Tensor | None = None) -> Tensor:
    """The sum (K,) in float64 of dense rows (N, K) on a CPU that ``mask`` (N,) keeps."""
    if library is None or dense.dtype not in (torch.float32, torch.float64) or not dense.is_cpu:
        return (dense if mask is None else dense[mask]).sum(0, dtype=torch.float64)
    at = _Pointers(dense.dtype)
    total = torch.zeros(dense.shape[1], dtype=torch.float64, device="cpu")
    n, classes = dense.shape
    bits = dense.dtype.itemsize * 8
    library.softnce_class_mass(at(dense), bits, n, classes, at(mask, torch.bool), total.data_ptr())
    return total

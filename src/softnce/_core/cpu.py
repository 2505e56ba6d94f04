"""The compiled rows of ``cpu.c``, found beside this file if a C compiler was there at installation, else not used.

SOFTNCE_CPU=off turns them off; ``baseline`` and ``avx2`` limit the instructions they use.
"""

import ctypes
import os
import struct

import torch
from torch import Tensor
from torch.nn import Parameter

from softnce._core.build import HERE, NAME
from softnce._core.contrast import Alpha, Sum

_CALL = struct.Struct("11q2d8q5qd5qd5qd6q")
_NO_ROWS = (0, 0, 0, 0, 0, 0.0)


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
    if problem.candidates is not None and (problem.targets.index is None or problem.candidates.index is None):
        return False
    return all(t.is_cpu and (type(t) is Tensor or type(t) is Parameter) for t in (logits, *tensors))


def run(
    problem: Sum, logits: Tensor, upstream: Tensor | float, wants: tuple[bool, bool]
) -> tuple[Tensor, tuple[Tensor | None, Tensor | None]]:
    """The losses (N,), or their sum for an ``upstream`` gradient of one number, and the gradients that are wanted."""
    assert library is not None
    row_weight, scale = problem.row_weight, 1.0
    if isinstance(upstream, Tensor) and upstream.dim():
        row_weight = upstream if row_weight is None else upstream * row_weight
    else:
        scale = float(upstream)
    n, classes = logits.shape
    dtype, temperature = torch.float64 if logits.dtype is torch.float64 else torch.float32, problem.temperature
    x = logits.detach()
    x = x if x.dtype is dtype else x.to(dtype)
    x = x if x.stride(1) == 1 and x.stride(0) >= classes else x.contiguous()
    gradient = of_temperature = None
    if wants[0] or wants[1]:
        is_free = problem.overwrites and not wants[1] and x.is_contiguous()  # that of the temperature reads x again
        gradient = x if is_free else x.new_empty((n, classes))
    if wants[1]:
        of_temperature = x.new_empty(n)
    value = x.new_empty(() if problem.reduced else n)
    at, exact = _Pointers(dtype), torch.float64
    address, target, own, others = value.data_ptr(), at.rows(problem.targets), problem.own, problem.candidates
    packed = _CALL.pack(
        problem.kind, dtype.itemsize * 8, n, classes, x.stride(0), torch.get_num_threads(), x.data_ptr(),
        at(gradient), 0 if problem.reduced else address, at(of_temperature), address if problem.reduced else 0,
        1 / float(temperature), scale, at(problem.log_noise),
        at(problem.counts, exact), at(problem.class_weight), at(row_weight), at(problem.mask, torch.bool),
        at(problem.exclude, torch.int64), 0 if problem.exclude is None else problem.exclude.shape[1],
        1 * problem.adds_own + 2 * (own is not None) + 4 * problem.drop_own_classes,
        *target, *(target if own is problem.targets else at.rows(own)),
        *(target if others is problem.targets else at.rows(others)), 0 if others is None else len(others),
        at(problem.candidate_mask, torch.bool), at(problem.place, torch.int64),
        at(problem.signatures, exact), at(problem.candidate_signatures, exact), problem.shares_background,
    )  # fmt: skip
    error = library.softnce_rows(packed)
    if error:
        _raise(error, problem, classes)
    if gradient is not None and gradient.dtype is not logits.dtype:
        gradient = gradient.to(logits.dtype)
    summed = of_temperature
    if of_temperature is not None and isinstance(temperature, Tensor):
        summed = of_temperature.sum().to(temperature.dtype)
    return value, (gradient if wants[0] else None, summed)


def _raise(error: int, problem: Sum, classes: int) -> None:
    """Names the argument and the row: ``what << 48 | row + 1``."""
    what, row = error >> 48, (error & (1 << 48) - 1) - 1
    if what == 6:
        raise MemoryError("no memory for the rows of a loss")
    if what == 5:
        place, others = problem.place, problem.candidates
        raise ValueError(f"own must be in [0, {len(others)}), got {int(place[row])} in row {row}")  # type: ignore[arg-type,index]
    name = ("targets", "own", "exclude", "candidates")[what - 1]
    part = getattr(problem, name)
    index = part if isinstance(part, Tensor) else part.index
    raise ValueError(f"{name} must be classes in [0, {classes}), got {index[row].tolist()} in row {row}")


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

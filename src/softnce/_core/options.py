"""The options of the losses, each declared once: name, type, default, one line of documentation and check.

A loss takes the options of one of these dictionaries; :func:`takes` shows them in its signature and its docstring,
:func:`checked` checks the values given. To add an option to all contrastive losses, declare it in :class:`Contrast` and
use it in the line of ``functional.py`` that needs it.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, TypeVar, get_args, get_type_hints, is_typeddict

import torch
from torch import Tensor

from softnce._inputs import (
    as_positive,
    as_share,
    as_whole,
    check_flag,
    check_tensor,
    check_weights,
    one_of,
    values_are_checked,
)
from softnce.candidates import Candidates
from softnce.draws import Draw
from softnce.targets import SoftTargets

Reduction = Literal["mean", "sum", "none"]
Negatives = Literal["mean", "drawn"]
Distributed = Literal["mean", "sum", False]
Check = Callable[[Any, str], Any]
F = TypeVar("F", bound=Callable[..., Any])


def positive(value: float | Tensor, name: str) -> float | Tensor:
    """A positive number, or a tensor of one."""
    if not isinstance(value, Tensor):
        return as_positive(value, name)
    if value.numel() != 1:
        raise ValueError(f"{name} must be one number, got a tensor of shape {tuple(value.shape)}")
    if values_are_checked(value) and not float(value.detach()) > 0:
        raise ValueError(f"{name} must be positive, got {float(value.detach())}")
    return value


def weights(value: Tensor | None, name: str) -> Tensor | None:
    """Finite numbers, none negative, as a tensor (K,)."""
    if value is None:
        return None
    check_tensor(value, name)
    if not value.is_floating_point() or value.dim() != 1:
        raise ValueError(f"{name} must be floating point of shape (K,), got {value.dtype} of {tuple(value.shape)}")
    check_weights(value, name)
    return value


def instance(*kinds: type, needed: str) -> Check:
    """A check for an object of one of these classes, or None."""

    def check(value: Any, name: str) -> Any:
        if value is not None and not isinstance(value, kinds):
            raise TypeError(f"{name} must be {needed} or None, got {type(value).__name__}")
        return value

    return check


def chunk(value: int | None, name: str) -> int | None:
    return None if value is None else as_whole(value, name)


def ddp(value: Any, name: str) -> Distributed:
    found: Distributed = one_of("mean", "sum", False)("mean" if value is True else value, name)
    return found


proposals = instance(Candidates, SoftTargets, needed="a softnce.Candidates, such as NoiseCandidates(8), or SoftTargets")
drawing = instance(Draw, needed="one of softnce.draws")
randomness = instance(torch.Generator, needed="a torch.Generator")
reduced = one_of(*get_args(Reduction))
whole = partial(as_whole, least=None)


class Option(NamedTuple):
    """Default, documentation and check of one option. ``check(value, name)`` returns the value to use."""

    default: Any
    doc: str
    check: Check = instance(object, needed="anything")


class Common(TypedDict, total=False):
    temperature: Annotated[float | Tensor, Option(1.0, "τ, a positive number, or an nn.Parameter to learn.", positive)]
    reduction: Annotated[Reduction, Option("mean", '"mean" (weighted, of rows not ignored), "sum" or "none".', reduced)]
    class_weight: Annotated[
        Tensor | None,
        Option(None, "w (K,): cross-entropy weighs classes, a contrast weighs rows by Σ_k α_k·w_k.", weights),
    ]
    ignore_index: Annotated[int, Option(-100, "label of rows with loss 0 that are no candidates either.", whole)]


class Smoothed(Common, total=False):
    label_smoothing: Annotated[
        float, Option(0.0, "ε in [0, 1], moves targets (and η, where labels are drawn) towards uniform.", as_share)
    ]


class Contrast(Common, total=False):
    candidates: Annotated[
        Candidates | SoftTargets | None,
        Option(None, "contrasted targets, see softnce.candidates; None: the default of the loss.", proposals),
    ]
    chunk_size: Annotated[int | None, Option(None, "rows at a time, by default as many as the cache holds.", chunk)]


class InfoNCE(Contrast, total=False):
    drop_own_classes: Annotated[bool, Option(False, "leave candidates of the row's own class out.", check_flag)]


class SoftDistribution(Contrast, Smoothed, total=False):
    remove_accidental_hits: Annotated[
        bool, Option(False, "leave out other candidates that equal the row's own target: an (N, M) mask.", check_flag)
    ]


class SoftTarget(SoftDistribution, total=False):
    draw: Annotated[
        Draw | None, Option(None, "how a soft target becomes α, see softnce.draws; None: it stays as it is.", drawing)
    ]


class Expected(Contrast, Smoothed, total=False):
    negatives: Annotated[
        Negatives | None,
        Option(
            None,
            '"mean": candidates count with all their classes; "drawn": one label is drawn from each; '
            'None: "mean" from logits, "drawn" from a table.',
            one_of("mean", "drawn", None),
        ),
    ]
    drop_own_classes: Annotated[
        bool, Option(False, "leave every class on which the row's target has weight out of its negatives.", check_flag)
    ]


class Ranks(TypedDict, total=False):
    distributed: Annotated[
        Distributed,
        Option("mean", 'gradients of ranks are averaged (DDP), added up ("sum") or not shared (False).', ddp),
    ]
    process_group: Annotated[Any, Option(None, "the ranks that exchange; None: all.")]


class Call(TypedDict, total=False):
    sample_weight: Annotated[
        Tensor | None, Option(None, "one per sample, of the labels' shape; or per row of `batch`.")
    ]
    batch: Annotated[SoftTargets | None, Option(None, "targets of the whole batch that these rows are a part of.")]
    own: Annotated[
        Tensor | None, Option(None, "(N,) positions of these rows in `batch`, or in `candidates` given as SoftTargets.")
    ]
    generator: Annotated[
        torch.Generator | None, Option(None, "of draws; in the same state for every part of a `batch`.", randomness)
    ]


class ExcludingCall(Call, total=False):
    exclude: Annotated[Tensor | None, Option(None, "(N, E) more classes that are no negatives of the row; −1: none.")]


class OfTable(TypedDict, total=False):
    bias: Annotated[Tensor | None, Option(None, "(K,), added to the logits.")]
    sparse: Annotated[bool, Option(False, "give `table` a sparse gradient, of the rows touched.", check_flag)]
    cosine: Annotated[bool, Option(False, "normalise features and label embeddings to unit length.", check_flag)]


# The arguments of a function (Of…), of its form from a table (Table…) and of its Module.
# fmt: off
class TableCall(OfTable, ExcludingCall, total=False): ...
class OfNLL(Common, Call, total=False): ...
class OfCrossEntropy(Smoothed, Call, total=False): ...
class OfInfoNCE(InfoNCE, ExcludingCall, total=False): ...
class OfSoftDistribution(SoftDistribution, Call, total=False): ...
class OfSoftTarget(SoftTarget, Call, total=False): ...
class OfExpected(Expected, ExcludingCall, total=False): ...
class TableNLL(OfTable, OfNLL, total=False): ...
class TableCrossEntropy(OfTable, OfCrossEntropy, total=False): ...
class TableInfoNCE(OfTable, OfInfoNCE, total=False): ...
class TableSoftTarget(OfTable, OfSoftTarget, total=False): ...
class TableExpected(OfTable, OfExpected, total=False): ...
class ModuleNLL(Common, Ranks, total=False): ...
class ModuleCrossEntropy(Smoothed, Ranks, total=False): ...
class ModuleInfoNCE(InfoNCE, Ranks, total=False): ...
class ModuleSoftDistribution(SoftDistribution, Ranks, total=False): ...
class ModuleSoftTarget(SoftTarget, Ranks, total=False): ...
class ModuleExpected(Expected, Ranks, total=False): ...
# fmt: on

DECLARED: dict[type, dict[str, Option]] = {
    kind: {name: get_args(hint)[1] for name, hint in get_type_hints(kind, include_extras=True).items()}
    for kind in list(globals().values())
    if is_typeddict(kind)
}
"""The options of each dictionary by name, in the order of their declaration."""
DEFAULTS = {name: option.default for declared in DECLARED.values() for name, option in declared.items()}
"""Those of every loss: one that does not have an option behaves as at its default."""


def checked(kind: type, given: Mapping[str, Any], what: str = "option") -> dict[str, Any]:
    """The values ``given``, each one an option of ``kind`` and checked."""
    known = DECLARED[kind]
    for name in given:
        if name not in known:
            raise TypeError(f"unexpected {what} {name!r}; there are {', '.join(known)}")
    return {name: known[name].check(value, name) for name, value in given.items()}


def takes(kind: type) -> Callable[[F], F]:
    """Show the options of ``kind``, taken as ``**given``, in a function's signature and docstring."""
    hints, known = get_type_hints(kind), DECLARED[kind]

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        for name, option in known.items():
            of_name = {"default": option.default, "annotation": hints[name]}
            parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, **of_name))
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        lines = [f"    {name}: {option.doc}" for name, option in known.items()]
        function.__doc__ = "\n".join([inspect.cleandoc(function.__doc__ or ""), "", "Options:", *lines])
        return function

    return decorate

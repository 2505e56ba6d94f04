"""The options of the losses, each declared once: name, type, default, check and one line of documentation.

A loss takes the options of one of these dictionaries; :func:`takes` shows them in its signature and its docstring, and
:func:`resolve` fills in defaults and checks values. To add an option to all contrastive losses, declare it in
:class:`Contrast` and use it in the line of ``functional.py`` that needs it.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict, TypeVar, get_args, get_type_hints, is_typeddict

import torch
from torch import Tensor

from softnce._checks import as_number, as_whole, check_flag, check_tensor, values_are_checked
from softnce.candidates import Candidates
from softnce.draws import Draw
from softnce.targets import SoftTargets

Reduction = Literal["mean", "sum", "none"]
Negatives = Literal["mean", "drawn"]
Distributed = Literal["mean", "sum", False]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Option:
    """Default, check and documentation of one option. ``check(value, name)`` returns the value to use."""

    default: Any
    check: Callable[[Any, str], Any]
    doc: str


def positive(value: float | Tensor, name: str) -> float | Tensor:
    """A positive number, or a tensor of one."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"{name} must be one number, got a tensor of shape {tuple(value.shape)}")
        if values_are_checked(value) and not float(value.detach()) > 0:
            raise ValueError(f"{name} must be positive, got {float(value.detach())}")
        return value
    number = as_number(value, name, "a positive number")
    if not 0 < number < torch.inf:
        raise ValueError(f"{name} must be a positive number, got {value!r}")
    return number


def unit_interval(value: float, name: str) -> float:
    number = as_number(value, name, "a number in [0, 1]")
    if not 0 <= number <= 1:
        raise ValueError(f"{name} must be in [0, 1], got {value}")
    return number


def one_of(*choices: Any) -> Callable[[Any, str], Any]:
    def check(value: Any, name: str) -> Any:
        if value not in choices:
            raise ValueError(
                f"{name} must be one of {', '.join(map(str, choices[:-1]))} or {choices[-1]}, got {value!r}"
            )
        return value

    return check


def whole(value: int, name: str) -> int:
    return as_whole(value, name, None)


def rows_at_a_time(value: int | None, name: str) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ValueError(f"{name} must be a positive whole number of rows or None, got {value!r}")
    return value


def weights(value: Tensor | None, name: str) -> Tensor | None:
    """Finite numbers, none negative, as a tensor (K,); None is 1 each."""
    if value is None:
        return None
    check_tensor(value, name)
    if not value.is_floating_point():
        raise TypeError(f"{name} must be a floating point tensor, got {value.dtype}")
    if value.dim() != 1:
        raise ValueError(f"{name} must have shape (K,), got {tuple(value.shape)}")
    if values_are_checked(value) and not bool(((value >= 0) & (value < torch.inf)).all()):
        raise ValueError(f"{name} must hold finite numbers that are not negative")
    return value


def proposals(value: Candidates | SoftTargets | None, name: str) -> Candidates | SoftTargets | None:
    if value is not None and not isinstance(value, (Candidates, SoftTargets)):
        raise TypeError(
            f"{name} must be a softnce.Candidates, such as NoiseCandidates(1024), or SoftTargets, "
            f"got {type(value).__name__}"
        )
    return value


def drawing(value: Draw | None, name: str) -> Draw | None:
    if value is not None and not isinstance(value, Draw):
        raise TypeError(f"{name} must be one of softnce.draws or None, got {type(value).__name__}")
    return value


def source_of_randomness(value: torch.Generator | None, name: str) -> torch.Generator | None:
    if value is not None and not isinstance(value, torch.Generator):
        raise TypeError(f"{name} must be a torch.Generator or None, got {type(value).__name__}")
    return value


def anything(value: Any, name: str) -> Any:
    return value


def scaling(value: Any, name: str) -> Distributed:
    return one_of("mean", "sum", False)("mean" if value is True else value, name)


class Common(TypedDict, total=False):
    """Options of every loss."""

    temperature: Annotated[
        float | Tensor,
        Option(1.0, positive, "τ, a positive number, or an nn.Parameter to be learned."),
    ]
    reduction: Annotated[
        Reduction,
        Option("mean", one_of("mean", "sum", "none"), '"mean" (weighted, over samples not ignored), "sum" or "none".'),
    ]
    class_weight: Annotated[
        Tensor | None,
        Option(
            None,
            weights,
            "(K,). Cross-entropy weighs classes, as torch does; a contrast weighs a sample by Σ_k α_k·class_weight_k.",
        ),
    ]
    ignore_index: Annotated[
        int, Option(-100, whole, "label of samples that are neither positives nor candidates; they have loss 0.")
    ]


class Smoothed(Common, total=False):
    """Options of losses that take soft targets."""

    label_smoothing: Annotated[
        float, Option(0.0, unit_interval, "ε in [0, 1], moves targets (and η, where labels are drawn) towards uniform.")
    ]


class Contrast(Common, total=False):
    """Options of every contrastive loss."""

    candidates: Annotated[
        Candidates | SoftTargets | None,
        Option(None, proposals, "contrasted targets, see softnce.candidates; None: the default of the loss."),
    ]
    chunk_size: Annotated[
        int | None, Option(None, rows_at_a_time, "rows processed at a time, by default as many as the cache holds.")
    ]


class HardContrast(Contrast, total=False):
    """Options of InfoNCE."""

    drop_own_classes: Annotated[
        bool, Option(False, check_flag, "leave candidates of the row's own class out of its negatives.")
    ]


class SoftDraw(Contrast, Smoothed, total=False):
    """Options of soft distribution InfoNCE."""

    remove_accidental_hits: Annotated[
        bool, Option(False, check_flag, "leave out other candidates that equal the row's own target: an (N, M) mask.")
    ]


class SoftContrast(SoftDraw, total=False):
    """Options of soft target InfoNCE."""

    draw: Annotated[
        Draw | None, Option(None, drawing, "how a soft target becomes α, see softnce.draws; None: it stays as it is.")
    ]


class ExpectedContrast(Contrast, Smoothed, total=False):
    """Options of expected InfoNCE."""

    negatives: Annotated[
        Negatives | None,
        Option(
            None,
            one_of("mean", "drawn", None),
            '"mean": candidates count with all their classes; "drawn": one label is drawn from each; '
            'None: "mean" from logits, "drawn" from a table.',
        ),
    ]
    drop_own_classes: Annotated[
        bool, Option(False, check_flag, "leave every class on which the row's target has weight out of its negatives.")
    ]


class Ranks(TypedDict, total=False):
    """Options of every Module."""

    distributed: Annotated[
        Distributed,
        Option(
            "mean",
            scaling,
            'who adds up gradients: "mean": averaged over ranks (DDP); "sum": added up; False: no exchange.',
        ),
    ]
    process_group: Annotated[Any, Option(None, anything, "the ranks that exchange; None: all.")]


class Call(TypedDict, total=False):
    """Arguments of one call."""

    sample_weight: Annotated[
        Tensor | None,
        Option(None, anything, "one per sample, of the labels' shape; or per row of ``batch``."),
    ]
    batch: Annotated[
        SoftTargets | None,
        Option(None, anything, "targets of the whole batch that these rows are a part of (gradient accumulation)."),
    ]
    own: Annotated[
        Tensor | None,
        Option(None, anything, "(N,) positions of these rows in ``batch``, or in ``candidates`` given as SoftTargets."),
    ]


class ContrastCall(Call, total=False):
    """Arguments of one call of a contrastive loss."""

    generator: Annotated[
        torch.Generator | None,
        Option(None, source_of_randomness, "source of randomness; the same state for every part of a ``batch``."),
    ]


class ExcludingCall(ContrastCall, total=False):
    """Arguments of one call of a loss with class counts."""

    exclude: Annotated[
        Tensor | None,
        Option(None, anything, "(N, E) further classes that are no negatives of the row, filled up by -1."),
    ]


class Given(TypedDict, total=False):
    """Arguments of a table of label embeddings."""

    bias: Annotated[Tensor | None, Option(None, anything, "(K,), added to the logits.")]
    sparse: Annotated[
        bool,
        Option(False, check_flag, "give ``table`` a sparse gradient, of the rows touched (RowAdagrad)."),
    ]
    cosine: Annotated[bool, Option(False, check_flag, "normalise features and label embeddings to unit length.")]


class OfNLL(Common, Call, total=False): ...


class OfCrossEntropy(Smoothed, Call, total=False): ...


class OfInfoNCE(HardContrast, ExcludingCall, total=False): ...


class OfSoftDistribution(SoftDraw, ContrastCall, total=False): ...


class OfSoftTarget(SoftContrast, ContrastCall, total=False): ...


class OfExpected(ExpectedContrast, ExcludingCall, total=False): ...


class TableNLL(Given, OfNLL, total=False): ...


class TableCrossEntropy(Given, OfCrossEntropy, total=False): ...


class TableInfoNCE(Given, OfInfoNCE, total=False): ...


class TableSoftTarget(Given, OfSoftTarget, total=False): ...


class TableExpected(Given, OfExpected, total=False): ...


class ModuleNLL(Common, Ranks, total=False): ...


class ModuleCrossEntropy(Smoothed, Ranks, total=False): ...


class ModuleInfoNCE(HardContrast, Ranks, total=False): ...


class ModuleSoftDistribution(SoftDraw, Ranks, total=False): ...


class ModuleSoftTarget(SoftContrast, Ranks, total=False): ...


class ModuleExpected(ExpectedContrast, Ranks, total=False): ...


def declared(options: type) -> dict[str, Option]:
    """The options of a dictionary type by name, in the order of their declaration."""
    return DECLARED[options]


def _options_of(options: type) -> dict[str, Option]:
    return {name: get_args(hint)[1] for name, hint in get_type_hints(options, include_extras=True).items()}


DECLARED = {kind: _options_of(kind) for kind in list(globals().values()) if is_typeddict(kind)}


def resolve(options: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """All options, those that were not given by their defaults; each one checked."""
    known = declared(options)
    for name in given:
        if name not in known:
            raise TypeError(f"unexpected option {name!r}; there are {', '.join(known)}")
    return {name: o.check(given[name], name) if name in given else o.default for name, o in known.items()}


def takes(options: type) -> Callable[[F], F]:
    """Show the options of ``options``, taken as ``**options``, in a function's signature and docstring."""

    def decorate(function: F) -> F:
        hints = get_type_hints(options)
        signature = inspect.signature(function)
        free = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        named = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=o.default, annotation=hints[name])
            for name, o in declared(options).items()
        ]
        function.__signature__ = signature.replace(parameters=[*free, *named])  # type: ignore[attr-defined]
        lines = [f"    {name}: {o.doc}" for name, o in declared(options).items()]
        doc = inspect.cleandoc(function.__doc__ or "")
        function.__doc__ = "\n".join([doc, "", "Options:", *lines])
        return function

    return decorate

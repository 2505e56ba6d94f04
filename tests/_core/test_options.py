"""Options: declared once, checked where they enter; one refusal per validator, and the signature that help() shows."""

import inspect

import pytest
import torch

import softnce
from softnce import functional
from softnce._core import options
from softnce._core.table import Table, check_table

LOGITS, LABELS, K = torch.randn(3, 4), torch.tensor([0, 1, 2]), 4
REFUSED = {
    "positive": (options.positive, ["1", None, True, float("nan"), 0, -1.0, torch.ones(2), torch.tensor(-1.0)]),
    "as_share": (options.as_share, ["a", None, True, -0.1, 1.5, float("nan")]),
    "one_of": (options.one_of("mean", "sum", "none"), ["avg", None, 1]),
    "whole": (options.whole, ["1", 2.5, None, True]),
    "chunk": (options.chunk, [0, -1, 2.0, True, "4"]),
    "weights": (options.weights, [[1.0], torch.ones(2, 2), torch.ones(2).long(), torch.tensor([1, torch.inf])]),
    "proposals": (options.proposals, [1024, "batch", torch.ones(2)]),
    "drawing": (options.drawing, ["label", 3]),
    "randomness": (options.randomness, [0, "seed"]),
    "check_flag": (options.check_flag, ["yes", None, 1, torch.ones(2)]),
    "ddp": (options.ddp, ["max", None, 2]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_validator_names_the_argument(name: str) -> None:
    check, refused = REFUSED[name]
    for value in refused:
        with pytest.raises((ValueError, TypeError), match=r"^the_argument "):
            check(value, "the_argument")


def test_every_default_passes_its_own_check() -> None:
    for kind, declared in options.DECLARED.items():
        for name, option in declared.items():
            assert option.check(option.default, name) is option.default, f"{kind.__name__}.{name}"
            assert option.doc.endswith(".")


@pytest.mark.parametrize("name", functional.__all__)
def test_signatures_show_names_defaults_and_documentation(name: str) -> None:
    function = getattr(functional, name)
    parameters = inspect.signature(function).parameters
    assert not any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters.values())
    if "reduction" in parameters:
        assert parameters["reduction"].default == "mean"
        assert "reduction: " in function.__doc__


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="unexpected option 'temprature'"):
        functional.info_nce(LOGITS, LABELS, temprature=2.0)
    with pytest.raises(TypeError, match="unexpected option 'temprature'"):
        softnce.InfoNCE(temprature=2.0)
    with pytest.raises(TypeError, match="unexpected argument 'exclude'"):
        softnce.SoftTargetInfoNCE()(LOGITS, LABELS, exclude=LABELS[:, None])


@pytest.mark.parametrize(
    ("features", "table", "bias", "named"),
    [
        (torch.ones(3, 2), torch.ones(4, 3), None, "features have 2 columns"),
        (torch.ones(2), torch.ones(4, 2), None, "features must be a floating point matrix"),
        (torch.ones(3, 2), torch.ones(4, 2).long(), None, "table must be a floating point matrix"),
        (torch.ones(3, 2), torch.ones(4, 2), torch.ones(3), r"bias must have shape \(4,\)"),
    ],
)
def test_tables_are_checked(features, table, bias, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        check_table(features, table, bias)
    with pytest.raises(ValueError, match=named):
        Table(features, table, bias)


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="the batch is empty: features have shape"):
        functional.linear_nll(torch.ones(0, 2), torch.ones(4, 2), LABELS[:0])


@pytest.mark.parametrize(
    "exclude", ["text", LABELS, LABELS[:2, None], LABELS[:, None].float(), torch.tensor([[4], [0], [0]])]
)
def test_exclude_is_checked(exclude) -> None:
    with pytest.raises((ValueError, TypeError), match="exclude must"):
        functional.info_nce(LOGITS, LABELS, exclude=exclude)


@pytest.mark.parametrize("weight", [torch.ones(2), torch.tensor([1.0, -1.0, 1.0]), [1.0, 1.0, 1.0]])
def test_sample_weights_are_checked(weight) -> None:
    with pytest.raises((ValueError, TypeError), match="sample_weight must"):
        functional.nll(LOGITS, LABELS, sample_weight=weight)


def test_dropping_own_classes_needs_zeros() -> None:
    for given in ({"label_smoothing": 0.1}, {}):
        targets = LABELS if given else torch.softmax(LOGITS, 1)
        with pytest.raises(ValueError, match="drop_own_classes needs targets with zeros"):
            functional.expected_info_nce(LOGITS, targets, drop_own_classes=True, **given)

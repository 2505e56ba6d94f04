"""The losses that are timed side by side compute what they are said to compute."""

import functools

import pytest
import torch
from torch.nn import functional as F

from softnce.lab.bench import baselines
from softnce.lab.bench.cases import CASES, REFERENCE, Inputs, Size

OURS = ("softnce, probabilities", "softnce, MixUp pairs", "softnce, MixUp pairs, chunk_size=64")
EAGER = [name for name, case in CASES.items() if not case.is_compiled]


def value_and_gradient(name: str, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    loss = CASES[name].loss(inputs)(inputs.logits)
    return loss.detach(), torch.autograd.grad(loss, inputs.logits)[0]


@pytest.mark.parametrize("candidates", [None, 40])
@pytest.mark.parametrize(
    "name", ["softnce, probabilities", "softnce, MixUp pairs", "softnce, MixUp pairs, chunk_size=64"]
)
def test_ours_is_the_published_loss(name: str, candidates: int | None) -> None:
    inputs = Inputs(Size(24, 10, candidates))
    for ours, published in zip(
        value_and_gradient(name, inputs), value_and_gradient("published N×M×K formulation", inputs), strict=True
    ):
        torch.testing.assert_close(ours, published, rtol=1e-4, atol=1e-6)


def test_labels_are_the_published_loss_of_one_hot_rows() -> None:
    inputs = Inputs(Size(24, 10))
    named = ("InfoNCE, fewest operations", 0.0), ("softnce, labels", 0.0), ("softnce, smoothed labels", 0.1)
    for name, smoothing in named:
        one_hot = F.one_hot(inputs.labels, 10) * (1 - smoothing) + smoothing / 10
        published = baselines.published_soft_target_info_nce(inputs.logits, one_hot, inputs.noise)
        torch.testing.assert_close(value_and_gradient(name, inputs)[0], published.detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("candidates", [None, 40])
def test_table_is_the_loss_of_its_logits(candidates: int | None) -> None:
    inputs = Inputs(Size(24, 10, candidates, dim=6))
    from_table = CASES["softnce.linear, pairs"].loss(inputs)(inputs.features, inputs.table)
    from_logits = CASES["softnce, MixUp pairs"].loss(inputs)(inputs.features @ inputs.table.t())
    torch.testing.assert_close(from_table, from_logits, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", EAGER)
def test_a_step_leaves_no_gradient(name: str) -> None:
    case = CASES[name]
    if not case.is_installed:
        pytest.skip(f"{case.needs} is not installed")
    inputs = Inputs(Size(16, 10, dim=4))
    before = inputs.table.detach().clone()
    step = case.step(inputs)
    step()
    assert all(leaf.grad is None for leaf in (inputs.logits, inputs.table, inputs.features))
    assert torch.equal(inputs.table.detach(), before) != case.takes_step


def test_every_family_has_its_reference() -> None:
    assert all(CASES[name].family == family for family, name in REFERENCE.items())


def test_candidates_hold_the_batch() -> None:
    with pytest.raises(ValueError, match="at least the 8 rows"):
        Size(8, 10, candidates=4)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.is_compiled])
def test_the_compiler_sees_through_a_step_of_new_inputs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))  # traces, as a whole
    CASES[name].step(Inputs(Size(8, 5)))()
    torch.compiler.reset()

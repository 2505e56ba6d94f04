"""Function, Module and table form are one loss: generated over every option, form of targets and kind of candidates."""

import inspect
import itertools

import pytest
import torch
from batches import KINDS, assert_same, make_targets, queue_of, seeded
from batches import value_and_gradients as run
from torch import Tensor

import softnce
from softnce import (
    BatchCandidates,
    ClassCandidates,
    SampledCandidates,
    SoftTargets,
    draws,
    functional,
)

N, K, DIM = 7, 5, 3
PAIRS = {
    "soft-target": (functional.soft_target_info_nce, softnce.SoftTargetInfoNCE),
    "hard": (functional.info_nce, softnce.InfoNCE),
    "drawn": (functional.soft_distribution_info_nce, softnce.SoftDistributionInfoNCE),
    "expected": (functional.expected_info_nce, softnce.ExpectedInfoNCE),
    "cross-entropy": (functional.soft_target_cross_entropy, softnce.SoftTargetCrossEntropy),
    "nll": (functional.nll, softnce.NLL),
}
HARD, IGNORED = ("hard", "nll"), "ignored, not smoothed"
CALL = {"sample_weight", "batch", "own", "generator", "exclude"}
"""Arguments of a call; the others are options of a loss."""


CANDIDATES = {
    "none": lambda: None,
    "batch": BatchCandidates,
    "sampled": lambda: SampledCandidates(6, mix_alpha=0.8, smoothing=0.2),
    "batch and sampled": lambda: BatchCandidates() + SampledCandidates(9, mix_alpha=0.5),
    "queue": lambda: queue_of(20, make_targets("mixed", 9, K, seeded(5))),
    "vertices": ClassCandidates,
    "smoothed vertices": lambda: ClassCandidates(0.3),
    "sum": lambda: BatchCandidates() + CANDIDATES["queue"]() + ClassCandidates(),
    "given": lambda: make_targets("votes", 8, K, seeded(6)),
}
OPTIONS = {
    "noise_probs": [None, torch.tensor([0.3, 0.25, 0.2, 0.15, 0.1], dtype=torch.float64)],
    "temperature": [1.0, 0.6, torch.tensor(0.8, dtype=torch.float64)],
    "draw": [None, None, draws.Categorical(), draws.Averaged(3), draws.Averaged(2, candidates=4)],
    "label_smoothing": [0.0, 0.1],
    "class_weight": [None, torch.tensor([1.0, 2.0, 0.5, 0.0, 1.5], dtype=torch.float64)],
    "remove_accidental_hits": [False, True],
    "chunk_size": [None, 2],
    "reduction": ["mean", "sum", "none"],
    "weighted": [False, True],
    "part": [False, True],
}


def settings(seed: int, count: int) -> list[dict]:
    """``count`` sets of options, every value of every option among them."""
    generator = seeded(seed)
    columns = {}
    for name, values in OPTIONS.items():
        repeated = [values[i % len(values)] for i in range(count)]
        columns[name] = [repeated[i] for i in torch.randperm(count, generator=generator)]
    return [{name: column[i] for name, column in columns.items()} for i in range(count)]


@pytest.mark.parametrize("candidates", CANDIDATES)
@pytest.mark.parametrize("kind", KINDS)
def test_function_module_and_table_agree(kind: str, candidates: str) -> None:
    for options in settings(KINDS.index(kind), 10):
        check_forms("soft-target", kind, CANDIDATES[candidates], **options)


@pytest.mark.parametrize("others", ["mean", "drawn"])
@pytest.mark.parametrize("candidates", CANDIDATES)
@pytest.mark.parametrize("kind", [*KINDS, IGNORED])
def test_expected_function_module_and_table_agree(kind: str, candidates: str, others: str) -> None:
    for options in settings(len(kind), 6):
        del options["draw"], options["remove_accidental_hits"]
        given = CANDIDATES[candidates] if candidates != "none" else BatchCandidates  # the default depends on the form
        check_forms("expected", kind, given, negatives=others, **options)


def check_forms(
    name: str, kind: str, candidates, *, noise_probs: Tensor | None, weighted: bool, part: bool, **options
) -> None:
    of_logits, of_table = {
        "soft-target": (functional.soft_target_info_nce, functional.linear_soft_target_info_nce),
        "expected": (functional.expected_info_nce, functional.linear_expected_info_nce),
    }[name]
    generator = seeded(1)
    features = torch.randn(N, DIM, dtype=torch.float64, generator=generator)
    table = torch.randn(K, DIM, dtype=torch.float64, generator=generator)
    bias = torch.randn(K, dtype=torch.float64, generator=generator)
    weights = torch.rand(N, dtype=torch.float64, generator=generator)
    targets = make_targets("ignored" if kind == IGNORED else kind, N, K, generator)
    if kind == IGNORED:
        targets = SoftTargets(K, targets.index, None, mask=targets.mask)
    rows = torch.tensor([4, 0, 2]) if part else torch.arange(N)
    call = {"sample_weight": weights} if weighted else {}
    if part:
        call |= {"batch": targets, "own": rows}
    mine, z = targets[rows], features[rows]

    def function(x: Tensor) -> Tensor:
        given = {"candidates": candidates(), "generator": seeded()}
        return of_logits(x, mine, noise_probs, **given, **options, **call)

    def from_table(z: Tensor, y: Tensor, b: Tensor) -> Tensor:
        given = {"candidates": candidates(), "generator": seeded()}
        return of_table(z, y, mine, noise_probs, bias=b, **given, **options, **call)

    module = PAIRS[name][1](noise_probs, candidates=candidates(), **options).eval()
    logits = z @ table.T + bias
    assert_same(run(lambda x: module(x, mine, generator=seeded(), **call), logits), run(function, logits))
    expected = run(lambda z, y, b: function(z @ y.T + b), z, table, bias)
    assert_same(run(from_table, z, table, bias), expected)
    by_module = run(lambda z, y, b: module.linear(z, y, mine, bias=b, generator=seeded(), **call), z, table, bias)
    assert_same(by_module, expected)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("part", [False, True])
def test_every_module_is_its_function(name: str, part: bool) -> None:
    for kind, options in itertools.product(("labels", "ignored") if name in HARD else KINDS, settings(3, 12)):
        check_module(name, kind, part, options)


def check_module(name: str, kind: str, part: bool, chosen: dict) -> None:
    function, module = PAIRS[name]
    generator = seeded(2)
    targets = make_targets(kind, N, K, generator)
    if name in HARD:
        targets = SoftTargets(K, targets.classes, None, mask=targets.mask)
    logits = torch.randn(N, K, dtype=torch.float64, generator=generator)
    taken = inspect.signature(module.__init__).parameters
    options = {key: value for key, value in chosen.items() if key in taken}
    call = {"sample_weight": torch.rand(N, dtype=torch.float64, generator=generator)} if chosen["weighted"] else {}
    rows = torch.tensor([1, 5]) if part else torch.arange(N)
    if part:
        call |= {"batch": targets, "own": rows}
    by_module = run(lambda x: module(**options)(x, targets[rows], generator=seeded(), **call), logits[rows])
    drawn = {"generator": seeded()} if "generator" in inspect.signature(function).parameters else {}
    by_function = run(lambda x: function(x, targets[rows], **options, **call, **drawn), logits[rows])
    assert_same(by_module, by_function)


def test_functions_and_modules_take_the_same_options_with_the_same_defaults() -> None:
    for name, (function, module) in PAIRS.items():
        of_function, of_module = (
            {p.name: p.default for p in inspect.signature(taker).parameters.values() if p.name not in left_out}
            for taker, left_out in (
                (function, {"logits", "targets", *CALL}),
                (module.__init__, {"self", "distributed", "process_group"}),
            )
        )
        if "noise_probs" in of_function:  # functions keep no state
            assert of_function.pop("noise_probs") is None
            assert of_module.pop("noise_probs") == "running"
        assert of_function == of_module, name
        assert set(inspect.signature(module.forward).parameters) >= CALL


@pytest.mark.parametrize("call", ["function", "module"])
def test_options_come_by_name_after_the_noise(call: str) -> None:
    for function, module in PAIRS.values():
        signature = inspect.signature(function if call == "function" else module.__init__)
        free = [p.name for p in signature.parameters.values() if p.kind == p.POSITIONAL_OR_KEYWORD]
        assert [name for name in free if name not in ("self", "logits", "targets")] in ([], ["noise_probs"])
        assert not any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in signature.parameters.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["soft-target", "drawn", "expected", "cross-entropy"])
def test_parts_add_up_to_the_batch(kind: str, name: str) -> None:
    """Accumulation with draws and sample weights: values and gradients of the parts sum to the batch's."""
    module = PAIRS[name][1]
    generator = seeded(4)
    targets = make_targets(kind, N, K, generator)
    logits = torch.randn(N, K, dtype=torch.float64, generator=generator)
    weights = torch.rand(N, dtype=torch.float64, generator=generator)
    class_weight = OPTIONS["class_weight"][1]
    loss = module(class_weight=class_weight, label_smoothing=0.1).eval()  # a running noise stays as it is
    whole = run(lambda x: loss(x, targets, sample_weight=weights, generator=seeded()), logits)

    def accumulated(x: Tensor) -> Tensor:
        given = {"sample_weight": weights, "batch": targets}
        parts = torch.tensor([3, 0, 6, 1, 5, 2, 4]).split([3, 1, 3])
        return sum(loss(x[own], targets[own], own=own, generator=seeded(), **given) for own in parts)

    assert_same(run(accumulated, logits), whole)


def test_candidates_that_hold_the_own_targets_are_smoothed_alike() -> None:
    """The same rows as ``batch`` and as ``candidates`` with ``own`` have the same losses, smoothed or not."""
    targets = make_targets("mixed", N, K, seeded(7))
    logits = torch.randn(3, K, dtype=torch.float64, generator=seeded(8))
    own = torch.tensor([2, 4, 6])
    options = {"own": own, "label_smoothing": 0.1, "reduction": "none"}
    as_candidates = functional.soft_target_info_nce(logits, targets[own], candidates=targets, **options)
    as_batch = functional.soft_target_info_nce(logits, targets[own], batch=targets, **options)
    torch.testing.assert_close(as_candidates, as_batch, rtol=0, atol=1e-13)


def test_draws_of_parts_need_a_generator() -> None:
    logits, own, targets = torch.randn(2, K), torch.tensor([0, 1]), make_targets("mixed", N, K, seeded())
    with pytest.raises(ValueError, match="needs a generator, in the same state for every micro-batch"):
        functional.soft_distribution_info_nce(logits, targets[:2], batch=targets, own=own)
    with pytest.raises(ValueError, match="negatives='drawn' with batch needs a generator"):
        functional.expected_info_nce(logits, targets[:2], batch=targets, own=own, negatives="drawn")
    labels = SoftTargets.from_labels(torch.arange(N) % K, K)  # nothing to draw
    functional.expected_info_nce(logits, labels[:2], batch=labels, own=own, negatives="drawn")


@pytest.mark.parametrize("form", ["labels", "mixed", "dense", "spread"])
def test_a_wrong_own_is_named_in_every_form(form: str) -> None:
    targets = make_targets(form, N, K, seeded(9))
    while bool((targets.dense()[0] - targets.dense()[1]).abs().max() < 1e-3):
        targets = targets.flip(0)
    with pytest.raises(ValueError, match="own says that row 1 of batch is the target of row 0"):
        functional.soft_target_info_nce(torch.randn(1, K).double(), targets[0], batch=targets, own=torch.tensor([1]))
    with pytest.raises(ValueError, match="row 1 of candidates is the target of row 0"):
        functional.soft_target_info_nce(torch.randn(1, K), targets[0], candidates=targets, own=torch.tensor([1]))

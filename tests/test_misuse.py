"""Misuse of every public function and class: one clear line that names the argument, never nonsense or a traceback.

Each entry of ``MISUSE`` is a call that works, and for some of its arguments values that must be refused. Every refusal
must be a ValueError, TypeError or IndexError raised by softnce itself, and must name the argument.
"""

import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import softnce
from softnce import (
    SoftTargets,
    distributions,
    draws,
    dynamics,
    functional,
    heads,
    information,
    noise,
    set_memory_budget,
    set_validation,
)

N, K, D = 4, 3, 2
NAN, INF = float("nan"), float("inf")
LABELS = torch.tensor([0, 1, 2, 1])
LOGITS = torch.tensor([[2.0, -1, 0], [0, 1, 0], [1, 0, 3], [-1, 2, 0]])
PROBS = LOGITS.softmax(1)
SOFT = SoftTargets.from_labels(LABELS, K)
UNIFORM = torch.full((K,), 1 / K)
FEATURES, TABLE = torch.ones(N, D), torch.arange(6.0).view(K, D)
JOINT = torch.full((2, K), 1 / (2 * K))

NUMBERS = ["1", None, True, NAN]
"""What is no number."""
WHOLE = ["2", 2.5, None, True, 0, -1]
"""What is no positive whole number."""
FLAGS = ["yes", None, 1, torch.ones(2)]
"""What is neither True nor False."""
SCORES = ["text", None, torch.ones(N, K, dtype=torch.long), torch.ones(K), torch.tensor(1.0), LABELS]
"""What are no scores (N, K)."""
TARGETS = [
    "text",
    None,
    LABELS + 1,
    LABELS - 1,
    LABELS[:-1],
    LABELS.float(),
    LABELS > 0,
    torch.ones(N, K),
    LOGITS,
    PROBS[:, :2],
    SOFT[:2],
    SoftTargets.from_labels(LABELS, K + 1),
    torch.nn.functional.one_hot(LABELS, K),
    torch.full((N, K), NAN),
]
"""What are no targets of N samples and K classes."""
DISTRIBUTION = [
    "uniform",
    [1 / 3] * 3,
    torch.ones(K),
    torch.tensor([0.5, 0.5]),
    torch.tensor([1.5, -0.5, 0]),
    torch.tensor([NAN, 0.5, 0.5]),
    torch.tensor([1, 0, 0]),
    UNIFORM[None],
]
"""What are no probabilities (K,), given as a tensor."""
WEIGHTS = ["balanced", [1.0] * 7, torch.ones(7), torch.full((K,), -1.0), torch.full((K,), NAN)]
POSITIVE = [*NUMBERS, 0.0, -1.0, INF]

SHARED: dict[str, list[Any]] = {
    "temperature": [*POSITIVE, torch.ones(2), torch.tensor(-1.0), np.array([1.0, 2.0])],
    "reduction": ["avg", None, 1],
    "class_weight": [*WEIGHTS, torch.ones(K, dtype=torch.long)],
    "ignore_index": ["255", 2.5, None, True],
}
SMOOTHING: dict[str, list[Any]] = {"label_smoothing": [*NUMBERS, 1.5, -0.1]}
CALLED: dict[str, list[Any]] = {
    "targets": TARGETS,
    "sample_weight": ["balanced", [1.0] * N, torch.ones(N + 1), torch.full((N,), -1.0), torch.full((N,), NAN)],
    "batch": [LABELS, "batch", SoftTargets.from_labels(LABELS, K + 1)],
    "own": [LABELS.float(), "first", LABELS > 0],
}
CONTRAST: dict[str, list[Any]] = {
    "noise_probs": [*DISTRIBUTION, torch.tensor([0.5, 0.5, 0.0])],
    "candidates": [LABELS, "batch", softnce.BatchCandidates, SoftTargets.from_labels(LABELS, K + 1)],
    "chunk_size": ["8", 2.5, 0, -1],
}
HITS: dict[str, list[Any]] = {"remove_accidental_hits": FLAGS}
GENERATOR: dict[str, list[Any]] = {"generator": [0, "seed"]}
CLASSES: dict[str, list[Any]] = {"num_classes": WHOLE}

MISUSE: list[tuple[str, Callable[..., Any], dict[str, Any], dict[str, list[Any]]]] = []


def add(name: str, function: Callable[..., Any], good: dict[str, Any], *wrong: dict[str, list[Any]]) -> None:
    MISUSE.append((name, function, good, {k: v for each in wrong for k, v in each.items()}))


# ------------------------------------------------------------------------------------------------------- losses

SCORED = {"logits": LOGITS, "targets": LABELS}
FROM_TABLE = {"features": FEATURES, "table": TABLE, "targets": LABELS}
TABLES: dict[str, list[Any]] = {
    "features": ["text", None, torch.ones(N, D + 1), torch.ones(N), torch.ones(N, D).long()],
    "table": ["text", None, torch.ones(K, D + 1), torch.ones(D), torch.ones(K, D).long()],
    "bias": ["none", torch.ones(K + 1), [0.0] * K],
}
of_logits: dict[str, list[Any]] = {"logits": [*SCORES, torch.ones(0, K), torch.ones(N, 0)]}
add(
    "functional.soft_target_info_nce",
    functional.soft_target_info_nce,
    SCORED,
    of_logits,
    SHARED,
    SMOOTHING,
    CALLED,
    CONTRAST,
    HITS,
    GENERATOR,
    {"draw": ["categorical", draws.Categorical]},
)
add("functional.info_nce", functional.info_nce, SCORED, of_logits, SHARED, CALLED, CONTRAST, HITS, GENERATOR)
add(
    "functional.soft_distribution_info_nce",
    functional.soft_distribution_info_nce,
    SCORED,
    of_logits,
    SHARED,
    SMOOTHING,
    CALLED,
    CONTRAST,
    HITS,
    GENERATOR,
)
add(
    "functional.expected_info_nce",
    functional.expected_info_nce,
    SCORED,
    of_logits,
    SHARED,
    SMOOTHING,
    CALLED,
    CONTRAST,
    GENERATOR,
    {"others": ["sum", 1, True]},
)
add(
    "functional.soft_target_cross_entropy",
    functional.soft_target_cross_entropy,
    SCORED,
    of_logits,
    SHARED,
    SMOOTHING,
    CALLED,
)
add("functional.nll", functional.nll, SCORED, of_logits, SHARED, CALLED)
for name in ("linear_soft_target_info_nce", "linear_expected_info_nce"):
    add(
        f"functional.{name}",
        getattr(functional, name),
        FROM_TABLE,
        TABLES,
        SHARED,
        SMOOTHING,
        CALLED,
        CONTRAST,
        GENERATOR,
        {"sparse": FLAGS, "cosine": FLAGS},
    )
add(
    "functional.probabilities",
    functional.probabilities,
    {"logits": LOGITS},
    {"logits": SCORES, "temperature": SHARED["temperature"]},
)
add("functional.ranking", functional.ranking, {"logits": LOGITS}, {"logits": SCORES, "k": [*WHOLE, K + 1]})
add(
    "functional.linear_topk",
    functional.linear_topk,
    {"features": FEATURES, "table": TABLE, "k": 2},
    TABLES,
    {"k": [*WHOLE, K + 1], "chunk_size": WHOLE, "cosine": FLAGS},
)

for loss in (
    softnce.SoftTargetInfoNCE,
    softnce.SoftDistributionInfoNCE,
    softnce.ExpectedInfoNCE,
    softnce.InfoNCE,
    softnce.SoftTargetCrossEntropy,
    softnce.NLL,
):
    options = {**SHARED, "distributed": ["all", None, 1]}
    if loss not in (softnce.InfoNCE, softnce.NLL):
        options |= SMOOTHING
    if issubclass(loss, softnce.ContrastiveLoss):
        options |= {
            "noise_probs": CONTRAST["noise_probs"],
            "candidates": CONTRAST["candidates"][:3],
            "chunk_size": CONTRAST["chunk_size"],
        }
    for option, length in (("noise_probs", 2), ("class_weight", 7)):  # K is not known yet
        options[option] = [w for w in options.get(option, []) if not (torch.is_tensor(w) and len(w) == length)]
    add(loss.__name__, loss, {}, options)
    add(f"{loss.__name__}()", loss(), SCORED, {"logits": of_logits["logits"], **CALLED}, GENERATOR)
    add(
        f"{loss.__name__}().against_classes",
        loss().against_classes,
        SCORED,
        {"logits": of_logits["logits"], "targets": TARGETS},
    )
    add(f"{loss.__name__}().probabilities", loss().probabilities, {"logits": LOGITS}, {"logits": SCORES})
    if issubclass(loss, softnce.ContrastiveLoss):
        add(f"{loss.__name__}().linear", loss().linear, FROM_TABLE, TABLES, CALLED)
        add(f"{loss.__name__}().remember", loss().remember, {"batch": SOFT}, {"batch": [LABELS, "batch", None]})

# --------------------------------------------------------------------------------------- noise, candidates, draws

add("noise.uniform", noise.uniform, {"num_classes": K}, CLASSES)
add(
    "noise.from_counts",
    noise.from_counts,
    {"counts": torch.ones(K)},
    {
        "counts": [
            "text",
            None,
            torch.ones(N, K),
            torch.ones(0),
            torch.tensor([1.0, -1]),
            torch.tensor([1, NAN]),
            torch.tensor([1, 0]),
            torch.ones(K) > 0,
        ],
        "floor": ["1", True, NAN, 0.0, -1.0, INF],
    },
)
add(
    "noise.from_labels",
    noise.from_labels,
    {"labels": LABELS, "num_classes": K},
    CLASSES,
    {
        "labels": ["text", None, LABELS + 1, LABELS.float(), LABELS > 0],
        "floor": ["1", 0.0],
        "ignore_index": SHARED["ignore_index"],
    },
)
add(
    "noise.from_loader",
    noise.from_loader,
    {"loader": [(LOGITS, LABELS)], "num_classes": K},
    CLASSES,
    {
        "loader": [
            None,
            3,
            [(LOGITS, "text")],
            [(LOGITS, LABELS + 1)],
            [(LOGITS, SoftTargets.from_labels(LABELS, K + 1))],
            [],
        ],
        "floor": ["1", 0.0],
        "ignore_index": SHARED["ignore_index"],
    },
)
add(
    "RunningNoise",
    softnce.RunningNoise,
    {"num_classes": K},
    CLASSES,
    {"decay": [*NUMBERS, 0.0, 1.5], "prior": POSITIVE},
)
add(
    "RunningNoise.update",
    softnce.RunningNoise(K).update,
    {"targets": SOFT},
    {"targets": [LABELS, None, SoftTargets.from_labels(LABELS, K + 1)]},
)
add("NoiseCandidates", softnce.NoiseCandidates, {"count": 4}, {"count": [*NUMBERS, -1, INF]})
add("ClassCandidates", softnce.ClassCandidates, {}, {"smoothing": ["0.1", True, NAN, 1.0, -0.1]})
add("QueueCandidates", softnce.QueueCandidates, {"size": 8}, {"size": WHOLE})
add(
    "SampledCandidates",
    softnce.SampledCandidates,
    {"size": 8},
    {
        "size": WHOLE,
        "mix_alpha": ["1", None, True, NAN, -1.0, INF],
        "smoothing": [*NUMBERS, 1.5],
        "marginal": DISTRIBUTION[:3] + DISTRIBUTION[4:],
        "smoothing_dist": DISTRIBUTION[:3] + DISTRIBUTION[4:],
    },
)
add("draws.Averaged", draws.Averaged, {"n": 4}, {"n": WHOLE, "candidates": ["8", 2.5, True, 0, -1]})
add(
    "draws.ContinuousCategorical",
    draws.ContinuousCategorical,
    {},
    {"concentration": POSITIVE, "candidates": ["8", 2.5, True, 0, -1]},
)
add("draws.Categorical.alpha", draws.Categorical().alpha, {"targets": SOFT}, {"targets": [LABELS, None]}, GENERATOR)
add("draws.Averaged.alpha", draws.Averaged(2).alpha, {"targets": SOFT}, {"targets": [LABELS, None]}, GENERATOR)
add(
    "draws.ContinuousCategorical.alpha",
    draws.ContinuousCategorical().alpha,
    {"targets": SOFT.smooth(0.1)},
    {"targets": [LABELS, None, SOFT]},
    GENERATOR,
)

# -------------------------------------------------------------------------------------------------- heads, mixing

SIZES: dict[str, list[Any]] = {"dim": WHOLE, "num_classes": WHOLE}
FED: dict[str, list[Any]] = {
    "features": [
        "text",
        None,
        torch.ones(N, D + 1),
        torch.ones(N, D).long(),
        torch.tensor(1.0),
        torch.ones(N, D).double(),
    ]
}
HEAD = heads.LabelEmbeddingHead(D, K)
add(
    "heads.MLPHead",
    heads.MLPHead,
    {"dim": D, "num_classes": K, "hidden": 4},
    SIZES,
    {"hidden": WHOLE, "output_norm": FLAGS},
)
add("heads.MLPHead()", heads.MLPHead(D, K, 4), {"features": FEATURES}, FED)
add(
    "heads.CosineHead",
    heads.CosineHead,
    {"dim": D, "num_classes": K},
    SIZES,
    {"temperature": POSITIVE, "learn_temperature": FLAGS},
)
add("heads.CosineHead()", heads.CosineHead(D, K), {"features": FEATURES}, FED)
add(
    "heads.LabelEmbeddingHead",
    heads.LabelEmbeddingHead,
    {"dim": D, "num_classes": K},
    SIZES,
    {"sparse": FLAGS, "cosine": FLAGS, "bias": FLAGS},
)
add("heads.LabelEmbeddingHead()", HEAD, {"features": FEATURES}, FED)
add(
    "heads.LabelEmbeddingHead.from_linear",
    heads.LabelEmbeddingHead.from_linear,
    {"linear": nn.Linear(D, K)},
    {"linear": [None, nn.ReLU(), TABLE], "sparse": FLAGS},
)
add(
    "heads.LabelEmbeddingHead.loss",
    HEAD.loss,
    {"features": FEATURES, "targets": LABELS, "criterion": softnce.SoftTargetInfoNCE()},
    {"features": TABLES["features"], "criterion": [None, softnce.NLL(), softnce.SoftTargetInfoNCE]},
    CALLED,
)
add(
    "heads.LabelEmbeddingHead.topk",
    HEAD.topk,
    {"features": FEATURES, "k": 2},
    {"features": TABLES["features"], "k": [*WHOLE, K + 1], "chunk_size": WHOLE},
)

# ------------------------------------------------------------------------------------------ dynamics, information

TABLED: dict[str, list[Any]] = {
    "candidates": [
        "text",
        None,
        LABELS,
        torch.ones(N, K),
        PROBS[:, :2],
        torch.ones(N, K).long(),
        torch.full((N, K), NAN),
    ]
}
OWN: dict[str, list[Any]] = {"own": ["text", None, LABELS.float(), LABELS[:2], LABELS + 5, LABELS - 5, LABELS > 0]}
ROWS: list[Any] = ["text", None, torch.ones(N, K).long(), torch.tensor(1.0)]
OF_SCORES: dict[str, list[Any]] = {"scores": ROWS}
add(
    "dynamics.candidate_weights", dynamics.candidate_weights, {"scores": LOGITS, "candidates": PROBS}, OF_SCORES, TABLED
)
add(
    "dynamics.score_gradient",
    dynamics.score_gradient,
    {"scores": LOGITS, "candidates": PROBS, "own": LABELS},
    OF_SCORES,
    TABLED,
    OWN,
)
add(
    "dynamics.attraction_and_repulsion",
    dynamics.attraction_and_repulsion,
    {"scores": LOGITS, "candidates": PROBS, "own": LABELS},
    OF_SCORES,
    TABLED,
    OWN,
)
add(
    "dynamics.exponent_coefficients",
    dynamics.exponent_coefficients,
    {"target": PROBS[0], "candidates": PROBS},
    TABLED,
    {"target": ["text", None, PROBS, LABELS[:3]]},
)
add(
    "dynamics.cosine_response",
    dynamics.cosine_response,
    {"cosines": torch.zeros(N, K), "candidates": PROBS, "own": LABELS},
    TABLED,
    OWN,
    {
        "cosines": ["text", None, LOGITS, torch.full((N, K), NAN), torch.ones(N, K).long()],
        "temperature": SHARED["temperature"],
    },
)
EMBEDDED: dict[str, list[Any]] = {
    "z": ["text", None, torch.ones(N), torch.ones(N, D + 1), torch.ones(N, D).long()],
    "y": ["text", None, torch.ones(K), torch.ones(K, D + 1), torch.ones(K, D).long()],
    "temperature": SHARED["temperature"],
    "noise_probs": [*DISTRIBUTION, torch.tensor([0.5, 0.5, 0])],
}
for gradients in (dynamics.dot_gradients, dynamics.cosine_gradients):
    add(
        f"dynamics.{gradients.__name__}",
        gradients,
        {"z": FEATURES, "y": TABLE + 1, "candidates": PROBS, "own": LABELS},
        EMBEDDED,
        TABLED,
        OWN,
    )
add(
    "dynamics.cosine_gradients(zero)",
    dynamics.cosine_gradients,
    {"z": FEATURES, "y": TABLE + 1, "candidates": PROBS, "own": LABELS},
    {"z": [torch.zeros(N, D)], "y": [torch.zeros(K, D)]},
)

OF_JOINT: dict[str, list[Any]] = {
    "joint": ["text", None, UNIFORM, PROBS, -JOINT, JOINT.long(), torch.full((2, K), NAN), torch.ones(2, K)]
}
PROBABILITIES: list[Any] = ["text", None, LOGITS, LABELS, torch.ones(K), torch.tensor(1.0), torch.full((K,), NAN)]
add("information.entropy", information.entropy, {"probs": UNIFORM}, {"probs": PROBABILITIES})
add("information.conditional_entropy", information.conditional_entropy, {"joint": JOINT}, OF_JOINT)
add("information.mutual_information", information.mutual_information, {"joint": JOINT}, OF_JOINT)
add(
    "information.smoothed_joint",
    information.smoothed_joint,
    {"joint": JOINT, "epsilon": 0.1},
    OF_JOINT,
    {"epsilon": [*NUMBERS, 1.5, -0.1], "noise_probs": [*DISTRIBUTION]},
)
for bound in (information.information_bound, information.paper_information_bound):
    add(
        f"information.{bound.__name__}",
        bound,
        {"loss": torch.tensor(1.0), "num_negatives": 5},
        {"loss": ["text", None, LABELS], "num_negatives": WHOLE},
    )
add(
    "information.contrastive_information",
    information.contrastive_information,
    {"scores": torch.ones(N, N)},
    {"scores": [*SCORES, LOGITS, torch.ones(N, 1)], "positive": ["text", LABELS.float(), LABELS[:2], LABELS + 5]},
)
add(
    "information.classifier_information",
    information.classifier_information,
    {**SCORED, "class_probs": UNIFORM},
    {
        "logits": ["text", None, torch.ones(N, K).long()],
        "targets": TARGETS[:10] + TARGETS[13:],
        "class_probs": [*DISTRIBUTION, None],
    },
)
add(
    "information.InformationMeter.update",
    information.InformationMeter().update,
    {"samples": torch.ones(3)},
    {"samples": ["text", None]},
)

# -------------------------------------------------------------------------------------- distributions, the teacher

CONTINUOUS = distributions.ContinuousCategorical(UNIFORM, validate_args=True)
AVERAGED = distributions.AveragedCategorical(4, UNIFORM, validate_args=True)
LAMBDA: dict[str, list[Any]] = {
    "probs": ["text", LABELS, torch.tensor(1.0), torch.tensor([NAN, 0.5]), torch.tensor([-1.0, 2.0]), torch.zeros(K)],
}
add(
    "distributions.ContinuousCategorical",
    distributions.ContinuousCategorical,
    {"probs": UNIFORM},
    LAMBDA,
    {"concentration": ["1", None, 0.0, -1.0, NAN, INF], "logits": [UNIFORM]},
)
add(
    "distributions.ContinuousCategorical(logits)",
    lambda logits: distributions.ContinuousCategorical(logits=logits),
    {"logits": LOGITS},
    {"logits": ["text", None, LABELS, torch.full((K,), -INF), torch.full((K,), NAN)]},
)
add(
    "distributions.ContinuousCategorical.log_prob",
    CONTINUOUS.log_prob,
    {"value": UNIFORM},
    {"value": ["text", None, torch.ones(K), torch.ones(K + 1) / (K + 1), torch.full((K,), NAN)]},
)
add(
    "distributions.ContinuousCategorical.sample",
    CONTINUOUS.sample,
    {},
    {"sample_shape": ["text", None, 2.5, (-1,)]},
    GENERATOR,
)
add(
    "distributions.AveragedCategorical",
    distributions.AveragedCategorical,
    {"total_count": 4, "probs": UNIFORM},
    LAMBDA,
    {"total_count": WHOLE, "logits": [UNIFORM]},
)
add(
    "distributions.AveragedCategorical.log_prob",
    AVERAGED.log_prob,
    {"value": torch.tensor([0.5, 0.25, 0.25])},
    {"value": ["text", None, torch.ones(K), UNIFORM, torch.full((K,), NAN)]},
)
add(
    "distributions.AveragedCategorical.sample",
    AVERAGED.sample,
    {},
    {"sample_shape": ["text", None, 2.5, (-1,)]},
    GENERATOR,
)

add("set_memory_budget", set_memory_budget, {"num_bytes": 1 << 30}, {"num_bytes": WHOLE})
add("set_validation", set_validation, {"enabled": True}, {"enabled": FLAGS[:3], "sums": FLAGS[:3]})


# ------------------------------------------------------------------------------------------------------- the tests


def described(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return f"{type(value).__name__}" if isinstance(value, (SoftTargets, np.ndarray, nn.Module)) else f"{value!r:.40}"


CALLS: dict[str, tuple[str, Callable[[], Any]]] = {}
for _name, _function, _good, _wrong in MISUSE:
    for _argument, _values in _wrong.items():
        for _i, _value in enumerate(_values):
            CALLS[f"{_name}({_argument}={described(_value)}) #{_i}"] = (
                _argument,
                lambda f=_function, given={**_good, _argument: _value}: f(**given),  # type: ignore[misc]
            )

OURS = (str(Path(softnce.__file__).parent), torch.distributions.distribution.__file__)
"""Where errors may come from: softnce, and what every distribution of torch checks its parameters and values with."""


def problem_of(argument: str, call: Callable[[], Any]) -> str | None:
    """What is wrong with how ``call`` is refused; None if nothing is."""
    try:
        found = call()
    except (ValueError, TypeError, IndexError) as error:
        raised = traceback.extract_tb(error.__traceback__)[-1]
        if not raised.filename.startswith(OURS):
            return f"raised in {raised.filename}:{raised.lineno}: {error}"
        return None if re.search(rf"\b{argument}\b", str(error)) else f"{argument} is not named: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return f"accepted: {found!r:.60}"


ARGUMENTS = list(dict.fromkeys(name.partition("=")[0] for name in CALLS))


@pytest.fixture(autouse=True)
def checks_of_distributions() -> Iterator[None]:
    """torch.compile, once used in the process, leaves the checks of torch.distributions off."""
    before = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(True)
    yield
    torch.distributions.Distribution.set_default_validate_args(before)


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_misuse_is_refused_in_a_line_that_names_the_argument(argument: str) -> None:
    problems = {name: problem_of(*call) for name, call in CALLS.items() if name.startswith(f"{argument}=")}
    assert problems
    assert {name: problem for name, problem in problems.items() if problem} == {}


@pytest.mark.parametrize(("name", "function", "good"), [case[:3] for case in MISUSE], ids=[case[0] for case in MISUSE])
def test_the_call_itself_works(name: str, function: Callable[..., Any], good: dict[str, Any]) -> None:
    function(**good)


def test_labels_are_refused_where_a_loss_ignores_another_type() -> None:
    for wrong in SHARED["ignore_index"]:
        with pytest.raises(TypeError, match="ignore_index must be a whole number"):
            softnce.SoftTargetInfoNCE(ignore_index=wrong)(LOGITS, LABELS)


def test_a_dummy_batch_passes_with_sums_unchecked() -> None:
    """Keras tries a loss on rows of ones before it trains."""
    loss, dummy = softnce.SoftTargetCrossEntropy(), torch.ones(N, 5)
    with pytest.raises(ValueError, match="got a sum of 5"):
        loss(torch.zeros(N, 5), dummy)
    with set_validation(True, sums=False):
        assert loss(torch.zeros(N, 5), dummy).isfinite()
        assert SoftTargets.from_dense(dummy).shape == (N, 5)
        for wrong in (-dummy, dummy * NAN, dummy * INF, LABELS + 9):
            with pytest.raises(ValueError, match="targets holds"):
                loss(torch.zeros(N, 5), wrong)
    with pytest.raises(ValueError, match="got a sum of 5"):
        loss(torch.zeros(N, 5), dummy)


@pytest.mark.parametrize("loss", [softnce.SoftTargetInfoNCE(), softnce.ExpectedInfoNCE(), softnce.NLL()], ids=repr)
def test_tensors_without_data_pass_or_are_refused_clearly(loss: nn.Module) -> None:
    with pytest.raises(ValueError, match="targets are on cpu, but logits are on meta"):
        loss(LOGITS.to("meta"), LABELS)
    assert loss(LOGITS.to("meta"), LABELS.to("meta")).device.type == "meta"

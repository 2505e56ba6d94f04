"""Ranks that train one loss must have its options alike, and draw as many candidates as one process would."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch import Tensor

from softnce import (
    NLL,
    BatchCandidates,
    ClassCandidates,
    ExpectedInfoNCE,
    InfoNCE,
    NoiseCandidates,
    SampledCandidates,
    SoftTargetCrossEntropy,
    SoftTargetInfoNCE,
    SoftTargets,
    draws,
)
from softnce._core import ranks as _ranks
from softnce.losses import ClassifierLoss

K = 5
ETA = torch.tensor([0.3, 0.25, 0.2, 0.15, 0.1])
HARD = SoftTargets.from_labels(torch.tensor([0, 1, 2]), K)
SOFT = HARD.mix(SoftTargets.from_labels(torch.tensor([1] * 3), K), 0.5)
BATCH = BatchCandidates


def pair(loss: Callable[..., ClassifierLoss], name: str, first: object, second: object) -> tuple[ClassifierLoss, ...]:
    return loss(**{name: first}), loss(**{name: second})


def uniform(**given: object) -> ClassifierLoss:
    return SoftTargetInfoNCE("uniform", **given)


DIFFERENT = {
    "label_smoothing": pair(uniform, "label_smoothing", 0.1, 0.2),
    "label_smoothing of cross-entropy": pair(SoftTargetCrossEntropy, "label_smoothing", 0.1, 0.2),
    "remove_accidental_hits": pair(uniform, "remove_accidental_hits", True, False),
    "the loss": (SoftTargetInfoNCE("uniform"), ExpectedInfoNCE("uniform")),
    "the loss: NLL, cross-entropy": (NLL(), SoftTargetCrossEntropy()),
    "the loss: cross-entropy, a contrast": (SoftTargetCrossEntropy(), ExpectedInfoNCE("uniform")),
    "class_weight": pair(ExpectedInfoNCE, "class_weight", ETA, ETA.flip(0)),
    "class_weight of cross-entropy": pair(SoftTargetCrossEntropy, "class_weight", ETA, ETA.flip(0)),
    "class_weight on one rank": pair(SoftTargetCrossEntropy, "class_weight", ETA, None),
    "temperature, tensors": pair(uniform, "temperature", torch.tensor(0.5), torch.tensor(0.7)),
    "noise_probs": pair(ExpectedInfoNCE, "noise_probs", ETA, ETA.flip(0)),
    "noise_probs, of which one is running": pair(ExpectedInfoNCE, "noise_probs", "running", "uniform"),
    "noise_probs against classes": (
        SoftTargetInfoNCE(candidates=ClassCandidates()), SoftTargetInfoNCE("uniform", candidates=ClassCandidates()),
    ),
    "negatives, of which one is the default": pair(ExpectedInfoNCE, "negatives", None, "drawn"),
    "candidates of different kinds": pair(uniform, "candidates", BATCH(), SampledCandidates(8)),
    "candidates and more": pair(uniform, "candidates", BATCH(), BATCH() + SampledCandidates(8)),
    "candidates of different size": pair(uniform, "candidates", SampledCandidates(4), SampledCandidates(8)),
    "candidates of different count": pair(
        ExpectedInfoNCE, "candidates", BATCH() + NoiseCandidates(4), BATCH() + NoiseCandidates(8)
    ),
    "draw of different n": pair(uniform, "draw", draws.Averaged(2), draws.Averaged(3)),
    "draw of different kinds": pair(uniform, "draw", draws.Averaged(2), draws.Categorical()),
}  # fmt: skip
"""The losses of the two ranks; a name begins with what the error calls different."""


def refusals(rank: int) -> dict[str, tuple[str, int]]:
    """The error of each pair of losses that differ between the ranks, and how many headers were exchanged before."""
    sent, real = [], _ranks.all_gather_single

    def counting(received: Tensor, numbers: Tensor, *given: object, **named: object) -> None:
        sent.append(numbers)
        real(received, numbers, *given, **named)

    _ranks.all_gather_single = counting
    spread = ETA if rank == 0 else ETA.flip(0)
    calls = {name: (losses[rank], HARD if "NLL" in name else SOFT) for name, losses in DIFFERENT.items()}
    calls["smoothing_dist"] = SoftTargetInfoNCE("uniform"), SOFT.smooth(0.1, spread)
    found = {}
    for name, (loss, targets) in calls.items():
        sent.clear()
        try:
            loss(torch.zeros(3, K, requires_grad=True), targets, generator=torch.Generator())
            found[name] = "no error", len(sent)
        except ValueError as error:
            found[name] = str(error), len(sent)
    _ranks.all_gather_single = real
    return found


def alike(rank: int) -> list[float]:
    """Values of losses whose tensors are equal but for rounding, and of precisions of their own."""
    eta = ETA.double() * (1 + rank * 1e-15) if rank else ETA
    losses = SoftTargetCrossEntropy(class_weight=eta), ExpectedInfoNCE(eta / eta.sum())
    return [float(loss(torch.zeros(3, K, requires_grad=True), SOFT).detach()) for loss in losses]


def expected_value(rank: int) -> float:
    """The mean loss of zero scores: log of one more than the candidates drawn from η."""
    loss = SoftTargetInfoNCE("uniform", draw=draws.Averaged(3))
    logits, labels = torch.zeros(8, K, requires_grad=True), torch.zeros(8, dtype=torch.long)
    return float(loss(logits, labels, generator=torch.Generator().manual_seed(rank)).detach())


def estimates(rank: int) -> list[float]:
    """The running noise after steps on uneven batches, one of them empty."""
    loss = InfoNCE()
    for step, sizes in enumerate([(3, 1), (2, 0), (0, 4)]):
        labels = torch.randint(K, (4,), generator=torch.Generator().manual_seed(step))[: sum(sizes)]
        mine = labels[: sizes[0]] if rank == 0 else labels[sizes[0] :]
        loss(torch.zeros(len(mine), K, requires_grad=True), SoftTargets.from_labels(mine, K)).backward()
    return loss.noise.probs().tolist()


def one_rank(rank: int) -> tuple[dict[str, tuple[str, int]], float, list[float], list[float]]:
    dist.init_process_group("gloo")
    return refusals(rank), expected_value(rank), estimates(rank), alike(rank)


@pytest.fixture(scope="module")
def processes() -> list:
    return on_ranks(one_rank, 2, seconds=120)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*DIFFERENT, "smoothing_dist"])
def test_losses_that_differ_are_refused_by_the_first_exchange(processes: list, name: str) -> None:
    for refused, *_ in processes:
        message, headers = refused[name]
        option, is_refused, _ = message.partition(" differs between ranks")
        assert is_refused, message
        assert name.startswith(option)
        assert "\n" not in message
        assert headers == 1


@pytest.mark.slow
def test_ranks_agree_on_options_candidates_and_noise(processes: list) -> None:
    loss = InfoNCE()
    for step, size in enumerate([4, 2, 4]):
        labels = torch.randint(K, (4,), generator=torch.Generator().manual_seed(step))[:size]
        loss(torch.zeros(size, K, requires_grad=True), labels)
    for _, value, eta, values in processes:
        assert value == pytest.approx(float(torch.tensor(17.0).log()), abs=1e-5)
        assert eta == pytest.approx(loss.noise.probs().tolist(), abs=1e-12)
        assert values == pytest.approx(processes[0][-1], abs=1e-6)

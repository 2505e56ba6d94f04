"""Ranks that train one loss must have its options alike, and draw as many candidates as one process would."""

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks

from softnce import ExpectedInfoNCE, InfoNCE, SoftTargetInfoNCE, SoftTargets, draws

K = 5


def refusals(first: bool) -> dict[str, str]:
    """The error of each pair of losses that differ between the ranks."""
    logits = torch.zeros(3, K, requires_grad=True)
    hard = SoftTargets.from_labels(torch.tensor([0, 1, 2]), K)
    soft = hard.mix(SoftTargets.from_labels(torch.tensor([1] * 3), K), 0.5)
    spread = torch.tensor([0.4, 0.3, 0.1, 0.1, 0.1] if first else [0.3, 0.2, 0.2, 0.2, 0.1])
    losses = {
        "label_smoothing": (SoftTargetInfoNCE("uniform", label_smoothing=0.1 if first else 0.2), soft),
        "remove_accidental_hits": (SoftTargetInfoNCE("uniform", remove_accidental_hits=first), soft),
        "the loss": ((SoftTargetInfoNCE if first else ExpectedInfoNCE)("uniform"), soft),
        "smoothing_dist": (SoftTargetInfoNCE("uniform"), soft.smooth(0.1, spread)),
    }
    found = {}
    for name, (loss, targets) in losses.items():
        try:
            loss(logits, targets)
        except ValueError as error:
            found[name] = str(error)
    return found


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


def one_rank(rank: int) -> tuple[dict[str, str], float, list[float]]:
    dist.init_process_group("gloo")
    return refusals(rank == 0), expected_value(rank), estimates(rank)


@pytest.mark.slow
def test_ranks_agree_on_options_candidates_and_noise() -> None:
    loss = InfoNCE()
    for step, size in enumerate([4, 2, 4]):
        labels = torch.randint(K, (4,), generator=torch.Generator().manual_seed(step))[:size]
        loss(torch.zeros(size, K, requires_grad=True), labels)
    for refused, value, eta in on_ranks(one_rank, 2):
        assert set(refused) == {"label_smoothing", "remove_accidental_hits", "the loss", "smoothing_dist"}
        assert all(message.startswith(f"{name} differs between ranks") for name, message in refused.items())
        assert value == pytest.approx(float(torch.tensor(17.0).log()), abs=1e-5)
        assert eta == pytest.approx(loss.noise.probs().tolist(), abs=1e-12)

"""Ranks and their metrics against sorting by hand, row by row."""

import itertools
import math
import random

import pytest
import torch
from torch import Tensor

from softnce import SoftTargets, ranking


def rank_by_hand(scores: list[float], answer: int, excluded: set[int]) -> float:
    """The mean of the places that the answer shares with its ties, in the order of all that competes."""
    order = sorted((s for k, s in enumerate(scores) if k == answer or k not in excluded), reverse=True)
    places = [place for place, score in enumerate(order, 1) if score == scores[answer]]
    return sum(places) / len(places)


def metrics_by_hand(scores: list[float], weights: dict[int, float], excluded: set[int], k: int) -> list[float]:
    rank = {a: rank_by_hand(scores, a, excluded - set(weights)) for a in weights}
    found = [a for a in weights if rank[a] <= k]
    gain = sum(weights[a] / math.log2(1 + rank[a]) for a in found)
    best = sum(w / math.log2(1 + i) for i, w in enumerate(sorted(weights.values(), reverse=True)[:k], 1))
    return [len(found) / len(weights), gain / best, float(bool(found)), 1 / min(rank.values())]


def case(seed: int) -> tuple[list[list[float]], list[dict[int, float]], list[list[int]]]:
    draw = random.Random(seed)
    n, classes = draw.randint(1, 5), draw.randint(1, 30)
    levels = draw.choice([2, 5, 1000])  # few levels: many ties
    scores = [[draw.randint(0, levels) / 4 for _ in range(classes)] for _ in range(n)]
    if draw.random() < 0.2:
        scores[0] = [s if s else -math.inf for s in scores[0]]
    weights = []
    for _ in range(n):
        answers = draw.sample(range(classes), draw.randint(1, min(classes, draw.choice([1, 2, 8]))))
        weights.append({a: draw.randint(1, 4) / 1 for a in answers})
    excluded = [[draw.randrange(classes) for _ in range(draw.choice([0, 1, 10]))] for _ in range(n)]
    return scores, weights, excluded


def targets_of(weights: list[dict[int, float]], classes: int, form: str) -> SoftTargets | Tensor:
    if form == "pairs":
        width = max(map(len, weights)) + 1
        index = torch.tensor([[*w, *[0] * (width - len(w))] for w in weights])
        given = [[*(v / sum(w.values()) for v in w.values()), *[0.0] * (width - len(w))] for w in weights]
        return SoftTargets(classes, index, torch.tensor(given, dtype=torch.float64))
    rows = torch.zeros(len(weights), classes, dtype=torch.float64)
    for row, w in zip(rows, weights, strict=True):
        row[list(w)] = torch.tensor(list(w.values()), dtype=torch.float64) / sum(w.values())
    return SoftTargets(classes, None, rows) if form == "dense" else rows


def exclude_of(excluded: list[list[int]], form: str) -> ranking.Exclude:
    rows = [torch.tensor(each, dtype=torch.long) for each in excluded]
    if form == "padded":
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
    offsets = torch.tensor([0, *itertools.accumulate(map(len, rows))])
    return rows if form == "list" else (offsets, torch.cat(rows))


@pytest.mark.parametrize("block", range(6))
def test_ranks_are_those_of_sorting_by_hand(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "ROWS", 2)
    monkeypatch.setattr(ranking, "FEW", 4)
    for seed in range(100 * block, 100 * block + 100):
        scores, weights, excluded = case(seed)
        form = random.Random(seed).choice(["pairs", "dense", "probabilities"])
        shape = random.Random(seed + 1).choice(["padded", "list", "offsets"])
        targets, exclude = targets_of(weights, len(scores[0]), form), exclude_of(excluded, shape)
        found = ranking.ranks(torch.tensor(scores), targets, exclude=exclude, chunk_size=3 + seed % 9)
        k = 1 + seed % 7
        mine = torch.stack([found.recall(k), found.ndcg(k), found.hits(k), found.mrr()], 1)
        by_hand = [metrics_by_hand(s, w, set(e), k) for s, w, e in zip(scores, weights, excluded, strict=True)]
        torch.testing.assert_close(mine, torch.tensor(by_hand, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("cosine", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_a_table_ranks_as_its_logits(cosine: bool, biased: bool) -> None:
    g = torch.Generator().manual_seed(0)
    z, table = torch.randn(300, 8, generator=g), torch.randn(50, 8, generator=g)
    table[7] = table[33]  # a tie
    bias = torch.randn(50, generator=g) if biased else None
    unit = torch.nn.functional.normalize if cosine else Tensor.clone
    logits = unit(z).double() @ unit(table).double().T + (0 if bias is None else bias)
    labels = torch.randint(50, (300,), generator=g)
    labels[::10] = 7
    found = ranking.linear_ranks(z, table, labels, bias=bias, cosine=cosine, chunk_size=11)
    assert torch.equal(found.rank, ranking.ranks(logits, labels).rank)
    if not biased:
        assert (found.rank[::10] % 1 == 0.5).all()


def test_ignored_rows_and_rows_without_answers_do_not_count() -> None:
    logits = torch.eye(4)
    found = ranking.ranks(logits, torch.tensor([0, -100, 3, 2]))
    torch.testing.assert_close(found.hits(1), torch.tensor([1, torch.nan, 0, 0]).double(), equal_nan=True)
    assert found.hits(1).nanmean() == 1 / 3
    assert ranking.ranks(logits, torch.tensor([0, -100, 2, 2])).recall(1).nanmean() == 2 / 3
    perfect = ranking.ranks(logits, torch.tensor([0, 1, 2, -100]))
    assert perfect.mrr().nanmean() == perfect.ndcg(2).nanmean() == 1
    nothing = SoftTargets(4, torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, 1))
    assert ranking.ranks(logits[:1], nothing).mrr().isnan().all()


def test_a_model_that_says_the_same_of_all_gains_nothing() -> None:
    for value in (0.0, torch.nan, -torch.inf):
        found = ranking.ranks(torch.full((1, 9), value), torch.tensor([4]), exclude=torch.tensor([[0, 1, 4, -1]]))
        assert found.rank.item() == 4  # in the middle of the seven that compete


def test_a_meter_is_the_mean_over_rows() -> None:
    logits, labels = torch.randn(16, 20), torch.randint(20, (16,))
    meter, found = ranking.RankingMeter(ks=(3,)), ranking.ranks(logits, labels)
    for rows in torch.arange(16).split([5, 8, 3]):
        meter.update(ranking.ranks(logits[rows], labels[rows]))
    each = {"mrr": found.mrr(), "recall@3": found.recall(3), "ndcg@3": found.ndcg(3), "hits@3": found.hits(3)}
    assert meter.compute() == pytest.approx({name: values.mean().item() for name, values in each.items()})
    assert math.isnan(ranking.RankingMeter().compute()["mrr"])


@pytest.mark.parametrize(
    ("exclude", "message"),
    [
        (torch.tensor([[4], [-1]]), "exclude"),
        (torch.tensor([[1]]), r"exclude must be integers \(2, E\)"),
        ([torch.tensor([1])], "exclude must hold one tensor for each of the 2 rows"),
        ((torch.tensor([0, 1, 3]), torch.tensor([1, 2])), "exclude must hold offsets"),
    ],
)
def test_bad_exclusions_get_one_clear_error(exclude: ranking.Exclude, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ranking.ranks(torch.zeros(2, 4), torch.tensor([0, 1]), exclude=exclude)

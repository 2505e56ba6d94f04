"""Equal targets are equal in any form; nothing is rounded, counted or shared that should not be."""

import numpy as np
import pytest
import torch
from batches import KINDS, make_targets
from torch.utils.data import DataLoader, TensorDataset

from softnce import SoftTargets, functional
from softnce.targets import Form

FORMS = {
    "dense": lambda t: t.to_dense(),
    "float32": lambda t: t.to(torch.float32).to_dense(),
    "pairs": lambda t: t.mix(t, 0.3),
    "reordered": lambda t: t.mix(t, 0.5)[torch.arange(len(t))],
    "explicit": lambda t: SoftTargets(t.num_classes, torch.arange(t.num_classes).expand(t.shape), t.unmasked_dense()),
}


def test_accidental_hits_are_found_in_any_form() -> None:
    t = SoftTargets.from_labels([0, 1, 0, 2], 40, smoothing=0.1)
    logits = torch.randn(4, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values = [
        functional.soft_target_info_nce(logits, t, candidates=other, remove_accidental_hits=True)
        for other in (t, t.to_dense(), FORMS["pairs"](t), FORMS["explicit"](t.to(torch.float64)))
    ]
    for value in values[1:]:
        torch.testing.assert_close(value, values[0], rtol=1e-6, atol=0)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dist", [None, [0.7] + [0.3 / 39] * 39])
def test_rows_that_are_vertices_are_found_in_any_form(smoothing: float, dist: list[float] | None) -> None:
    dist = None if dist is None else torch.tensor(dist, dtype=torch.float64)
    hard = SoftTargets.from_labels([3, 0, 7], 40, smoothing, dist)
    mixed = hard.mix(hard.flip(0), 0.5)  # the row in the middle stays a vertex
    for t, expected in ((hard, [True] * 3), (mixed, [False, True, False])):
        for form in (t, t.to_dense(), FORMS["pairs"](t), t.to_dense().to(torch.bfloat16)):
            classes, is_vertex = form.vertex(smoothing, dist)
            assert is_vertex.tolist() == expected
            assert classes[is_vertex].tolist() == torch.tensor([3, 0, 7])[is_vertex].tolist()
            assert not form.vertex(0.3, dist)[1].any()


def test_a_vertex_is_found_without_waiting_for_a_device() -> None:
    t = SoftTargets.from_labels(torch.tensor([1, 1, 2, 1, 1, 2]), 4).mix(SoftTargets.from_labels([1] * 6, 4), 0.5)
    with torch.device("meta"):  # a default device does not reach inside
        assert t.vertex()[1].tolist() == [True, True, False] * 2
    for away in (t.to("meta"), t.to_dense().to("meta")):
        assert [x.shape for x in away.vertex()] == [(6,)] * 2


# -------------------------------------------------------------------------------------------------------- precision


def test_numbers_of_python_and_counts_do_not_round() -> None:
    a, b = SoftTargets.from_labels([0, 2], 3, 0.1), SoftTargets.from_labels([1, 2], 3, 0.1)
    mixed = a.mix(b, 0.3).dense(torch.float64)
    assert mixed[0].tolist() == pytest.approx([0.27 + 0.1 / 3, 0.63 + 0.1 / 3, 0.1 / 3], abs=1e-15)
    twice = a.mix(b, 0.3).mix(a, 0.6).dense(torch.float64)
    assert twice[0, 1].item() == pytest.approx(0.6 * 0.63 + 0.1 / 3, abs=1e-15)
    for votes in (torch.tensor([[1, 2, 0]]), torch.tensor([[1, 2] + [0] * 9])):
        t = SoftTargets.from_votes(votes, votes.shape[1], smoothing=0.1)
        assert t.dense(torch.float64)[0, 1].item() == pytest.approx(0.6 + 0.1 / votes.shape[1], abs=1e-15)
        assert t.dtype == t.dense().dtype == torch.float32
    different = SoftTargets.cat([a, SoftTargets.from_labels([1], 3, 0.2)])
    assert different.dense(torch.float64)[0, 1].item() == pytest.approx(0.1 / 3, abs=1e-16)
    logits = torch.randn(2, 3, dtype=torch.float64)
    exact = a.to_dense().to(torch.float64)
    exact.weight = 0.3 * a.dense(torch.float64) + 0.7 * b.dense(torch.float64)
    for loss in (functional.soft_target_info_nce, functional.soft_target_cross_entropy):
        torch.testing.assert_close(loss(logits, a.mix(b, 0.3)), loss(logits, exact), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("form", ["pairs", "dense"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_the_sum_of_a_row(form: str, dtype: torch.dtype) -> None:
    rows = torch.randn(200, 12, generator=torch.Generator().manual_seed(0)).softmax(1).to(dtype)
    t = SoftTargets(12, torch.arange(12).expand(200, 12) if form == "pairs" else None, rows)
    before = rows.double().sum(1)
    for after, expected in (
        (t.smooth(0.1), 0.9 * before + 0.1),
        (t.mix(t.flip(), 0.3), 0.3 * before + 0.7 * before.flip(0)),
    ):
        assert after.dtype == dtype
        torch.testing.assert_close(after.dense(torch.float64).sum(1), expected, rtol=0, atol=1e-6)


def test_class_mass_counts_beyond_float32() -> None:
    """A row repeated 2²⁴ + 2 times without its memory."""
    n = 2**24 + 2
    labels = torch.zeros(1, 1, dtype=torch.long).expand(n, 1)
    dense = torch.tensor([[1.0, 0.0]]).expand(n, 2)
    for t in (SoftTargets(2, labels, None), SoftTargets(2, None, dense), SoftTargets(2, labels, None, 0.5)):
        assert t.class_mass().sum().item() == n


# ------------------------------------------------------------------------------------------------------------ memory


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_one_row_is_a_copy(kind: str) -> None:
    t = make_targets(kind, 5, 6, torch.Generator().manual_seed(0))
    before = t.unmasked_dense()
    for _, batch in DataLoader(TensorDataset(torch.arange(5), t), batch_size=4):
        for field in (batch.index, batch.weight, batch.mask, batch.smoothing):
            if isinstance(field, torch.Tensor):
                assert field.untyped_storage().nbytes() == field.nbytes
                field.zero_()
    assert torch.equal(t.unmasked_dense(), before)


# ---------------------------------------------------------------------------------------- the classes beyond the top k

TOP = np.array([[3, 1], [0, 2]]), np.log([[0.5, 0.25], [0.6, 0.1]])


def test_top_k_log_probabilities_and_the_use_of_the_rest() -> None:
    rows = torch.tensor([[0, 0.25, 0, 0.5, 0], [0.6, 0, 0.1, 0, 0]], dtype=torch.float64)
    rest = torch.tensor([0.25, 0.3], dtype=torch.float64)
    spread = SoftTargets.from_topk_log_probs(*TOP, 5, rest="spread")
    torch.testing.assert_close(spread.dense(), rows + rest[:, None] / 5)
    renormalised = SoftTargets.from_topk_log_probs(*TOP, 5, rest="renormalise")
    torch.testing.assert_close(renormalised.dense(), rows / rows.sum(1, keepdim=True))
    group = SoftTargets.from_topk_log_probs(*TOP, 5)
    torch.testing.assert_close(group.rest, rest)
    torch.testing.assert_close(group.at(group.classes), torch.tensor(np.exp(TOP[1])))
    logits = 3 * torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    of_logits = SoftTargets.from_topk(logits, 3, remainder="group")
    torch.testing.assert_close(of_logits.rest + of_logits.weight.sum(1), torch.ones(4))


def test_the_rest_is_carried_by_everything_that_moves_rows(tmp_path) -> None:
    t = SoftTargets.from_topk_log_probs(*TOP, 5)
    torch.save(t, tmp_path / "t.pt")
    loaded = torch.load(tmp_path / "t.pt", weights_only=True)
    batch = next(iter(DataLoader(TensorDataset(torch.arange(2), t), batch_size=2)))[1]
    for same in (loaded, batch, t.clone(), t[:], t.flip().flip(), SoftTargets.cat([t[:1], t[1:]]), t.detach(), t.cpu()):
        assert (same == t).all()
        assert torch.equal(same.rest, t.rest)
    assert t.to(torch.float32).rest.dtype == torch.float32
    assert "the rest as one group" in repr(t)
    wide = SoftTargets.cat([t, SoftTargets.from_pairs([[0, 1, 2]], [[0.25, 0.25, 0.5]], 5)])
    assert wide.rest.tolist() == [*t.rest.tolist(), 0]
    assert (wide[:2] == t).all(), "a filled row names no further class"
    assert not (t == SoftTargets.from_topk_log_probs(TOP[0], TOP[1] - 0.1, 5)).any()
    named = SoftTargets.from_topk_log_probs([[3, 1, 0], [0, 2, 4]], np.log([[0.5, 0.25, 1e-99], [0.6, 0.1, 1e-99]]), 5)
    assert not (t == named).any(), "a class of weight 0 is not a class of unknown weight"
    assert t.argmax().tolist() == [3, 0]


@pytest.mark.parametrize(
    "use",
    [
        lambda t: t.dense(),
        lambda t: t.numpy(),
        lambda t: t.mix(t, 0.5),
        lambda t: t.smooth(0.1),
        lambda t: t.class_mass(),
        lambda t: t.expectation(torch.ones(5)),
        lambda t: t.entropy(),
        lambda t: t.sample(),
        lambda t: t.compact(),
        lambda t: functional.soft_target_info_nce(torch.zeros(2, 5), t),
        lambda t: functional.expected_info_nce(torch.zeros(2, 5), t),
    ],
)
def test_what_needs_every_class_refuses_a_group(use) -> None:
    with pytest.raises(ValueError, match=r"needs the weight of every class.*use SoftTargetCrossEntropy"):
        use(SoftTargets.from_topk_log_probs(*TOP, 5))


def test_a_number_that_is_not_read_makes_a_mass_per_row(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = SoftTargets.from_labels([0, 2], 3, 0.1), SoftTargets.from_labels([1, 2], 3, 0.4)
    monkeypatch.setattr("softnce.targets._algebra.values_are_checked", lambda *tensors: False)
    mixed = a.mix(b, torch.tensor(0.3, dtype=torch.float64))
    assert mixed.form == Form.PAIRS
    torch.testing.assert_close(mixed[1:].dense(torch.float64), a.mix(b, 0.3)[1:].dense(torch.float64))

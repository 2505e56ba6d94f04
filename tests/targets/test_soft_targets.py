"""Soft targets compute what their dense rows say, in any form; nothing is rounded or shared that should not be."""

import copy
import pickle

import numpy as np
import pytest
import torch
from batches import KINDS, Series, make_targets, seeded
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from softnce import SoftTargets, functional, set_validation
from softnce.targets import Form

LABELS = torch.tensor([0, 2, 1, 2])
XI = torch.tensor([0.7, 0.1, 0.1, 0.1])
FORMS = {
    "dense": lambda t: t.to_dense(),
    "pairs": lambda t: t.mix(t, 0.3),
    "explicit": lambda t: SoftTargets(t.num_classes, torch.arange(t.num_classes).expand(t.shape), t.unmasked_dense()),
}


def top_k() -> SoftTargets:
    """The classes beyond the top two are one group."""
    return SoftTargets.from_topk_log_probs([[3, 1], [0, 2]], np.log([[0.5, 0.25], [0.6, 0.1]]), 5)


# -------------------------------------------------------------------------------------------------------- mixtures


def test_smoothing_moves_rows_towards_a_distribution() -> None:
    t = SoftTargets.from_labels(LABELS, num_classes=4, smoothing=0.2)
    assert_close(t.dense(), 0.8 * torch.nn.functional.one_hot(LABELS, 4) + 0.05)
    assert (len(t), t.num_classes) == (4, 4)
    t = SoftTargets.from_labels(LABELS, num_classes=4, smoothing=0.2, smoothing_dist=XI)
    assert_close(t.dense()[0], torch.tensor([0.94, 0.02, 0.02, 0.02]))
    skewed = SoftTargets.from_labels(LABELS, 4, 0.1, XI)
    for dist in (None, torch.tensor([0.1, 0.2, 0.3, 0.4])):  # smoothing twice makes one background of two
        again = skewed.smooth(0.2, dist)
        assert_close(again.dense(), 0.8 * skewed.dense() + 0.2 * (torch.full((4,), 0.25) if dist is None else dist))
        assert again.form == skewed.form


@pytest.mark.parametrize("lam", [0.3, torch.tensor(0.3), torch.tensor([0.3, 1.0, 0.0, 0.5])])
def test_mix_is_the_mix_of_dense_rows(lam: float | torch.Tensor) -> None:
    t = SoftTargets.from_labels(LABELS, 4, smoothing=0.1)
    column = lam[:, None] if isinstance(lam, torch.Tensor) and lam.dim() else lam
    expected = column * t.dense() + (1 - column) * t.dense().flip(0)
    mixed = t.mix(t.flip(0), lam)
    assert_close(mixed.dense(), expected)
    assert mixed.classes.shape == (4, 2)
    assert mixed.smoothing == 0.1, "a shared background must stay shared: it cancels for free"
    again = mixed.mix(SoftTargets.from_dense(t.dense()), 0.5)
    assert_close(again.dense(), 0.5 * expected + 0.5 * t.dense())


def test_mix_of_different_backgrounds(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = SoftTargets.from_labels(LABELS, 4, 0.1), SoftTargets.from_labels(LABELS.flip(0), 4, 0.4)
    assert_close(a.mix(b, 0.25).dense(), 0.25 * a.dense() + 0.75 * b.dense())
    rows = torch.rand(4)
    assert_close(a.mix(b, rows).dense(), rows[:, None] * a.dense() + (1 - rows[:, None]) * b.dense())
    skewed = SoftTargets.from_labels([0, -100, 2, 1], 4, 0.1, XI)
    for checked in (True, False):
        with set_validation(checked), pytest.raises(ValueError, match="different smoothing_dist"):
            skewed.mix(a, 0.5)
    with pytest.raises(ValueError, match=r"make them dense first: t\.to_dense\(\)"):
        SoftTargets.cat([skewed, a])
    joined = SoftTargets.cat([skewed.to_dense(), a])
    assert joined.mask.tolist() == [True, False] + [True] * 6
    assert_close(joined.dense(), torch.cat([skewed.dense(), a.dense()]), equal_nan=True)
    expected = a.mix(b, 0.3).dense(torch.float64)
    monkeypatch.setattr("softnce._inputs.values_are_checked", lambda *tensors: False)
    unread = a.mix(b, torch.tensor(0.3, dtype=torch.float64))  # a number that is not read makes a mass per row
    assert unread.form == Form.PAIRS
    assert_close(unread[1:].dense(torch.float64), expected[1:])


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4), st.integers(0, 1000))
def test_cat_is_the_cat_of_dense_rows(kinds: list[str], seed: int) -> None:
    generator = seeded(seed)
    parts = [make_targets(kind, 1 + i, 6, generator) for i, kind in enumerate(k for k in kinds if k != "smoothed")]
    if not parts:
        return
    joined = SoftTargets.cat(parts)
    assert_close(joined.unmasked_dense(torch.float64), torch.cat([p.unmasked_dense(torch.float64) for p in parts]))
    if any(part.mask is not None for part in parts):
        assert joined.mask is not None
        assert int(joined.mask.sum()) == sum(len(p) if p.mask is None else int(p.mask.sum()) for p in parts)


# ------------------------------------------------------------------------------------------------------ statistics


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_are_those_of_dense_rows(kind: str) -> None:
    t = make_targets(kind, 9, 6, seeded(4))
    rows, counts = t.unmasked_dense(torch.float64), torch.ones(9, dtype=torch.bool) if t.mask is None else t.mask
    assert_close(t.class_mass().double(), rows[counts].sum(0))
    values, by_row = torch.randn(6, dtype=torch.float64), torch.randn(9, 6, dtype=torch.float64)
    assert_close(t.expectation(values), rows @ values)
    assert_close(t.expectation(by_row), (rows * by_row).sum(1))
    t = t.to(torch.float64)
    best = t.argmax()
    assert (best[~counts] == -100).all()
    assert_close(rows.gather(1, best.clamp(min=0)[:, None])[counts, 0], rows.amax(1)[counts])
    # float32 weights that labels imply, and float64 ones of the others
    assert_close(t.entropy()[counts].double(), -torch.xlogy(rows, rows).sum(1)[counts], rtol=1e-5, atol=1e-6)


def test_a_background_may_hold_the_likeliest_class() -> None:
    t = SoftTargets.from_labels([0, 1], 3, smoothing=0.8, smoothing_dist=[0.1, 0.1, 0.8])
    assert t.argmax().tolist() == t.dense().argmax(1).tolist() == [2, 2]
    alone = SoftTargets.from_labels([0, 1], 3, smoothing=1.0, smoothing_dist=[0.0, 0.0, 1.0])
    assert [found.tolist() for found in alone.vertex()] == [[2, 2], [True, True]]
    assert_close(t.entropy(), -torch.xlogy(t.dense(), t.dense()).sum(1))


def test_ignored_rows_are_of_no_class() -> None:
    t = SoftTargets.from_labels([1, -100, 2], 3, smoothing=0.3)
    assert t.dense().isnan().all(1).tolist() == [False, True, False]
    assert t.argmax().tolist() == [1, -100, 2]
    assert t.entropy().isnan().tolist() == [False, True, False]
    assert np.isnan(t.numpy()[1]).all()
    with pytest.raises(ValueError, match="probs holds NaN"):
        SoftTargets.from_dense(t.dense())
    unsigned = SoftTargets.from_labels(torch.tensor([156, 3, 255], dtype=torch.uint8), 256)
    assert unsigned.mask is None, "255 must not wrap around"
    assert unsigned.labels.tolist() == [156, 3, 255]


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "ignored"])
def test_samples_follow_the_rows(kind: str) -> None:
    """χ² of 20,000 draws from each of 3 rows; a false alarm in 10,000 at the fixed seed's expectation."""
    t, n = make_targets(kind, 3, 5, seeded(5)), 20_000
    labels = SoftTargets.cat([t] * n).sample(seeded(7)).view(n, 3)
    for i in range(3):
        expected = n * t.dense(torch.float64)[i]
        counts = torch.bincount(labels[:, i], minlength=5).double()
        assert (counts[expected == 0] == 0).all()
        seen = expected > 0
        statistic = ((counts - expected)[seen] ** 2 / expected[seen]).sum()
        assert statistic < 23.51, "the 0.9999 quantile of χ² with 4 degrees of freedom"
    first, again, other = (SoftTargets.cat([t] * 100).sample(seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert t.is_hard or not torch.equal(first, other)


# -------------------------------------------------------------------------------------------------------- equality


@pytest.mark.parametrize("kind", KINDS)
def test_equality_is_row_by_row_and_sees_through_the_form(kind: str) -> None:
    t = make_targets(kind, 6, 40, seeded(4))
    assert (t == t.clone()).tolist() == [True] * 6
    assert not (t != t.clone()).any()
    assert t.allclose(t.to_dense(), atol=1e-6)
    assert t.to_dense().allclose(t, atol=1e-6)
    other = SoftTargets.cat([t[:5], t[:1] if (t[5] != t[0]).all() else t[1:2]])
    assert (t == other).tolist() == [True] * 5 + [False]
    assert not t.allclose(other)
    assert t != None  # noqa: E711
    assert len({t, t.clone()}) == 2


def test_equality_sees_mask_and_background() -> None:
    t, ignored = SoftTargets.from_labels([0, 1, 2], 50, 0.1), SoftTargets.from_labels([0, -100, 2], 50, 0.1)
    assert (t == ignored).tolist() == [True, False, True]
    assert (ignored == ignored.clone()).tolist() == [True] * 3
    assert not (t == SoftTargets.from_labels([0, 1, 2], 50, 0.2)).any()
    assert not (t == SoftTargets.from_labels([0, 1, 2], 50, 0.1, torch.eye(50)[3])).any()
    assert t.allclose(SoftTargets.from_labels([0, 1, 2], 50, 0.1, torch.full((50,), 0.02)))
    with pytest.raises(ValueError, match=r"other must have shape \(3, 50\).* got shape \(2, 50\)"):
        _ = t == t[:2]


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


# ------------------------------------------------------------------------------------------------------- precision


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
        assert_close(loss(logits, a.mix(b, 0.3)), loss(logits, exact), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("form", ["pairs", "dense"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_the_sum_of_a_row(form: str, dtype: torch.dtype) -> None:
    rows = torch.randn(200, 12, generator=seeded()).softmax(1).to(dtype)
    t = SoftTargets(12, torch.arange(12).expand(200, 12) if form == "pairs" else None, rows)
    before = rows.double().sum(1)
    mixed = 0.3 * before + 0.7 * before.flip(0)
    for after, expected in ((t.smooth(0.1), 0.9 * before + 0.1), (t.mix(t.flip(), 0.3), mixed)):
        assert after.dtype == dtype
        assert_close(after.dense(torch.float64).sum(1), expected, rtol=0, atol=1e-6)


def test_class_mass_does_not_saturate() -> None:
    """A row repeated 2²⁴ + 2 times without its memory; and in half precision."""
    n = 2**24 + 2
    labels = torch.zeros(1, 1, dtype=torch.long).expand(n, 1)
    dense = torch.tensor([[1.0, 0.0]]).expand(n, 2)
    for t in (SoftTargets(2, labels, None), SoftTargets(2, None, dense), SoftTargets(2, labels, None, 0.5)):
        assert t.class_mass().sum().item() == n
    half = SoftTargets.from_dense(torch.eye(2, dtype=torch.bfloat16)[torch.zeros(4096, dtype=torch.long)])
    assert half.class_mass().tolist() == [4096, 0]


# ------------------------------------------------------------------------------------------------------------ rows


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_named_as_those_of_a_tensor(kind: str) -> None:
    t = make_targets(kind, 5, 6, seeded(3))
    rows = t.unmasked_dense()
    assert_close(rows.sum(1), torch.ones(5, dtype=rows.dtype))
    for one in (2, -1, np.int64(3), torch.tensor(3)):
        assert_close(t[one].unmasked_dense(), rows[one][None])
    for some in (slice(1, 4), torch.tensor([3, 0]), rows[:, 0] > 0.1):
        assert_close(t[some].unmasked_dense(), rows[some])
    for of in (np.array, list, torch.tensor, Series):
        assert_close(t[of([3, 0, -1])].unmasked_dense(), rows[[3, 0, -1]])
    for of in (np.array, list):
        assert_close(t[of([True, False, True, True, False])].unmasked_dense(), rows[[0, 2, 3]])
    assert_close(t.flip(0).unmasked_dense(), rows.flip(0))
    assert len(t[[]]) == 0
    of_arrays = np.array([True, False]), np.array([-6]), torch.zeros(2, 2, dtype=torch.long)
    for rows in ([0.5], "0", [5], 5, None, ..., (0, 0), *of_arrays):
        with pytest.raises((IndexError, TypeError), match="rows"):
            t[rows]


class Rows(Dataset):
    def __init__(self, targets: SoftTargets) -> None:
        self.targets = targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, SoftTargets]:
        return torch.tensor(i), self.targets[i]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_collates_rows(workers: int) -> None:
    t = make_targets("mixed", 7, 5, seeded())
    for rows in (Rows(t), TensorDataset(torch.arange(7), t)):
        seen = list(DataLoader(rows, batch_size=3, num_workers=workers))
        assert_close(SoftTargets.cat([b[1] for b in seen]).dense(), t.dense())
        assert [len(b[1]) for b in seen] == [3, 3, 1]
        assert seen[0][1].smoothing == 0.1
    chosen = DataLoader(Subset(Rows(t), np.array([4, 1])), batch_size=2)
    assert_close(next(iter(chosen))[1].dense(), t[[4, 1]].dense())
    features = [{"pixel_values": torch.zeros(2), "labels": t[i]} for i in range(4)]
    assert default_collate(features)["labels"].allclose(t[:4])


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_one_row_is_a_copy(kind: str) -> None:
    t = make_targets(kind, 5, 6, seeded())
    before = t.unmasked_dense()
    for _, batch in DataLoader(TensorDataset(torch.arange(5), t), batch_size=4):
        for field in (batch.index, batch.weight, batch.mask, batch.smoothing):
            if isinstance(field, torch.Tensor):
                assert field.untyped_storage().nbytes() == field.nbytes
                field.zero_()
    assert torch.equal(t.unmasked_dense(), before)


@pytest.mark.parametrize("kind", [*KINDS, "group"])
def test_copies_pickle_save_and_move(kind: str, tmp_path) -> None:
    t = top_k() if kind == "group" else make_targets(kind, 4, 5, seeded())
    torch.save(t, tmp_path / "t.pt")
    loaded = torch.load(tmp_path / "t.pt", weights_only=True)
    copies = [loaded, pickle.loads(pickle.dumps(t)), copy.deepcopy(t), t.to("cpu"), t.cpu(), t.clone(), t.detach()]
    for other in (*copies, t[:], t.flip().flip(), SoftTargets.cat([t[:1], t[1:]]), default_collate([t[:1], t[1:]])):
        assert (other == t).all()
        for name in ("weight", "rest", "mask"):
            assert_close(getattr(other, name), getattr(t, name))
    assert t.to("meta").device.type == "meta"
    half = t.to(torch.float16)
    assert {x.dtype for x in (half.weight, half.rest) if x is not None} <= {torch.float16}
    assert half.index is None or half.index.dtype == torch.int64


def test_a_group_of_classes_is_not_a_weight_of_each() -> None:
    t = top_k()
    assert "the rest as one group" in repr(t)
    assert t.argmax().tolist() == [3, 0]
    wide = SoftTargets.cat([t, SoftTargets.from_pairs([[0, 1, 2]], [[0.25, 0.25, 0.5]], 5)])
    assert wide.rest.tolist() == [*t.rest.tolist(), 0]
    assert (wide[:2] == t).all(), "a filled row names no further class"
    assert not (t == SoftTargets.from_topk_log_probs(t.index, t.weight.log() - 0.1, 5)).any()
    named = SoftTargets.from_topk_log_probs([[3, 1, 0], [0, 2, 4]], np.log([[0.5, 0.25, 1e-99], [0.6, 0.1, 1e-99]]), 5)
    assert not (t == named).any(), "a class of weight 0 is not a class of unknown weight"
    methods = [t.dense, t.numpy, t.class_mass, t.entropy, t.sample, t.compact]
    methods += [lambda: t.mix(t, 0.5), lambda: t.smooth(0.1), lambda: t.expectation(torch.ones(5))]
    losses = functional.soft_target_info_nce, functional.expected_info_nce
    for use in (*methods, *(lambda loss=loss: loss(torch.zeros(2, 5), t) for loss in losses)):
        with pytest.raises(ValueError, match=r"needs the weight of every class.*use SoftTargetCrossEntropy"):
            use()


def test_it_has_what_code_asks_of_tensors() -> None:
    t = make_targets("mixed", 5, 6, seeded()).to(torch.float32)
    assert t.shape == (5, 6) == t.size()
    assert (t.size(0), t.size(-1), t.dim(), t.ndim, t.dtype) == (5, 6, 2, 2, torch.float32)
    assert SoftTargets.from_labels([1], 2).dtype == t.to(device="cpu").dtype == torch.float32
    assert (t.to("cpu", torch.float64).dtype, t.to(dtype=torch.float16).dtype) == (torch.float64, torch.float16)
    np.testing.assert_array_equal(t.numpy(), t.dense().numpy())
    np.testing.assert_array_equal(np.asarray(t), t.dense().numpy())
    if not torch.cuda.is_available():
        with pytest.raises((RuntimeError, AssertionError)):
            t.cuda()


def test_repr_shows_small_targets() -> None:
    t = SoftTargets.from_labels([0, -100, 2], 4, 0.1)
    assert repr(t) == f"SoftTargets(3 rows, 4 classes, labels, smoothing 0.1, 1 ignored, cpu:\n{t.dense()})"
    many = SoftTargets.from_labels(torch.zeros(1000, dtype=torch.long), 4)
    assert repr(many) == "SoftTargets(1000 rows, 4 classes, labels, smoothing 0, cpu)"
    assert "with mask, meta)" in repr(t.to("meta"))


def test_scikit_learn_splits_it() -> None:
    from sklearn.model_selection import train_test_split

    x, t = torch.arange(10.0)[:, None], SoftTargets.from_labels(torch.arange(10), 10, 0.1)
    x_train, x_test, t_train, t_test = train_test_split(x, t, test_size=3, random_state=0)
    assert t_train.argmax().tolist() == x_train[:, 0].long().tolist()
    assert t_test.argmax().tolist() == x_test[:, 0].long().tolist()

import copy
import pickle

import numpy as np
import pytest
import torch
from batches import KINDS, make_targets
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from softnce import SoftTargets, set_validation

LABELS = torch.tensor([0, 2, 1, 2])


def test_labels_are_smoothed_as_torch_smooths_them() -> None:
    t = SoftTargets.from_labels(LABELS, num_classes=4, smoothing=0.2)
    expected = 0.8 * torch.nn.functional.one_hot(LABELS, 4) + 0.05
    torch.testing.assert_close(t.dense(), expected)
    assert (len(t), t.num_classes) == (4, 4)


def test_smoothing_towards_a_given_distribution() -> None:
    xi = torch.tensor([0.7, 0.1, 0.1, 0.1])
    t = SoftTargets.from_labels(LABELS, num_classes=4, smoothing=0.2, smoothing_dist=xi)
    torch.testing.assert_close(t.dense()[0], torch.tensor([0.94, 0.02, 0.02, 0.02]))


@pytest.mark.parametrize("lam", [0.3, torch.tensor(0.3), torch.tensor([0.3, 1.0, 0.0, 0.5])])
def test_mix_is_the_mix_of_dense_rows(lam: float | torch.Tensor) -> None:
    t = SoftTargets.from_labels(LABELS, 4, smoothing=0.1)
    column = lam[:, None] if isinstance(lam, torch.Tensor) and lam.dim() else lam
    expected = column * t.dense() + (1 - column) * t.dense().flip(0)
    mixed = t.mix(t.flip(0), lam)
    torch.testing.assert_close(mixed.dense(), expected)
    assert mixed.index is not None
    assert mixed.index.shape == (4, 2)
    assert mixed.smoothing == 0.1, "a shared background must stay shared: it cancels for free"
    again = mixed.mix(SoftTargets.from_dense(t.dense()), 0.5)
    torch.testing.assert_close(again.dense(), 0.5 * expected + 0.5 * t.dense())


def test_mix_of_different_smoothing() -> None:
    a, b = SoftTargets.from_labels(LABELS, 4, 0.1), SoftTargets.from_labels(LABELS.flip(0), 4, 0.4)
    torch.testing.assert_close(a.mix(b, 0.25).dense(), 0.25 * a.dense() + 0.75 * b.dense())
    rows = torch.rand(4)
    torch.testing.assert_close(a.mix(b, rows).dense(), rows[:, None] * a.dense() + (1 - rows[:, None]) * b.dense())
    other = SoftTargets.from_labels(LABELS, 4, 0.1, torch.tensor([0.7, 0.1, 0.1, 0.1]))
    with pytest.raises(ValueError, match="different smoothing_dist"):
        a.mix(other, 0.5)


def test_topk_renormalised_and_spread() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    p = (logits / 2).softmax(1)
    kept = SoftTargets.from_topk(logits, k=2, temperature=2.0)
    torch.testing.assert_close(kept.dense()[0, :2], p[0, :2] / p[0, :2].sum())
    spread = SoftTargets.from_topk(logits, k=2, temperature=2.0, remainder="spread").dense()[0]
    rest = p[0, 2:].sum()
    torch.testing.assert_close(spread, torch.tensor([p[0, 0], p[0, 1], 0, 0]) + rest / 4)
    torch.testing.assert_close(SoftTargets.from_topk(logits, k=4, temperature=2.0).dense(), p)


def test_votes_become_shares_and_stay_small_when_few_classes_are_chosen() -> None:
    counts = torch.tensor([[3, 1] + [0] * 18, [0, 5] + [0] * 18])
    t = SoftTargets.from_votes(counts, 20)
    torch.testing.assert_close(t.dense(), counts / counts.sum(1, keepdim=True))
    assert t.index is not None
    assert t.index.shape == (2, 2)
    assert SoftTargets.from_votes(counts[:, :3], 3).index is None


def test_pairs_may_name_a_class_twice_and_be_filled_up() -> None:
    t = SoftTargets.from_pairs(torch.tensor([[1, 1, 0]]), torch.tensor([[0.25, 0.75, 0.0]]), 3)
    torch.testing.assert_close(t.dense(), torch.tensor([[0.0, 1.0, 0.0]]))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_by_index_slice_mask_and_flip(kind: str) -> None:
    t = make_targets(kind, 5, 6, torch.Generator().manual_seed(3))
    rows = t.unmasked_dense()
    torch.testing.assert_close(t[2].unmasked_dense(), rows[2:3])
    torch.testing.assert_close(t[-1].unmasked_dense(), rows[-1:])
    torch.testing.assert_close(t[1:4].unmasked_dense(), rows[1:4])
    torch.testing.assert_close(t[torch.tensor([3, 0])].unmasked_dense(), rows[[3, 0]])
    torch.testing.assert_close(t[rows[:, 0] > 0.1].unmasked_dense(), rows[rows[:, 0] > 0.1])
    torch.testing.assert_close(t.flip(0).unmasked_dense(), rows.flip(0))
    torch.testing.assert_close(t.unmasked_dense().sum(1), torch.ones(5, dtype=rows.dtype))
    with pytest.raises(IndexError):
        t[5]


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4), st.integers(0, 1000))
def test_cat_is_the_cat_of_dense_rows(kinds: list[str], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    parts = [make_targets(kind, 1 + i, 6, generator) for i, kind in enumerate(k for k in kinds if k != "smoothed")]
    if not parts:
        return
    joined = SoftTargets.cat(parts)
    torch.testing.assert_close(
        joined.unmasked_dense(torch.float64), torch.cat([part.unmasked_dense(torch.float64) for part in parts])
    )
    if any(part.mask is not None for part in parts):
        assert joined.mask is not None
        assert int(joined.mask.sum()) == sum(len(p) if p.mask is None else int(p.mask.sum()) for p in parts)


@pytest.mark.parametrize("kind", KINDS)
def test_class_mass_and_expectation(kind: str) -> None:
    t = make_targets(kind, 8, 6, torch.Generator().manual_seed(3))
    rows = t.unmasked_dense(torch.float64)
    counted = rows if t.mask is None else rows[t.mask]
    torch.testing.assert_close(t.class_mass().double(), counted.sum(0))
    values = torch.randn(6, dtype=torch.float64)
    torch.testing.assert_close(t.expectation(values), rows @ values)
    by_row = torch.randn(8, 6, dtype=torch.float64)
    torch.testing.assert_close(t.expectation(by_row), (rows * by_row).sum(1))


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "ignored"])
def test_samples_follow_the_rows(kind: str) -> None:
    """χ² of 20,000 draws from each of 3 rows; a false alarm in 10,000 at the fixed seed's expectation."""
    t = make_targets(kind, 3, 5, torch.Generator().manual_seed(5))
    generator = torch.Generator().manual_seed(7)
    n = 20_000
    many = SoftTargets.cat([t] * n)
    labels = many.sample(generator).view(n, 3)
    for i in range(3):
        expected = n * t.dense(torch.float64)[i]
        counts = torch.bincount(labels[:, i], minlength=5).double()
        assert (counts[expected == 0] == 0).all()
        seen = expected > 0
        statistic = ((counts - expected)[seen] ** 2 / expected[seen]).sum()
        assert statistic < 23.51, "the 0.9999 quantile of χ² with 4 degrees of freedom"


def test_sampling_is_reproducible_by_generator() -> None:
    t = make_targets("mixed", 50, 9, torch.Generator().manual_seed(0))
    first, second = (t.sample(torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, t.sample(torch.Generator().manual_seed(2)))


class Rows(Dataset):
    def __init__(self, targets: SoftTargets) -> None:
        self.targets = targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, SoftTargets]:
        return torch.tensor(i), self.targets[i]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_collates_rows(workers: int) -> None:
    t = make_targets("mixed", 7, 5, torch.Generator().manual_seed(0))
    seen = list(DataLoader(Rows(t), batch_size=3, num_workers=workers))
    torch.testing.assert_close(SoftTargets.cat([b[1] for b in seen]).dense(), t.dense())
    assert [len(b[1]) for b in seen] == [3, 3, 1]
    assert seen[0][1].smoothing == 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_copies_pickle_and_move(kind: str) -> None:
    t = make_targets(kind, 4, 5, torch.Generator().manual_seed(0))
    for other in (pickle.loads(pickle.dumps(t)), copy.deepcopy(t), t.to("cpu"), t.clone(), t.detach()):
        torch.testing.assert_close(other.unmasked_dense(), t.unmasked_dense())
    assert t.to("meta").device.type == "meta"


def test_unsigned_labels_do_not_wrap_around_at_ignore_index() -> None:
    t = SoftTargets.from_labels(torch.tensor([156, 3, 255], dtype=torch.uint8), 256)
    assert t.mask is None
    assert t.index.flatten().tolist() == [156, 3, 255]


def test_a_row_by_a_number_of_numpy_or_torch() -> None:
    t = make_targets("mixed", 5, 6, torch.Generator().manual_seed(3))
    for three in (np.int64(3), torch.tensor(3)):
        torch.testing.assert_close(t[three].dense(), t[3].dense())
    for wrong in (None, (0, 0), ...):
        with pytest.raises((IndexError, TypeError), match="rows"):
            t[wrong]
    loader = DataLoader(Subset(Rows(t), np.array([4, 1])), batch_size=2)
    torch.testing.assert_close(next(iter(loader))[1].dense(), t[[4, 1]].dense())


def test_class_mass_does_not_saturate_in_half_precision() -> None:
    half = SoftTargets.from_dense(torch.eye(2, dtype=torch.bfloat16)[torch.zeros(4096, dtype=torch.long)])
    assert half.class_mass().tolist() == [4096, 0]


def test_a_dtype_is_for_the_weights() -> None:
    t = make_targets("mixed", 3, 5, torch.Generator().manual_seed(0)).to(torch.float16)
    assert (t.weight.dtype, t.index.dtype) == (torch.float16, torch.int64)


def test_saved_targets_load_safely(tmp_path) -> None:
    t = SoftTargets.from_topk(torch.randn(6, 50), 3)
    torch.save(t, tmp_path / "teacher.pt")
    loaded = torch.load(tmp_path / "teacher.pt", weights_only=True)
    torch.testing.assert_close(loaded.dense(), t.dense())


def test_different_backgrounds_are_an_error_also_unchecked() -> None:
    skewed = SoftTargets.from_labels(LABELS, 4, 0.1, torch.tensor([0.7, 0.1, 0.1, 0.1]))
    uniform = SoftTargets.from_labels(LABELS, 4, 0.1)
    with set_validation(False), pytest.raises(ValueError, match="different smoothing_dist"):
        skewed.mix(uniform, 0.5)


def test_smoothing_twice_makes_one_background_of_two() -> None:
    skewed = SoftTargets.from_labels(LABELS, 4, 0.1, torch.tensor([0.7, 0.1, 0.1, 0.1]))
    for dist in (None, torch.tensor([0.1, 0.2, 0.3, 0.4])):
        again = skewed.smooth(0.2, dist)
        expected = 0.8 * skewed.dense() + 0.2 * (torch.full((4,), 0.25) if dist is None else dist)
        torch.testing.assert_close(again.dense(), expected)
        assert again.form == skewed.form


# ------------------------------------------------------------------------------------------------- ignored rows


def test_ignored_rows_are_of_no_class() -> None:
    t = SoftTargets.from_labels([1, -100, 2], 3, smoothing=0.3)
    assert t.dense().isnan().all(1).tolist() == [False, True, False]
    assert t.argmax().tolist() == [1, -100, 2]
    assert t.entropy().isnan().tolist() == [False, True, False]
    assert np.isnan(t.numpy()[1]).all()
    with pytest.raises(ValueError, match="probs holds NaN"):
        SoftTargets.from_dense(t.dense())
    assert "1 ignored" in repr(t)


def test_targets_that_are_made_dense_keep_their_mask() -> None:
    skewed = SoftTargets.from_labels([0, -100, 2, 1], 4, 0.1, [0.7, 0.1, 0.1, 0.1])
    uniform = SoftTargets.from_labels(LABELS, 4, 0.1)
    with pytest.raises(ValueError, match=r"make them dense first: t\.to_dense\(\)"):
        SoftTargets.cat([skewed, uniform])
    joined = SoftTargets.cat([skewed.to_dense(), uniform])
    assert joined.mask.tolist() == [True, False] + [True] * 6
    torch.testing.assert_close(joined.dense(), torch.cat([skewed.dense(), uniform.dense()]), equal_nan=True)


# ----------------------------------------------------------------------------------------------- like a tensor


@pytest.mark.parametrize("kind", KINDS)
def test_argmax_and_entropy_are_those_of_dense_rows(kind: str) -> None:
    t = make_targets(kind, 9, 6, torch.Generator().manual_seed(4)).to(torch.float64)
    rows = t.unmasked_dense(torch.float64)
    counts = torch.ones(9, dtype=torch.bool) if t.mask is None else t.mask
    best = t.argmax()
    assert (best[~counts] == -100).all()
    torch.testing.assert_close(rows.gather(1, best.clamp(min=0)[:, None])[counts, 0], rows.amax(1)[counts])
    # float32 weights that labels imply, and float64 ones of the others
    torch.testing.assert_close(
        t.entropy()[counts].double(), -torch.xlogy(rows, rows).sum(1)[counts], rtol=1e-5, atol=1e-6
    )


def test_a_background_may_hold_the_likeliest_class() -> None:
    t = SoftTargets.from_labels([0, 1], 3, smoothing=0.8, smoothing_dist=[0.1, 0.1, 0.8])
    assert t.argmax().tolist() == t.dense().argmax(1).tolist() == [2, 2]
    torch.testing.assert_close(t.entropy(), -torch.xlogy(t.dense(), t.dense()).sum(1))


@pytest.mark.parametrize("kind", KINDS)
def test_equality_is_row_by_row_and_sees_through_the_form(kind: str) -> None:
    t = make_targets(kind, 6, 40, torch.Generator().manual_seed(4))
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
    t = SoftTargets.from_labels([0, 1, 2], 50, 0.1)
    ignored = SoftTargets.from_labels([0, -100, 2], 50, 0.1)
    assert (t == ignored).tolist() == [True, False, True]
    assert (ignored == ignored.clone()).tolist() == [True] * 3
    assert not (t == SoftTargets.from_labels([0, 1, 2], 50, 0.2)).any()
    assert not (t == SoftTargets.from_labels([0, 1, 2], 50, 0.1, torch.eye(50)[3])).any()
    assert t.allclose(SoftTargets.from_labels([0, 1, 2], 50, 0.1, torch.full((50,), 0.02)))
    with pytest.raises(ValueError, match=r"other must have shape \(3, 50\).* got shape \(2, 50\)"):
        _ = t == t[:2]


def test_repr_shows_small_targets() -> None:
    t = SoftTargets.from_labels([0, -100, 2], 4, 0.1)
    assert repr(t) == f"SoftTargets(3 rows, 4 classes, labels, smoothing 0.1, 1 ignored, cpu:\n{t.dense()})"
    many = SoftTargets.from_labels(torch.zeros(1000, dtype=torch.long), 4)
    assert repr(many) == "SoftTargets(1000 rows, 4 classes, labels, smoothing 0, cpu)"
    assert "with mask, meta)" in repr(t.to("meta"))


def test_it_has_what_code_asks_of_tensors() -> None:
    t = make_targets("mixed", 5, 6, torch.Generator().manual_seed(0)).to(torch.float32)
    assert t.shape == (5, 6) == t.size()
    assert (t.size(0), t.size(-1), t.dim(), t.ndim, t.dtype) == (5, 6, 2, 2, torch.float32)
    assert SoftTargets.from_labels([1], 2).dtype == torch.float32
    both = t.to("cpu", torch.float64)
    assert (both.dtype, t.to(dtype=torch.float16).dtype, t.to(device="cpu").dtype) == (
        torch.float64,
        torch.float16,
        torch.float32,
    )
    np.testing.assert_array_equal(t.numpy(), t.dense().numpy())
    np.testing.assert_array_equal(np.asarray(t), t.dense().numpy())
    if not torch.cuda.is_available():
        with pytest.raises((RuntimeError, AssertionError)):
            t.cuda()


def test_rows_by_arrays_and_masks() -> None:
    t = make_targets("spread", 5, 6, torch.Generator().manual_seed(3))
    rows = t.dense()
    for named in (np.array([3, 0, -1]), [3, 0, -1], torch.tensor([3, 0, -1]), Series([3, 0, -1])):
        torch.testing.assert_close(t[named].dense(), rows[[3, 0, -1]])
    for mask in (np.array([True, False, True, True, False]), [True, False, True, True, False]):
        torch.testing.assert_close(t[mask].dense(), rows[[0, 2, 3]])
    assert len(t[[]]) == 0
    for wrong in ([0.5], np.array([True, False]), torch.zeros(2, 2, dtype=torch.long), "0", [5], np.array([-6])):
        with pytest.raises((IndexError, TypeError), match="rows"):
            t[wrong]


def test_scikit_learn_splits_it() -> None:
    from sklearn.model_selection import train_test_split

    x, t = torch.arange(10.0)[:, None], SoftTargets.from_labels(torch.arange(10), 10, 0.1)
    x_train, x_test, t_train, t_test = train_test_split(x, t, test_size=3, random_state=0)
    assert t_train.argmax().tolist() == x_train[:, 0].long().tolist()
    assert t_test.argmax().tolist() == x_test[:, 0].long().tolist()


# ------------------------------------------------------------------------------------------ from what people have


class Series:
    """As pandas has it: an array inside, indexed by labels that are no positions."""

    def __init__(self, values: list) -> None:
        self.values = np.asarray(values)

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        return self.values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, label: object) -> object:
        raise KeyError(label)


@pytest.mark.parametrize("kind", [list, tuple, np.array, Series, torch.tensor])
def test_arrays_and_lists_are_read(kind: type) -> None:
    labels = [0, 2, 1, 2]
    assert SoftTargets.from_labels(kind(labels), 4).labels.tolist() == labels
    rows = [[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]]
    torch.testing.assert_close(SoftTargets.from_dense(kind(rows)).dense(torch.float64), torch.tensor(rows).double())
    votes = [[3, 1, 0], [0, 0, 5]]
    torch.testing.assert_close(
        SoftTargets.from_votes(kind(votes), 3).dense(), torch.tensor([[0.75, 0.25, 0], [0, 0, 1]])
    )
    torch.testing.assert_close(
        SoftTargets.from_topk(kind([[2.0, 1.0, 0.0]]), 1).dense(torch.float32), torch.tensor([[1.0, 0, 0]])
    )
    t = SoftTargets.from_labels(kind(labels), 4)
    torch.testing.assert_close(t.mix(t.flip(), kind([1.0, 0.0, 0.5, 0.5])).argmax()[:2], torch.tensor([0, 1]))


def test_arrays_that_torch_cannot_share_are_copied() -> None:
    labels = np.array([0, 1, 2])
    assert SoftTargets.from_labels(labels[::-1], 3).labels.tolist() == [2, 1, 0]
    labels.flags.writeable = False
    assert SoftTargets.from_labels(labels, 3).labels.tolist() == [0, 1, 2]


def test_rows_of_different_numbers_of_pairs() -> None:
    t = SoftTargets.from_pairs([[0], [1, 3], [2, 1, 0]], [[1], [0.5, 0.5], [0.5, 0.25, 0.25]], 4)
    torch.testing.assert_close(
        t.dense(), torch.tensor([[1, 0, 0, 0], [0, 0.5, 0, 0.5], [0.25, 0.25, 0.5, 0]], dtype=t.dtype)
    )
    with pytest.raises(ValueError, match=r"lengths \[1, 2\] and \[1, 1\]"):
        SoftTargets.from_pairs([[0], [1, 3]], [[1.0], [1.0]], 4)
    with pytest.raises(ValueError, match="at least one class in every row"):
        SoftTargets.from_pairs([[0], []], [[1.0], []], 4)


def test_votes_are_smoothed_as_labels_are() -> None:
    votes = torch.tensor([[3, 1, 0], [0, 0, 5]])
    t, plain = SoftTargets.from_votes(votes, 3, smoothing=0.1), SoftTargets.from_votes(votes, 3)
    assert t.allclose(plain.smooth(0.1), atol=1e-7)
    assert t.smoothing == 0.1
    with pytest.raises(ValueError, match=r"a column per class, 10, got 3; .* use SoftTargets.from_annotations"):
        SoftTargets.from_votes(torch.randint(10, (20, 3)), 10)


def test_a_tensor_dataset_and_a_trainers_collate() -> None:
    t = make_targets("mixed", 7, 5, torch.Generator().manual_seed(0))
    batches = list(DataLoader(TensorDataset(torch.arange(7), t), batch_size=3))
    assert SoftTargets.cat([b[1] for b in batches]).allclose(t)
    features = [{"pixel_values": torch.zeros(2), "labels": t[i]} for i in range(4)]
    assert default_collate(features)["labels"].allclose(t[:4])

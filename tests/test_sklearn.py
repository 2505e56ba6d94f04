"""SoftLabelClassifier: scikit-learn's own checks, its tools, and what it adds, soft labels."""

import pickle

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from softnce import SoftTargets
from softnce.sklearn import LOSSES, SoftLabelClassifier, neg_soft_log_loss


@pytest.mark.slow
@parametrize_with_checks([SoftLabelClassifier(max_epochs=25, learning_rate=0.05)])
def test_it_is_an_estimator(estimator, check) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    x, y = load_digits(return_X_y=True)
    return x[:600] / 16, y[:600]


def fitted(x, y, loss: str = "soft-ce", sample_weight=None, **options) -> SoftLabelClassifier:
    return SoftLabelClassifier(loss, random_state=0, **options).fit(x, y, sample_weight)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_learns(loss: str, digits: tuple) -> None:
    x, y = digits
    model = fitted(x[:400], y[:400], loss, max_epochs=15)
    assert model.score(x[400:], y[400:]) > 0.7
    assert model.predict_proba(x).sum(1) == pytest.approx(1)


def test_soft_labels_in_three_forms(digits: tuple) -> None:
    x, y = digits
    targets = SoftTargets.from_labels(torch.from_numpy(y), 10, smoothing=0.1)
    forms = targets.dense(torch.float64), targets.numpy().astype(float), targets
    made = [fitted(x, given, max_epochs=3).predict_proba(x) for given in forms]
    np.testing.assert_allclose(made[1], made[0], rtol=0, atol=1e-6)
    np.testing.assert_allclose(made[2], made[0], rtol=0, atol=1e-5)
    model = fitted(x, targets, max_epochs=15)
    assert list(model.classes_) == list(range(10))
    assert model.score(x, targets) == model.score(x, y) > 0.9


@pytest.mark.slow
def test_shares_are_learned_and_not_their_majority() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(3000, 3))
    truth = 1 / (1 + np.exp(-x[:, 0]))
    votes = generator.binomial(5, truth) / 5
    models = [fitted(x, y, max_epochs=30) for y in (np.stack([1 - votes, votes], 1), (votes > 0.5).astype(int))]
    errors = [np.abs(model.predict_proba(x)[:, 1] - truth).mean() for model in models]
    assert errors[0] < 0.02 < errors[1] / 2


def test_in_scikit_learns_tools(digits: tuple) -> None:
    x, y = digits
    names = np.array([f"digit {k}" for k in range(10)])[y]
    search = GridSearchCV(
        make_pipeline(StandardScaler(), SoftLabelClassifier(max_epochs=15, random_state=0)),
        {"softlabelclassifier__loss": ["expected-info-nce", "soft-ce"]},
        cv=3,
    ).fit(x, names)
    assert search.best_score_ > 0.8
    assert search.predict(x[:3]).dtype.kind == "U"
    calibrated = CalibratedClassifierCV(SoftLabelClassifier(max_epochs=5, random_state=0), cv=3, method="sigmoid")
    assert calibrated.fit(x, names).predict_proba(x).shape == (600, 10)
    soft = np.eye(10)[y] * 0.9 + 0.01
    assert cross_val_score(SoftLabelClassifier(max_epochs=8, random_state=0), x, soft, cv=3).mean() > 0.7


def test_early_stopping_keeps_the_best_epoch(digits: tuple, capsys: pytest.CaptureFixture[str]) -> None:
    x, y = digits
    noisy = np.where(np.arange(600) % 3 == 0, (y + 1) % 10, y)  # a network that fits this fits noise
    options = {"hidden_layer_sizes": (64,), "early_stopping": True}
    model = fitted(x, noisy, patience=3, verbose=True, **options)
    best = int(np.argmin(model.validation_curve_))
    assert model.n_iter_ == best + 1 + 3 < 100
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == model.n_iter_
    assert lines[0].startswith("epoch 1/100  loss ")
    again = fitted(x, noisy, max_epochs=best + 1, **options)
    np.testing.assert_array_equal(again.predict_proba(x), model.predict_proba(x))


def test_early_stopping_of_a_contrast_is_at_a_fitted_temperature(digits: tuple) -> None:
    """At temperature 1 its cross-entropy rises from the first epoch on, while it learns."""
    x, y = digits
    soft = np.eye(10)[y] * 0.5 + 0.05
    model = fitted(x, soft, "soft-target-info-nce", early_stopping=True, patience=5, max_epochs=60)
    assert model.n_iter_ > 10
    assert model.score(x, soft) > 0.9
    assert model.temperature_ != 1
    assert fitted(x, soft, max_epochs=3, early_stopping=True).temperature_ == 1


def test_ignored_rows_neither_train_nor_count(digits: tuple) -> None:
    x, y = digits
    rows = np.arange(600) % 4 > 0
    targets = SoftTargets.from_labels(np.where(rows, y, -100), 10, smoothing=0.1)
    clean = fitted(x[rows], targets[rows], max_epochs=5, early_stopping=True)
    for given in (targets, targets.numpy().astype(float)):
        model = fitted(x, given, max_epochs=5, early_stopping=True)
        np.testing.assert_allclose(model.predict_proba(x), clean.predict_proba(x), rtol=0, atol=1e-5)
        assert model.score(x, given) == pytest.approx(clean.score(x[rows], y[rows]))
        assert neg_soft_log_loss(model, x, given) == pytest.approx(neg_soft_log_loss(clean, x[rows], targets[rows]))
    model = fitted(x, targets.argmax(), max_epochs=5)
    assert model.classes_.tolist() == list(range(10))
    assert model.score(x, targets.argmax()) == model.score(x[rows], y[rows])


def test_sparse_features(digits: tuple) -> None:
    x, y = digits
    dense, sparse = (fitted(features, y, max_epochs=3) for features in (x, csr_matrix(x)))
    np.testing.assert_allclose(sparse.predict_proba(csr_matrix(x)), dense.predict_proba(x), rtol=0, atol=1e-12)


def test_classes_of_soft_labels_have_names(digits: tuple) -> None:
    x, y = digits
    names = [f"digit {k}" for k in range(10)]
    model = fitted(x, np.eye(10)[y], max_epochs=10, classes=names)
    assert (model.predict(x) == np.array(names)[y]).mean() > 0.9
    assert model.score(x, np.eye(10)[y]) == model.score(x, np.array(names)[y])


def test_the_scorer_of_votes(digits: tuple) -> None:
    x, y = digits
    model = fitted(x, y, max_epochs=5)
    weight = np.random.default_rng(0).random(600)
    expected = -log_loss(y, model.predict_proba(x), sample_weight=weight)
    assert neg_soft_log_loss(model, x, y, weight) == pytest.approx(expected)
    votes = 0.7 * np.eye(10)[y] + 0.3 * np.eye(10)[(y + 1) % 10]
    by_hand = (votes * np.log(model.predict_proba(x))).sum(1).mean()
    assert neg_soft_log_loss(model, x, votes) == pytest.approx(by_hand)
    assert cross_val_score(model, x, votes, cv=3, scoring=neg_soft_log_loss).mean() < 0
    with pytest.raises(ValueError, match=r"y holds 1\d, which is none"):
        neg_soft_log_loss(model, x, y + 2)


def test_zero_weight_takes_a_row_out_of_the_loss(digits: tuple) -> None:
    x, y = digits
    weight = np.where(np.arange(600) < 500, 1.0, 0.0)
    wrong = np.where(weight > 0, y, 0)
    made = [fitted(x, given, sample_weight=weight, batch_size=600, max_epochs=5) for given in (y, wrong)]
    np.testing.assert_allclose(made[0].predict_proba(x), made[1].predict_proba(x), rtol=0, atol=1e-12)


def test_it_can_be_cloned_and_pickled(digits: tuple) -> None:
    x, y = digits
    model = fitted(x, y, hidden_layer_sizes=(8,), max_epochs=2)
    assert clone(model).get_params() == model.get_params()
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(x), model.predict_proba(x))
    np.testing.assert_array_equal(clone(model).fit(x, y).predict_proba(x), model.predict_proba(x))


@pytest.mark.parametrize(
    ("options", "y", "message"),
    [
        ({"loss": "hinge"}, [0, 1], "loss must be one of nll, .*, got 'hinge'"),
        ({"loss": "nll"}, [[0.5, 0.5], [1, 0]], "takes labels .* only, got soft labels"),
        ({"loss": "info-nce", "label_smoothing": 0.1}, [0, 1], "label_smoothing must be 0"),
        ({"classes": ["one"]}, [[0.5, 0.5], [1, 0]], "classes must name the 2 columns of y, got 1"),
        ({"classes": ["one", "two"]}, [0, 1], "classes names the columns of soft labels"),
        ({}, [-100, -100], "every row is ignored"),
        ({"batch_size": 0}, [0, 1], "batch_size must be a whole number"),
        ({"validation_fraction": 2}, [0, 1], "validation_fraction must be between 0 and 1"),
        ({}, [[0.5, 0.6], [1, 0]], "sum"),
        ({}, [0.25, 0.5], "Unknown label type"),
        ({}, [0, 1, 0], "inconsistent numbers of samples"),
    ],
)
def test_what_cannot_be_is_refused(options: dict, y: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SoftLabelClassifier(**options).fit(np.eye(2), y)

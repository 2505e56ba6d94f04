"""A scikit-learn classifier that is trained by any of the losses, on labels or on soft labels."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    assert_all_finite,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)
from torch import Tensor, nn

from softnce import ClassifierLoss, SoftTargets, noise
from softnce.lab.losses import LOSSES, LossName

DTYPES = [np.float64, np.float32]


class SoftLabelClassifier(ClassifierMixin, BaseEstimator):
    """A linear classifier, or one with hidden layers, for labels and for soft labels.

    Works in pipelines, ``GridSearchCV`` and ``CalibratedClassifierCV``. Scale the features first, for example by
    ``make_pipeline(StandardScaler(), SoftLabelClassifier())``: it is trained by gradient steps (AdamW).

    Args:
        loss: one of ``"nll"``, ``"soft-ce"``, ``"info-nce"``, ``"soft-dist-info-nce"``, ``"soft-target-info-nce"``,
            ``"expected-info-nce"``. ``"nll"`` and ``"info-nce"`` take labels only. The noise of the contrastive ones
            is the marginal of the training targets.
        hidden_layer_sizes: widths of the hidden layers (ReLU); none: a linear classifier.
        temperature: τ of the loss.
        label_smoothing: ε of the loss; not with ``"nll"`` and ``"info-nce"``.
        learning_rate: of AdamW.
        weight_decay: of AdamW.
        batch_size: rows per step.
        max_epochs: passes over the training set.
        early_stopping: hold out ``validation_fraction`` of the rows, stop once their cross-entropy has not improved for
            ``patience`` epochs, and keep the best epoch's weights.
        validation_fraction: of the rows, with ``early_stopping``.
        patience: epochs, with ``early_stopping``.
        verbose: print one line per epoch.
        random_state: of initial weights, order and draws.

    Attributes:
        classes_: the labels (K,); of soft labels the numbers of their columns.
        network_: the trained ``torch.nn.Module``, features to logits.
        n_iter_: epochs made.
        loss_curve_: mean training loss of each epoch.
        validation_curve_: cross-entropy of the rows held out, after each epoch; None without ``early_stopping``.

    >>> X, P = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([[1, 0], [0.8, 0.2], [0.2, 0.8], [0, 1]])
    >>> SoftLabelClassifier(random_state=0).fit(X - 1.5, P).predict([[-2.0], [2.0]])
    array([0, 1])
    """

    def __init__(
        self,
        loss: LossName = "expected-info-nce",
        *,
        hidden_layer_sizes: Sequence[int] = (),
        temperature: float = 1.0,
        label_smoothing: float = 0.0,
        learning_rate: float = 0.01,
        weight_decay: float = 0.01,
        batch_size: int = 256,
        max_epochs: int = 100,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 10,
        verbose: bool = False,
        random_state: Any = None,
    ) -> None:
        self.loss = loss
        self.hidden_layer_sizes = hidden_layer_sizes
        self.temperature = temperature
        self.label_smoothing = label_smoothing
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.verbose = verbose
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on features X (N, d) and labels (N,), probabilities (N, K) or SoftTargets.

        Args:
            X: features.
            y: labels of any kind, or a probability for every class, rows that sum to 1.
            sample_weight: (N,) weights of the rows in the loss.
        """
        self._check_options()
        X = validate_data(self, X, dtype=DTYPES, ensure_min_samples=2)
        targets = self._targets(y, len(X))
        x = torch.tensor(X)  # a copy: X may be read-only
        weight = None
        if sample_weight is not None:
            weight = torch.tensor(_check_sample_weight(sample_weight, X, dtype=X.dtype, ensure_non_negative=True))
        seeds = check_random_state(self.random_state)
        generator = torch.Generator().manual_seed(int(seeds.randint(2**31)))

        train, held = torch.arange(len(x)), None
        if self.early_stopping:
            train, held = self._split(targets, seeds)
        criterion = self._criterion(targets[train])
        self.network_ = self._network(int(seeds.randint(2**31)), x.dtype)
        self.loss_curve_: list[float] = []
        self.validation_curve_: list[float] | None = None if held is None else []
        best, since = copy.deepcopy(self.network_.state_dict()), 0
        optimiser = torch.optim.AdamW(self.network_.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay)
        for epoch in range(self.max_epochs):
            total = 0.0
            order = train[torch.randperm(len(train), generator=generator)]
            for rows in order.split(self.batch_size):
                optimiser.zero_grad()
                share = None if weight is None else weight[rows]
                value = criterion(self.network_(x[rows]), targets[rows], sample_weight=share, generator=generator)
                value.backward()
                optimiser.step()
                total += value.item() * len(rows)
            self.loss_curve_.append(total / len(train))
            line = f"epoch {epoch + 1}/{self.max_epochs}  loss {self.loss_curve_[-1]:.4f}"
            if self.validation_curve_ is not None:
                with torch.no_grad():
                    share = None if weight is None else weight[held]
                    value = criterion.against_classes(self.network_(x[held]), targets[held], sample_weight=share)
                self.validation_curve_.append(value.item())
                line += f"  held out {value.item():.4f}"
                since += 1
                if value.item() == min(self.validation_curve_):
                    best, since = copy.deepcopy(self.network_.state_dict()), 0
            if self.verbose:
                print(line)
            if since >= self.patience:
                break
        if held is not None:
            self.network_.load_state_dict(best)
        self.n_iter_ = len(self.loss_curve_)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """p(k|x), (N, K); columns as ``classes_``."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=DTYPES, reset=False)
        x = torch.tensor(X, dtype=next(self.network_.parameters()).dtype)
        with torch.no_grad():
            return (self.network_(x).double() / self.temperature).softmax(1).numpy()

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """log p(k|x), (N, K)."""
        return np.log(self.predict_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class of each row, (N,)."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(1)]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy; against the likeliest class of soft labels."""
        if isinstance(y, SoftTargets) or np.ndim(y) == 2:
            y = self.classes_[np.asarray(y).argmax(1)]
        return float(accuracy_score(y, self.predict(X), sample_weight=sample_weight))

    def _check_options(self) -> None:
        if self.loss not in LOSSES:
            raise ValueError(f"loss must be one of {', '.join(LOSSES)}, got {self.loss!r}")
        if LOSSES[self.loss].labels_only and self.label_smoothing:
            raise ValueError(f"label_smoothing must be 0 with loss={self.loss!r}, got {self.label_smoothing}")
        for name in ("batch_size", "max_epochs", "patience"):
            if not isinstance(getattr(self, name), (int, np.integer)) or getattr(self, name) < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {getattr(self, name)!r}")
        if not 0 < self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must be between 0 and 1, got {self.validation_fraction!r}")

    def _targets(self, y: Any, rows: int) -> SoftTargets:
        """Targets over K classes, and what the classes are called."""
        if y is None:
            raise ValueError("SoftLabelClassifier requires y to be passed, but the target y is None")
        soft = isinstance(y, SoftTargets)
        if not soft:
            y = np.asarray(y)
            soft = y.ndim == 2 and y.shape[1] > 1
        if soft:
            if LOSSES[self.loss].labels_only:
                raise ValueError(f"loss={self.loss!r} takes labels (N,) only, got soft labels {tuple(y.shape)} as y")
            targets = y if isinstance(y, SoftTargets) else SoftTargets.from_dense(torch.from_numpy(np.array(y, float)))
            self.classes_ = np.arange(targets.num_classes)
        else:
            y = column_or_1d(y, warn=True)
            assert_all_finite(y, input_name="y")
            check_classification_targets(y)
            self.classes_, labels = np.unique(y, return_inverse=True)
            targets = SoftTargets.from_labels(torch.from_numpy(labels), len(self.classes_))
        check_consistent_length(np.empty(rows), np.empty(len(targets)))
        return targets

    def _criterion(self, targets: SoftTargets) -> ClassifierLoss:
        kind = LOSSES[self.loss]
        options: dict[str, Any] = {"temperature": self.temperature, "distributed": False}
        if not kind.labels_only:
            options["label_smoothing"] = self.label_smoothing
        if not kind.contrastive:
            return kind.build(**options)
        return kind.build(noise.from_counts(targets.class_mass(), floor=1), **options)

    def _network(self, seed: int, dtype: torch.dtype) -> nn.Module:
        widths = [self.n_features_in_, *self.hidden_layer_sizes]
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            hidden = [(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(widths)]
            layers = [layer for pair in hidden for layer in pair]
            return nn.Sequential(*layers, nn.Linear(widths[-1], len(self.classes_))).to(dtype)

    def _split(self, targets: SoftTargets, seeds: np.random.RandomState) -> tuple[Tensor, Tensor]:
        """Rows to train on and rows to hold out, with the classes in equal shares where there are enough of each."""
        classes = targets.argmax().numpy()
        count = max(1, round(self.validation_fraction * len(classes)))
        sizes = np.bincount(classes)
        possible = sizes[sizes > 0].min() >= 2 and min(count, len(classes) - count) >= (sizes > 0).sum()
        train, held = train_test_split(
            np.arange(len(classes)), test_size=count, random_state=seeds, stratify=classes if possible else None
        )
        return torch.from_numpy(np.sort(train)), torch.from_numpy(np.sort(held))

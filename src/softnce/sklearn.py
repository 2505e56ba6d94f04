"""A scikit-learn classifier trained by any of the losses, on labels or on soft labels, and a scorer for votes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor, nn

try:
    import numpy as np
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.metrics import accuracy_score
    from sklearn.model_selection import train_test_split
    from sklearn.utils import check_random_state, validation
    from sklearn.utils.multiclass import check_classification_targets
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("softnce.sklearn needs scikit-learn 1.6 or later: pip install scikit-learn") from error

from softnce import calibration, losses, noise
from softnce._inputs import as_tensor, as_whole, number, one_of
from softnce.targets import SoftTargets

__all__ = ["SoftLabelClassifier", "neg_soft_log_loss"]

LOSSES: dict[str, type[losses.ClassifierLoss]] = {
    "nll": losses.NLL,
    "soft-ce": losses.SoftTargetCrossEntropy,
    "info-nce": losses.InfoNCE,
    "soft-dist-info-nce": losses.SoftDistributionInfoNCE,
    "soft-target-info-nce": losses.SoftTargetInfoNCE,
    "expected-info-nce": losses.ExpectedInfoNCE,
}
LABELS_ONLY = ("nll", "info-nce")
IGNORED = -100
READ: dict[str, Any] = {"dtype": [np.float64, np.float32], "accept_sparse": "csr"}


@dataclass(eq=False, repr=False)
class SoftLabelClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A linear classifier, or one with hidden layers, for labels and for soft labels, trained by AdamW.

    Scale dense features first, for example by ``make_pipeline(StandardScaler(), SoftLabelClassifier())``. Ignored rows
    (label −100, masked ``SoftTargets``, rows of NaN) neither train nor count in a score.

    Args:
        loss: one of ``"nll"``, ``"soft-ce"``, ``"info-nce"``, ``"soft-dist-info-nce"``, ``"soft-target-info-nce"``,
            ``"expected-info-nce"``; ``"nll"`` and ``"info-nce"`` take labels only, and no ``label_smoothing``. The
            noise of the contrastive ones is the marginal of the training targets.
        classes: names of the columns of soft labels; None: their numbers, or the columns of a data frame.
        hidden_layer_sizes: widths of the hidden layers (ReLU); none: a linear classifier.
        early_stopping: hold out ``validation_fraction`` of the rows, stop once their cross-entropy has not improved for
            ``patience`` epochs, and keep the best epoch's weights. The cross-entropy of a contrastive loss is taken at
            the temperature that fits those rows best.

    Attributes:
        classes_: the labels (K,); of soft labels the names of their columns.
        network_: the trained ``torch.nn.Module``, features to logits.
        temperature_: divisor of the logits in ``predict_proba``: τ, or the temperature fitted by ``early_stopping``.
        n_iter_, loss_curve_, validation_curve_: number of epochs, and after each the mean training loss and the
            cross-entropy of the rows held out (None without ``early_stopping``).

    >>> X, P = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([[1, 0], [0.8, 0.2], [0.2, 0.8], [0, 1]])
    >>> SoftLabelClassifier(random_state=0, classes=["no", "yes"]).fit(X - 1.5, P).predict([[-2.0], [2.0]]).tolist()
    ['no', 'yes']
    """

    loss: str = "soft-ce"
    _: KW_ONLY
    classes: Sequence[Any] | None = None
    hidden_layer_sizes: Sequence[int] = ()
    temperature: float = 1.0
    label_smoothing: float = 0.0
    learning_rate: float = 0.01
    weight_decay: float = 0.01
    batch_size: int = 256
    max_epochs: int = 100
    early_stopping: bool = False
    validation_fraction: float = 0.1
    patience: int = 10
    verbose: bool = False
    random_state: Any = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on X (N, d), dense or sparse, and y: labels (N,) of any kind, probabilities (N, K) or SoftTargets."""
        self._check_options()
        X = validation.validate_data(self, X, ensure_min_samples=2, **READ)
        targets = self._targets(y, X.shape[0])
        checked = validation._check_sample_weight(sample_weight, X, dtype=X.dtype, ensure_non_negative=True)
        weight = torch.tensor(checked)
        seeds = check_random_state(self.random_state)
        generator = torch.Generator().manual_seed(int(seeds.randint(2**31)))
        train, held = self._split(targets, seeds)
        self.network_ = self._network(int(seeds.randint(2**31)), X.dtype)
        criterion = self._criterion(targets[train])
        optimiser = torch.optim.AdamW(self.network_.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay)
        self.loss_curve_: list[float] = []
        self.validation_curve_: list[float] | None = None if held is None else []
        best = 0, self.temperature, copy.deepcopy(self.network_.state_dict())
        for epoch in range(1, self.max_epochs + 1):
            total = 0.0
            for rows in train[torch.randperm(len(train), generator=generator)].split(self.batch_size):
                optimiser.zero_grad()
                logits = self.network_(_features(X, rows))
                value = criterion(logits, targets[rows], sample_weight=weight[rows], generator=generator)
                value.backward()
                optimiser.step()
                total += value.item() * len(rows)
            self.loss_curve_.append(total / len(train))
            line = f"epoch {epoch}/{self.max_epochs}  loss {self.loss_curve_[-1]:.4f}"
            if held is not None and self.validation_curve_ is not None:
                score, temperature = self._validated(X, targets, weight, held)
                self.validation_curve_.append(score)
                line += f"  held out {score:.4f}"
                if score == min(self.validation_curve_):
                    best = epoch, temperature, copy.deepcopy(self.network_.state_dict())
            if self.verbose:
                print(line)
            if held is not None and epoch - best[0] >= self.patience:
                break
        if held is not None:
            self.network_.load_state_dict(best[2])
        self.temperature_, self.n_iter_ = best[1], epoch
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """p(k|x), (N, K); columns as ``classes_``."""
        validation.check_is_fitted(self)
        X = validation.validate_data(self, X, reset=False, **READ)
        logits = self._logits(X, torch.arange(X.shape[0]))
        return np.asarray((logits.double() / self.temperature_).softmax(1))

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """log p(k|x), (N, K)."""
        return np.asarray(np.log(self.predict_proba(X)))

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class of each row, (N,)."""
        best = self.predict_proba(X).argmax(1)  # first: it says that nothing was fitted
        return np.asarray(self.classes_[best])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy; against the likeliest class of soft labels. Ignored rows do not count."""
        predicted, soft = self.predict(X), _soft_targets(y)
        truth = validation.column_or_1d(y) if soft is None else self.classes_[soft.argmax(0).numpy()]
        rows = ~_is_ignored(truth) if soft is None else _counted(soft).numpy()
        weight = None if sample_weight is None else np.asarray(sample_weight)[rows]
        return float(accuracy_score(truth[rows], predicted[rows], sample_weight=weight))

    def _validated(self, X: Any, targets: SoftTargets, weight: Tensor, held: Tensor) -> tuple[float, float]:
        """Cross-entropy of the rows held out, and the temperature at which it is taken."""
        logits, targets, temperature = self._logits(X, held).double(), targets[held], self.temperature
        if issubclass(LOSSES[self.loss], losses.ContrastiveLoss):
            temperature = calibration.fit_temperature(logits, targets)
        return -_log_likelihood((logits / temperature).log_softmax(1), targets, weight[held]), temperature

    def _logits(self, X: Any, rows: Tensor) -> Tensor:
        dtype = next(self.network_.parameters()).dtype
        with torch.no_grad():
            return torch.cat([self.network_(_features(X, part).to(dtype)) for part in rows.split(4096)])

    def _criterion(self, targets: SoftTargets) -> losses.ClassifierLoss:
        kind = LOSSES[self.loss]
        options: dict[str, Any] = {"temperature": self.temperature, "distributed": False}
        if self.loss not in LABELS_ONLY:
            options["label_smoothing"] = self.label_smoothing
        if issubclass(kind, losses.ContrastiveLoss):
            options["noise_probs"] = noise.from_counts(targets.class_mass(), floor=1)
        return kind(**options)

    def _network(self, seed: int, dtype: Any) -> nn.Module:
        widths = [self.n_features_in_, *self.hidden_layer_sizes, len(self.classes_)]
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
        network = nn.Sequential(*layers[:-1])
        return network.to(torch.float64 if dtype == np.float64 else torch.float32)

    def _split(self, targets: SoftTargets, seeds: np.random.RandomState) -> tuple[Tensor, Tensor | None]:
        """Rows to train on and rows to hold out, with the classes in equal shares if there are enough of each."""
        rows = _counted(targets)
        if not self.early_stopping:
            return rows, None
        classes = targets.argmax(0)[rows].numpy()
        count = max(1, round(self.validation_fraction * len(rows)))
        sizes = np.unique(classes, return_counts=True)[1]
        possible = sizes.min() >= 2 and min(count, len(rows) - count) >= len(sizes)
        stratify = classes if possible else None
        parts = train_test_split(rows.numpy(), test_size=count, random_state=seeds, stratify=stratify)
        train, held = (torch.from_numpy(np.sort(part)) for part in parts)
        return train, held

    def _check_options(self) -> None:
        one_of(*LOSSES)(self.loss, "loss")
        if self.loss in LABELS_ONLY and self.label_smoothing:
            raise ValueError(f"label_smoothing must be 0 with loss={self.loss!r}, got {self.label_smoothing}")
        for name in ("batch_size", "max_epochs", "patience"):
            as_whole(getattr(self, name), name)
        number("between 0 and 1", lambda share: 0 < share < 1)(self.validation_fraction, "validation_fraction")

    def _targets(self, y: Any, rows: int) -> SoftTargets:
        """Targets over K classes, and ``classes_``."""
        if y is None:
            raise ValueError("SoftLabelClassifier requires y to be passed, but the target y is None")
        targets = _soft_targets(y)
        if targets is not None:
            if self.loss in LABELS_ONLY:
                raise ValueError(f"loss={self.loss!r} takes labels (N,) only, got soft labels {tuple(targets.shape)}")
            names = getattr(y, "columns", range(targets.num_classes)) if self.classes is None else self.classes
            self.classes_ = np.asarray(list(names))
            if len(self.classes_) != targets.num_classes:
                raise ValueError(f"classes must name the {targets.num_classes} columns of y, got {len(self.classes_)}")
        else:
            if self.classes is not None:
                raise ValueError("classes names the columns of soft labels, but y holds labels, which name themselves")
            y = validation.column_or_1d(y, warn=True)
            validation.assert_all_finite(y, input_name="y")
            check_classification_targets(y)
            is_ignored = _is_ignored(y)
            self.classes_, labels = np.unique(y[~is_ignored], return_inverse=True)
            index = np.full(len(y), IGNORED)
            index[~is_ignored] = labels
            targets = SoftTargets.from_labels(index, max(1, len(self.classes_)), ignore_index=IGNORED)
        if len(_counted(targets)) == 0:
            raise ValueError("y holds no row that counts: every row is ignored")
        validation.check_consistent_length(np.empty(rows), np.empty(len(targets)))
        return targets


def neg_soft_log_loss(estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
    """Scorer for votes: the mean of Σ_k y_k log p(k|x), where y is labels, probabilities (N, K) or SoftTargets.

    For labels it equals ``"neg_log_loss"`` without clipping. Ignored rows do not count.
    """
    log_probs = torch.from_numpy(np.log(np.asarray(estimator.predict_proba(X), float)))
    targets = _soft_targets(y)
    if targets is None:
        y = validation.column_or_1d(y)
        known = {name: k for k, name in enumerate(estimator.classes_.tolist())}
        unknown = set(y[~_is_ignored(y)].tolist()) - set(known)
        if unknown:
            raise ValueError(f"y holds {unknown.pop()!r}, which is none of the estimator's classes")
        targets = SoftTargets.from_labels([known.get(label, IGNORED) for label in y.tolist()], len(known))
    rows = _counted(targets)
    weight = None if sample_weight is None else torch.as_tensor(np.asarray(sample_weight))[rows]
    return _log_likelihood(log_probs[rows], targets[rows], weight)


def _log_likelihood(log_probs: Tensor, targets: SoftTargets, weight: Tensor | None) -> float:
    """Weighted mean of Σ_k α_k log p_k."""
    alpha = targets.dense(torch.float64)
    each = torch.where(alpha > 0, alpha * log_probs, 0.0).sum(1)
    share = torch.ones_like(each) if weight is None else weight.double()
    return float((each * share).sum() / share.sum())


def _soft_targets(y: Any) -> SoftTargets | None:
    """Soft labels, of two columns at least, as SoftTargets, with rows of NaN ignored; None if ``y`` holds labels."""
    if isinstance(y, SoftTargets):
        return y.cpu()
    shape = np.asarray(y).shape
    if len(shape) != 2 or shape[1] < 2:
        return None
    rows = as_tensor(y, "y").double().clone()
    is_ignored = rows.isnan().all(1)
    rows[is_ignored] = 1 / rows.shape[1]
    targets = SoftTargets.from_dense(rows)
    targets.mask = is_ignored.logical_not() if bool(is_ignored.any()) else None
    return targets


def _is_ignored(labels: np.ndarray) -> np.ndarray:
    return labels == IGNORED if labels.dtype.kind in "iuf" else np.zeros(len(labels), bool)


def _counted(targets: SoftTargets) -> Tensor:
    """Rows that are not ignored."""
    return torch.arange(len(targets)) if targets.mask is None else targets.mask.nonzero()[:, 0]


def _features(X: Any, rows: Tensor) -> Tensor:
    """Some rows of dense or sparse features."""
    part = X[rows.numpy()]
    return torch.from_numpy(np.array(part) if isinstance(part, np.ndarray) else part.toarray())

"""Class scores from logits (N, K): the usual case, all scores at hand."""

from collections.abc import Sequence

from torch import Tensor

from softnce._rows import Place, rows_of_logits, rows_of_targets
from softnce._scores.arithmetic import expected
from softnce._scores.classes import class_scores, cross_entropy
from softnce._scores.geometric import contrast
from softnce._scores.kernel import Reduced, blank, finite
from softnce._scores.others import Others
from softnce.targets import SoftTargets


class Logits:
    """Logits (N, K) or (N, K, d₁, …), as rows.

    A logit of −∞ masks its class. Where the row's target has no weight on masked classes, the contrastive losses, and
    the cross-entropy of labels and pairs, are those of the other classes. The cross-entropy of dense rows is NaN then,
    as torch's is, and has the right gradient. A target with weight on a masked class has an infinite or a huge loss.

    Attributes:
        rows: (N·d₁·…, K).
        shape: (N, d₁, …), of one number per sample.
        num_classes: K.
    """

    def __init__(self, logits: Tensor, allow_empty: bool = False) -> None:
        self.rows, self.shape = rows_of_logits(logits, allow_empty)
        self.num_classes = self.rows.shape[1]

    def accept(self, targets: Tensor | SoftTargets, label_smoothing: float, ignore_index: int) -> SoftTargets:
        """The targets of the rows."""
        return rows_of_targets(
            targets, self.rows, self.num_classes, self.shape, "logits", label_smoothing, ignore_index
        )

    def geometric(
        self,
        temperature: float | Tensor,
        log_noise: Tensor | None,
        targets: SoftTargets,
        groups: Sequence[SoftTargets],
        own: Place | None,
        remove_accidental_hits: bool,
        chunk_size: int | None,
        reduction: Reduced,
    ) -> Tensor:
        """See :func:`softnce._scores.geometric.contrast`."""
        return contrast(
            self.rows, temperature, log_noise, targets, groups, own, remove_accidental_hits, chunk_size, reduction
        )

    def expected(
        self,
        temperature: float | Tensor,
        log_noise: Tensor | None,
        targets: SoftTargets,
        others: Others,
        chunk_size: int | None,
        reduction: Reduced,
    ) -> Tensor:
        """See :func:`softnce._scores.arithmetic.expected`."""
        return expected(self.rows, temperature, log_noise, targets, others.counts(), others.held, chunk_size, reduction)

    def cross_entropy(
        self,
        temperature: float | Tensor,
        log_noise: Tensor | None,
        targets: SoftTargets,
        class_weight: Tensor | None = None,
    ) -> Tensor:
        """The cross-entropy of every row, (N,). O(N·K)."""
        rows = blank(self.rows, targets.mask)
        rows = finite(rows) if isinstance(temperature, Tensor) else rows
        scores = class_scores(rows, temperature, log_noise)
        return cross_entropy(scores, targets, class_weight)

"""Cross-validation folds: the published ones, and a variant whose epoch is not chosen on the specimens it is scored on.

The rule: for each stage, the specimens in list order are shuffled with seed 0 and cut into five parts; part i of
every stage is tested in fold i. The published protocol has no third set: the epoch whose accuracy on the test
specimens is best is the one reported. :func:`honest_folds` sets a specimen of each stage aside from the training
specimens to choose the epoch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from softnce.lab.data.celltypegraph import Specimen
from softnce.lab.data.layout import FOLDS


@dataclass(frozen=True)
class Fold:
    """Specimens for training, for choosing the epoch and for testing."""

    train: tuple[Specimen, ...]
    selection: tuple[Specimen, ...]
    test: tuple[Specimen, ...]


def published_folds(specimens: Sequence[Specimen], k: int = FOLDS) -> list[Fold]:
    """The benchmark's folds; each is selected on its own test specimens."""
    stages = _parts(specimens, k)
    folds = []
    for i in range(k):
        test = tuple(s for parts in stages for s in parts[i])
        train = tuple(s for parts in stages for j, part in enumerate(parts) if j != i for s in part)
        folds.append(Fold(train=train, selection=test, test=test))
    return folds


def honest_folds(specimens: Sequence[Specimen], k: int = FOLDS) -> list[Fold]:
    """The same test specimens, but the epoch is chosen on others: the first of each stage's next part.

    They leave the training set: 9 of the benchmark's 66 to 70.
    """
    stages = _parts(specimens, k)
    folds = []
    for i, fold in enumerate(published_folds(specimens, k)):
        selection = tuple(part for parts in stages for part in parts[(i + 1) % k][:1])
        train = tuple(s for s in fold.train if s not in selection)
        folds.append(Fold(train=train, selection=selection, test=fold.test))
    return folds


def _parts(specimens: Sequence[Specimen], k: int) -> list[list[list[Specimen]]]:
    """[stage][part] -> specimens."""
    if k < 2:
        raise ValueError(f"k: got {k}, need at least two folds")
    stages: dict[str, list[Specimen]] = {}
    for specimen in specimens:
        stages.setdefault(specimen.stage, []).append(specimen)
    if max(len(stage) for stage in stages.values()) < k:
        raise ValueError(
            f"{len(specimens)} specimens in {len(stages)} stages cannot fill {k} folds: need {k} of some stage"
        )
    parts = []
    for stage in stages.values():
        order = np.arange(len(stage))
        np.random.RandomState(0).shuffle(order)  # the stream of np.random.seed(0), which the published split uses
        parts.append([[stage[j] for j in part] for part in np.array_split(order, k)])
    return parts

"""What training needs from a data set of any kind."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from softnce.lab.data.batches import TrainingBatches
from softnce.lab.models import torchvision_operators  # noqa: F401  (before Lightning)
from softnce.lab.recipes.recipe import AnyRecipe

import lightning as L  # isort: skip


class TrainingData(L.LightningDataModule):
    """Loaders of a recipe's training and validation data, on whichever rank asks.

    Attributes:
        labels: of all training rows.
        classes: their names.
        samples: number of training samples; a sample may hold many rows.
        features: numbers of features that the network takes, if the recipe does not set them.
        network: the network that is trained, set once it is built.
    """

    labels: Tensor
    classes: Sequence[str]
    samples: int
    features: tuple[int, ...] = ()
    network: Any = None
    drop_last = False

    def __init__(self, recipe: AnyRecipe, world: int) -> None:
        super().__init__()
        self.recipe: Any = recipe
        self.world = world

    @property
    def rank(self) -> int:
        return 0 if self.trainer is None else self.trainer.global_rank

    @property
    def devices(self) -> int:
        """Devices of this machine, which share its cores."""
        return 1 if self.trainer is None else self.trainer.num_devices

    def batches(self, rank: int) -> TrainingBatches:
        batch = self.recipe.optimiser.batch
        return TrainingBatches(
            self.samples,
            batch,
            self.recipe.compute.micro_batch or max(1, batch // self.world),
            rank,
            self.world,
            self.recipe.seed,
            in_pairs=self.recipe.targets.mixes,
            mix_group=self.recipe.targets.mix_group,
            drop_last=self.drop_last,
        )

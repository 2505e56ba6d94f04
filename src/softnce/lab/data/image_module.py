"""The loaders of a run, on whichever rank asks."""

from torch import Tensor

from softnce.lab.data.batches import EvaluationBatches, Loader, TrainingBatches
from softnce.lab.data.frozen import features_of
from softnce.lab.data.image_loader import FeatureRows, ImageRows, worker_count
from softnce.lab.data.images import Images, open_images
from softnce.lab.data.transforms import evaluation_transform, training_transform
from softnce.lab.models.images import Network
from softnce.lab.recipes.recipe import Recipe

import lightning as L  # isort: skip


class ImageData(L.LightningDataModule):
    """Training and evaluation loaders of a recipe; of cached features where the backbone is frozen."""

    network: Network | None = None  # whose backbone gives the features, if it is frozen

    def __init__(self, recipe: Recipe, world: int = 1) -> None:
        super().__init__()
        self.recipe, self.world = recipe, world
        self.train_images = open_images(recipe.data, "train")
        self.evaluation_images = open_images(recipe.data, "evaluation")
        self.frozen = recipe.model.freeze == "backbone"
        self.train_features: Tensor | None = None
        self.evaluation_features: Tensor | None = None

    def batches(self, rank: int) -> TrainingBatches:
        recipe = self.recipe
        batch = recipe.optimiser.batch
        return TrainingBatches(
            len(self.train_images.labels),
            batch,
            recipe.compute.micro_batch or max(1, batch // self.world),
            rank,
            self.world,
            recipe.seed,
            in_pairs=recipe.targets.mixes,
            drop_last=recipe.data.drop_last,
        )

    def prepare_data(self) -> None:
        if self.frozen:  # on one process of a node, so that the others find them in the cache
            assert self.network is not None
            for images in (self.train_images, self.evaluation_images):
                features_of(self.recipe, self.network.backbone, images)

    def setup(self, stage: str) -> None:
        if self.frozen and self.train_features is None:
            assert self.network is not None
            self.train_features = features_of(self.recipe, self.network.backbone, self.train_images)
            self.evaluation_features = features_of(self.recipe, self.network.backbone, self.evaluation_images)
            self.network.scale.measure(self.train_features)

    def train_dataloader(self) -> Loader:
        assert self.trainer is not None
        batches = self.batches(self.trainer.global_rank)
        if self.train_features is not None:
            return Loader(FeatureRows(self.train_features, self.train_images.labels), batches)
        data = self.recipe.data
        transform = training_transform(data, self.recipe.model)
        rows = ImageRows(self.train_images, transform, self.recipe.seed, data.corrupt == "skip")
        return Loader(rows, batches, worker_count(data.workers, self.world))

    def val_dataloader(self) -> Loader:
        assert self.trainer is not None
        rank = self.trainer.global_rank
        batches = EvaluationBatches(
            len(self.evaluation_images.labels), self.recipe.compute.eval_batch, rank, self.world
        )
        if self.evaluation_features is not None:
            return Loader(FeatureRows(self.evaluation_features, self.evaluation_images.labels), batches)
        return evaluation_loader(self.recipe, self.evaluation_images, batches, self.world)


def evaluation_loader(recipe: Recipe, images: Images, batches: EvaluationBatches, world: int = 1) -> Loader:
    rows = ImageRows(images, evaluation_transform(recipe.data, recipe.model), skip=recipe.data.corrupt == "skip")
    return Loader(rows, batches, worker_count(recipe.data.workers, world))

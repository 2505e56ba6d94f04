"""The images of a recipe, and batches of them for the classifier."""

from typing import Any

from torch import Tensor

from softnce.lab.cores import cores_per_device
from softnce.lab.data.batches import EvaluationBatches, Loader
from softnce.lab.data.frozen import features_of, weights_digest
from softnce.lab.data.image_loader import FeatureRows, ImageRows
from softnce.lab.data.images import Images, open_images
from softnce.lab.data.module import TrainingData
from softnce.lab.data.transforms import evaluation_transform, training_transform
from softnce.lab.recipes.recipe import Recipe
from softnce.lab.stored import Unreadable


class ImageData(TrainingData):
    """Training and evaluation loaders of a recipe; of cached features where the backbone is frozen."""

    def __init__(self, recipe: Recipe, world: int = 1) -> None:
        super().__init__(recipe, world)
        self.transform = training_transform(recipe.data, recipe.model)
        self.train_images = open_images(recipe.data, "train")
        self.evaluation_images = open_images(recipe.data, "evaluation")
        if recipe.data.keeps_test_apart:
            open_images(recipe.data, "test")  # only needed at the end, but what is wrong with it is said now
        self.labels, self.classes = self.train_images.labels, self.train_images.classes
        self.samples, self.drop_last = len(self.labels), recipe.data.drop_last
        self.frozen = recipe.model.freeze == "backbone"
        self.train_features: Tensor | None = None
        self.evaluation_features: Tensor | None = None
        self.backbone = ""  # digest of the weights that the features are computed with

    def prepare_data(self) -> None:
        if self.frozen:  # on one process of a node, so that the others find them in the cache
            for images in (self.train_images, self.evaluation_images):
                features_of(self.recipe, self.network.backbone, images)

    def setup(self, stage: str) -> None:
        if self.frozen and self.train_features is None:
            self.train_features = features_of(self.recipe, self.network.backbone, self.train_images)
            self.evaluation_features = features_of(self.recipe, self.network.backbone, self.evaluation_images)
            self.network.scale.measure(self.train_features)
            self.backbone = weights_digest(self.network.backbone).hex()

    def state_dict(self) -> dict[str, Any]:
        return {"backbone": self.backbone} if self.frozen else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Refuse to train a head on the features of another backbone than the checkpoint holds."""
        if self.frozen and state["backbone"] != self.backbone:
            raise Unreadable(
                f"model.weights {self.recipe.model.weights} gives other weights than the backbone of this run had, so "
                "it cannot be resumed"
            )

    def train_dataloader(self) -> Loader:
        batches = self.batches(self.rank)
        if self.train_features is not None:
            return Loader(FeatureRows(self.train_features, self.labels), batches)
        data = self.recipe.data
        rows = ImageRows(self.train_images, self.transform, self.recipe.seed, data.corrupt == "skip")
        return Loader(rows, batches, min(data.workers, cores_per_device(self.devices)))

    def val_dataloader(self) -> Loader:
        size, batch = len(self.evaluation_images.labels), self.recipe.compute.eval_batch
        batches = EvaluationBatches(size, batch, self.rank, self.world)
        if self.evaluation_features is not None:
            return Loader(FeatureRows(self.evaluation_features, self.evaluation_images.labels), batches)
        return evaluation_loader(self.recipe, self.evaluation_images, batches, self.devices)


def evaluation_loader(recipe: Recipe, images: Images, batches: EvaluationBatches, devices: int = 1) -> Loader:
    rows = ImageRows(images, evaluation_transform(recipe.data, recipe.model), skip=recipe.data.corrupt == "skip")
    return Loader(rows, batches, min(recipe.data.workers, cores_per_device(devices)))

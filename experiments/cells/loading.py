"""The data of a recipe as batches for the classifier, and its scores."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from experiments.cells.batches import Batch, EvaluationBatches, Loader, Share, TrainingBatches
from experiments.cells.recipes import GraphRecipe, ImageRecipe, Recipe, TextRecipe
from experiments.data.images import Images, open_images, stratified
from experiments.data.seeds import borrowed_generators, start_generators
from experiments.data.stored import Unreadable
from experiments.harness.runs import cores
from experiments.models import torchvision_operators  # noqa: F401  (before Lightning)
from experiments.training import Scores

import lightning as L  # isort: skip


class CorruptImage(RuntimeError):
    """An image that cannot be read."""


class TrainingData(L.LightningDataModule):
    """Loaders of a recipe's training and validation data, on whichever rank asks.

    Attributes:
        targets: of all training rows, labels (N,) or votes (N, K), some IGNORED.
        classes: their names.
        samples: number of training samples; a sample may hold many rows.
        features: numbers of features that the network takes, if the recipe does not set them.
        network: the network that is trained, set once it is built.
    """

    targets: Tensor
    classes: Sequence[str]
    samples: int
    features: tuple[int, ...] = ()
    network: Any = None

    def __init__(self, recipe: Recipe, world: int) -> None:
        super().__init__()
        self.recipe, self.world = recipe, world

    @property
    def rank(self) -> int:
        return 0 if self.trainer is None else self.trainer.global_rank

    def batches(self, rank: int) -> TrainingBatches:
        recipe, batch = self.recipe, self.recipe.optimiser.batch
        return TrainingBatches(
            self.samples,
            batch,
            recipe.compute.micro_batch or max(1, batch // self.world),
            rank,
            self.world,
            recipe.seed,
            in_pairs=recipe.targets.mixes,
            mix_group=recipe.targets.mix_group,
            drop_last=recipe.data.drop_last,
        )

    def scores(self) -> Scores:
        return Scores(len(self.classes))

    def train_dataloader(self) -> Loader:
        return Loader(self.rows(), self.batches(self.rank), self.workers)

    def val_dataloader(self) -> Loader:
        return self.evaluation_loader("validation", self.rank, self.world)

    def evaluation_loader(self, split: str, rank: int = 0, world: int = 1) -> Loader:
        """Batches of the test split, or of the data that choose the epoch (``validation``)."""
        rows: Any = self.evaluation_rows(split)
        return Loader(rows, EvaluationBatches(len(rows), self.recipe.compute.eval_batch, rank, world), self.workers)

    workers = 0

    def rows(self) -> Dataset:
        raise NotImplementedError

    def evaluation_rows(self, split: str) -> Dataset:
        raise NotImplementedError


class Rows(Dataset):
    """Rows of a tensor in memory; a share is one indexing."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitems__(self, share: Share) -> Batch:
        return _batch(self.inputs[share.rows], self.targets, share)


def _batch(inputs: Any, targets: Tensor, share: Share) -> Batch:
    if share.batch is None:
        return Batch(inputs, targets[share.rows])
    assert share.own is not None
    return Batch(inputs, targets[share.batch[share.own]], targets[share.batch], share.own, share.step)


class ImageRows(Dataset):
    """Turns a share into tensors; an image's augmentation is a function of (seed, epoch, row)."""

    def __init__(self, images: Images, transform: Any, seed: int = 0) -> None:
        self.images, self.transform, self.seed = images, transform, seed

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, share: Share) -> Batch:
        inputs = []
        with borrowed_generators():
            for row in share.rows:
                try:
                    image = self.images.image(row)
                except (OSError, SyntaxError, ValueError) as error:  # Pillow's, for broken files
                    raise CorruptImage(f"cannot read {self.images.name_of(row)}: {error}") from error
                start_generators(self.seed, share.epoch, row)
                inputs.append(self.transform(image))
        return _batch(torch.stack(inputs), self.images.targets, share)


class ImageSource(TrainingData):
    """Images; of cached features if the backbone is frozen."""

    def __init__(self, recipe: ImageRecipe, world: int = 1) -> None:
        from experiments.data.transforms import training_transform, view

        super().__init__(recipe, world)
        data, model = recipe.data, recipe.model
        self.view = view(data.kind, model.weights, model.name, data.image_size, data.crop)
        self.transform = training_transform(self.view, data.augment, data.smallest_crop, data.erasing)
        self.test = open_images(data.kind, data.dir, "evaluation", data.download)
        whole = open_images(data.kind, data.dir, "train", data.download)
        self.train = whole if data.share == 1 else whole[stratified(whole.labels, data.share)[1]]
        self.validation = self.test
        if data.holdout > 0:
            kept, held = stratified(self.train.labels, data.holdout)
            self.train, self.validation = self.train[kept], self.train[held]
        self.targets, self.classes, self.samples = self.train.targets, whole.classes, len(self.train)
        self.workers = min(data.workers, max(1, cores() // world)) if data.workers else 0
        self.frozen = model.freeze == "backbone"
        self.found: dict[str, Tensor] = {}
        self.backbone = ""  # digest of the weights that the features are computed with

    def _features(self, images: Images) -> Tensor:
        from experiments.data.frozen import features_of

        recipe: Any = self.recipe
        name = f"{recipe.model.name}-{recipe.data.kind}"
        return features_of(images, self.network.backbone, self.view, name, recipe.data.cache, recipe.compute.precision)

    def prepare_data(self) -> None:
        if self.frozen:  # on one process of a node, so that the others find them in the cache
            for images in (self.train, self.validation):
                self._features(images)

    def setup(self, stage: str) -> None:
        if self.frozen and not self.found:
            from experiments.data.frozen import weights_digest

            self.found = {"train": self._features(self.train), "validation": self._features(self.validation)}
            self.network.scale.measure(self.found["train"])
            self.backbone = weights_digest(self.network.backbone).hex()

    def state_dict(self) -> dict[str, Any]:
        return {"backbone": self.backbone} if self.frozen else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Refuses to train a head on the features of another backbone than the checkpoint holds."""
        if self.frozen and state["backbone"] != self.backbone:
            raise Unreadable("model.weights gives another backbone than this run had, so it cannot be resumed")

    def rows(self) -> Dataset:
        if self.found:
            return Rows(self.found["train"], self.targets)
        return ImageRows(self.train, self.transform, self.recipe.seed)

    def evaluation_rows(self, split: str) -> Dataset:
        images = self.test if split == "test" else self.validation
        if self.found and split == "validation":
            return Rows(self.found["validation"], images.labels)
        return ImageRows(replace(images, votes=None), self.view.transform())


class TextSource(TrainingData):
    """Sentences as tokens."""

    def __init__(self, recipe: TextRecipe, world: int = 1) -> None:
        from experiments.data.sentences import open_sentences

        super().__init__(recipe, world)
        data = recipe.data
        self.train, self.validation, self.test = (
            open_sentences(data.kind, data.dir, split, (data.train, data.test))  # type: ignore[arg-type]
            for split in ("train", "validation", "test")
        )
        if data.holdout > 0:
            kept, held = stratified(self.train.labels, data.holdout)
            self.train, self.validation = self.train[kept], self.train[held]
        self.targets, self.classes, self.samples = self.train.targets, self.train.classes, len(self.train)

    def _rows(self, sentences: Any, targets: Tensor) -> Dataset:
        from experiments.models.text import tokenise

        recipe: Any = self.recipe
        return Rows(tokenise(recipe.model, sentences.texts, recipe.data.max_tokens), targets)

    def rows(self) -> Dataset:
        return self._rows(self.train, self.targets)

    def evaluation_rows(self, split: str) -> Dataset:
        sentences = self.test if split == "test" else self.validation
        return self._rows(sentences, sentences.labels)


class GraphRows(Dataset):
    """Turns a share into one graph of many parts, and the labels of its nodes.

    An augmented graph is a function of (seed, epoch, graph). Every share comes with the labels, or votes, of all nodes
    of the whole batch, which are known without it.
    """

    def __init__(self, graphs: Sequence[Any], augment: bool = False, votes: bool = False, seed: int = 0) -> None:
        self.graphs, self.augment, self.seed = graphs, augment, seed
        self.targets = [graph.votes * (graph.y >= 0)[:, None] if votes else graph.y for graph in graphs]

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitems__(self, share: Share) -> Batch:
        from torch_geometric.data import Batch as GraphBatch

        from experiments.data.graph_augment import augmented

        graphs = [self.graphs[row] for row in share.rows]
        if self.augment:
            with borrowed_generators():
                for place, row in enumerate(share.rows):
                    start_generators(self.seed, share.epoch, row)
                    graphs[place] = augmented(graphs[place])
        inputs = GraphBatch.from_data_list(graphs)
        if share.batch is None:
            return Batch(inputs, inputs.y)
        assert share.own is not None
        parts = [self.targets[row] for row in share.batch.tolist()]
        whole, ends = torch.cat(parts), torch.tensor([len(part) for part in parts]).cumsum(0)
        places = [torch.arange(int(ends[i]) - len(parts[i]), int(ends[i])) for i in share.own.tolist()]
        own = torch.cat(places) if places else torch.empty(0, dtype=torch.long)
        return Batch(inputs, whole[own], whole, own, share.step)


class GraphSource(TrainingData):
    """Nodes of graphs: evaluation is on the graphs that choose the epoch."""

    def __init__(self, recipe: GraphRecipe, world: int = 1) -> None:
        from experiments.data.graphs import open_task

        super().__init__(recipe, world)
        data = recipe.data
        self.task = open_task(data.kind, data.dir, data.fold, data.protocol == "honest")
        self.targets = torch.cat([graph.y for graph in self.task.train])
        self.classes, self.samples = self.task.classes, len(self.task.train)
        first = self.task.train[0]
        self.features = first.num_node_features, first.num_edge_features

    def scores(self) -> Scores:
        return NodeScores(len(self.classes), self.task.left_out)

    def rows(self) -> Dataset:
        data: Any = self.recipe.data
        return GraphRows(self.task.train, data.augment == "paper", data.votes, self.recipe.seed)

    def evaluation_rows(self, split: str) -> Dataset:
        return GraphRows(self.task.test if split == "test" else self.task.selection)


class NodeScores(Scores):
    """As Scores, but ``top1`` and ``class_average`` are means over graphs, as the CellTypeGraph benchmark counts them.

    Args:
        num_classes: K.
        left_out: classes excluded from the class average.
    """

    def __init__(self, num_classes: int, left_out: Sequence[int] = ()) -> None:
        self.left_out = left_out
        super().__init__(num_classes)

    def reset(self) -> None:
        super().reset()
        self.confusions = torch.zeros(0, self.num_classes, self.num_classes, dtype=torch.long)

    def update(self, logits: Tensor, labels: Tensor, inputs: Any = None) -> None:
        from experiments.data.graph_metrics import specimen_confusions

        super().update(logits, labels)
        graph = None if inputs is None else inputs.batch.cpu()
        found = specimen_confusions(logits.argmax(1).cpu(), labels.cpu(), graph, self.num_classes)
        self.confusions = torch.cat([self.confusions, found])

    def gather(self) -> None:
        super().gather()
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            everyone: list[Any] = [None] * torch.distributed.get_world_size()
            torch.distributed.all_gather_object(everyone, self.confusions)
            self.confusions = torch.cat(everyone)

    def compute(self) -> dict[str, float]:
        from experiments.data.graph_metrics import pooled

        of_graphs = pooled(self.confusions, self.left_out)
        names = ("top1", "class_average", "class_average_published")
        return super().compute() | {name: of_graphs[name] for name in names}


def open_data(recipe: Recipe, world: int = 1) -> TrainingData:
    """The data of a recipe; a ValueError says which extra is missing."""
    try:
        if isinstance(recipe, GraphRecipe):
            return GraphSource(recipe, world)
        return TextSource(recipe, world) if isinstance(recipe, TextRecipe) else ImageSource(recipe, world)  # type: ignore[arg-type]
    except ModuleNotFoundError as error:
        raise missing(recipe, error) from None


def missing(recipe: Recipe, error: ModuleNotFoundError) -> ValueError:
    extra = {GraphRecipe: "graph", TextRecipe: "text"}.get(type(recipe), "vision")
    return ValueError(f'{recipe.data.kind} needs {error.name}: pip install ".[{extra}]"')

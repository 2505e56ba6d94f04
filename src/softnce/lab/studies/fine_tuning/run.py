"""Fine-tunings of MiniLM and EfficientNet-Lite0 with every loss, part after part."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from softnce.lab import recipes
from softnce.lab.configuration import later, option, to_mapping
from softnce.lab.data.features import folder
from softnce.lab.experiment import search
from softnce.lab.experiment.probe import targets_for
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.study import StudyConfig
from softnce.lab.heads import Head
from softnce.lab.losses import LOSSES, Loss
from softnce.lab.recipes.recipe import AnyRecipe, GraphRecipe, Recipe
from softnce.lab.targets import Targets

VERSION = 1
TextSet = Literal["requests", "banking77", "clinc150"]
HeadKind = Literal["linear", "mlp"]
Precision = Literal["32", "bf16"]
IMAGES = "cifar100-fine-tuned"
TEXT_TARGETS = Targets(smoothing=0.1, mixup=0.8)
IMAGE_TARGETS = replace(TEXT_TARGETS, cutmix=1.0)
COMPARED = ("nll", "soft-ce", "soft-target-info-nce", "expected-info-nce", "soft-dist-info-nce")
"""What the claims compare: run before the others; on images, which take longest, only these have several seeds."""
ORDER = (*COMPARED, *(loss for loss in LOSSES if loss not in COMPARED))


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(5, "number of seeds for text; a seed fixes initial weights of the head, batches and mixing")
    texts: tuple[TextSet, ...] = option(("banking77", "clinc150"), "data sets of sentences, in order; [] omits text")
    epochs: tuple[int, ...] = option((2, 2), "passes over the training part of each of these, in their order", least=1)
    heads: tuple[HeadKind, ...] = option(("linear", "mlp"), "heads for text: one layer, three layers", fewest=1)
    precision: Precision = option("bf16", "of the text encoder in training; bf16: mixed, needs a recent processor")
    batch: int = option(64, "sentences per batch", least=2)
    rates: tuple[float, ...] = option((5e-4, 1e-3), "learning rates tried for text", above=0, fewest=1)
    image_epochs: int = option(8, "passes over the training images; 0 omits this part", least=0)
    image_batch: int = option(128, "images per batch", least=2)
    image_rates: tuple[float, ...] = option((1e-3, 3e-3), "learning rates tried for images", above=0, fewest=1)
    image_seeds: int = option(3, "number of seeds for images", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.texts or self.image_epochs):
            raise ValueError("texts: got [], need a data set of sentences where image_epochs is 0")
        if len(self.texts) != len(self.epochs):
            raise ValueError(f"epochs: got {list(self.epochs)}, need one number for each of {list(self.texts)}")


PRESETS = {
    "quick": Config(
        seeds=1, texts=("requests",), heads=("linear",), batch=8, epochs=(1,), rates=(1e-3,), image_epochs=0
    ),
    "paper": Config(),
}


@dataclass(frozen=True)
class Run:
    """One fine-tuning, as ``softnce train`` does it."""

    recipe: str  # of the folder laptop: data, network, schedule, and the held-out part
    loss: Loss
    targets: Targets
    head: Head
    batch: int
    epochs: int
    lr: float = 1e-3
    seed: int = 0
    frozen: bool = False  # train the head alone, on features of the same images
    precision: Precision = later("32", "of the encoder in training")


@dataclass(frozen=True)
class Part:
    """Settings that are compared with each other, the rates tried for them, and the seeds of each loss."""

    settings: list[Run]
    rates: Sequence[float]
    seeds: dict[str, int]

    def trials(self) -> list[Run]:
        """The search, one learning rate after the other."""
        return sorted(search.trials(self.settings, self.rates), key=lambda run: self.rates.index(run.lr))

    def tuned(self, rows: Sequence[Row]) -> list[Run]:
        """Seed after seed over all losses, at their best rates."""
        found = search.tuned(self.settings, rows, self.rates, max(self.seeds.values()), held_out)
        return sorted((run for run in found if run.seed < self.seeds[run.loss.name]), key=lambda run: run.seed)


def held_out(row: Row) -> float:
    """What decides the learning rate: accuracy on held-out data, and of equal ones the better likelihood."""
    return search.top1(row) - 1e-6 * float(row.result["held_out"]["nll"])


def parts(config: Config) -> list[Part]:
    """In the order in which they are run."""
    seeds = dict.fromkeys(LOSSES, config.seeds)
    found = []
    for kind in config.heads:
        head = Head(kind, hidden=512)
        for name, epochs in zip(config.texts, config.epochs, strict=True):
            template = Run(name, Loss(), TEXT_TARGETS, head, config.batch, epochs, precision=config.precision)
            settings = [replace(template, loss=Loss(loss), targets=targets_for(loss, TEXT_TARGETS)) for loss in ORDER]
            found.append(Part(settings, config.rates, seeds))
    if config.image_epochs:
        found += _image_parts(config)
    return found


def _image_parts(config: Config) -> list[Part]:
    head, batch, epochs = Head("linear"), config.image_batch, config.image_epochs
    settings = [Run(IMAGES, Loss(loss), targets_for(loss, IMAGE_TARGETS), head, batch, epochs) for loss in ORDER]
    seeds = {loss: config.image_seeds if loss in COMPARED else 1 for loss in LOSSES}
    frozen = Run(IMAGES, Loss("nll"), targets_for("nll"), head, batch, epochs, frozen=True)
    return [Part(settings, config.image_rates, seeds), Part([frozen], (1e-3, 3e-3), {"nll": 1})]


def runs(config: Config) -> list[Run]:
    first, *_ = parts(config)
    return first.trials()


def follow_up(config: Config, rows: Sequence[Row]) -> list[Run]:
    """All parts up to the first that is unfinished: its search, or its seeds once the search is finished."""
    finished = [row.config for row in rows]
    planned: list[Run] = []
    for part in parts(config):
        for stage in (part.trials(), part.tuned(rows)):
            planned += stage
            if any(to_mapping(run) not in finished for run in stage):
                return planned
    return planned


def prepare(todo: Sequence[Run]) -> None:
    """Say what is missing before any work."""
    for recipe in dict.fromkeys(run.recipe for run in todo):
        _placed(recipe)
    if any(run.recipe != IMAGES for run in todo):
        try:
            from softnce.lab.models import text  # noqa: F401
        except ModuleNotFoundError as error:
            raise ValueError(f"text needs {error.name}: pip install 'softnce[text]'") from None


def _placed(name: str) -> AnyRecipe:
    """The recipe, and where its data are."""
    recipe = recipes.load(f"laptop/{name}")
    if name == "requests":
        return recipe
    place = folder("cifar100" if name == IMAGES else "intents")
    return replace(recipe, data=replace(recipe.data, dir=place))  # type: ignore[arg-type]


def recipe_of(run: Run) -> AnyRecipe:
    """The recipe of a run, complete."""
    recipe = _placed(run.recipe)
    assert not isinstance(recipe, GraphRecipe)
    recipe = replace(
        recipe,
        seed=run.seed,
        head=run.head,
        loss=run.loss,
        targets=run.targets,
        optimiser=replace(recipe.optimiser, batch=run.batch, base_lr=run.lr * 256 / run.batch),
        schedule=replace(recipe.schedule, epochs=run.epochs),
        compute=replace(recipe.compute, accelerator="cpu", precision=run.precision, progress=False),
    )
    if not run.frozen:
        return recipe
    assert isinstance(recipe, Recipe)
    still = replace(recipe.data, augment="none", erasing=0.0)
    return replace(recipe, data=still, model=replace(recipe.model, freeze="backbone"))


def perform(run: Run) -> dict[str, Any]:
    """Held-out and test scores of the epoch that is best on the held-out part."""
    from softnce.lab.train.run import scored

    return scored(recipe_of(run))

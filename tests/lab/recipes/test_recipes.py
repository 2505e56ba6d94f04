"""The 15 recipes against the paper's tables, transcribed here by hand."""

import dataclasses

import pytest
import yaml

from softnce.lab import recipes
from softnce.lab.configuration import from_mapping
from softnce.lab.losses import LOSSES
from softnce.lab.recipes.recipe import Recipe

# Supplement, "Image classification": base learning rates by data set and loss.
BASE_LR = {
    "imagenet": {"info-nce": 5.5e-4, "soft-dist-info-nce": 5.5e-4, "soft-target-info-nce": 5.5e-4, "ce": 3e-4},
    "tiny-imagenet": {"info-nce": 2.5e-4, "soft-dist-info-nce": 2.5e-4, "soft-target-info-nce": 2.5e-4, "ce": 3e-4},
    "cifar100": {"info-nce": 3e-4, "soft-dist-info-nce": 3e-4, "soft-target-info-nce": 5.5e-4, "ce": 3e-4},
}


def test_there_are_fifteen_cells():
    assert len(recipes.PAPER) == 15
    assert set(recipes.PAPER) <= set(recipes.names())


@pytest.mark.parametrize("name", recipes.PAPER)
def test_cell_has_the_papers_values(name):
    data, loss = name.split("/")
    recipe = recipes.load(name)
    assert (recipe.data.kind, recipe.loss.name) == (data, loss)
    assert recipe.optimiser.base_lr == BASE_LR[data].get(loss, BASE_LR[data]["ce"])
    # Table "Parameter settings used to train ViT-B/16 models across all baselines"
    o, s, t = recipe.optimiser, recipe.schedule, recipe.targets
    assert (o.name, o.weight_decay, o.layer_decay, o.batch) == ("adamw", 0.05, 0.65, 1024)
    assert (s.warmup_epochs, s.epochs) == (5, 100)
    assert recipe.data.augment.startswith("rand-m9-mstd0.5")
    # "Regularization techniques such as label smoothing and MixUp cannot be used with hard target baselines."
    expected = (0, 0, 0) if LOSSES[loss].labels_only else (0.1, 0.8, 1.0)
    assert (t.smoothing, t.mixup, t.cutmix) == expected
    # main text: temperature, head, network
    assert recipe.loss.temperature == 1
    assert (recipe.head.kind, recipe.head.hidden) == ("mlp", 4096)
    assert (recipe.model.name, recipe.model.weights) == ("vit_base_patch16_224", "mae")


@pytest.mark.parametrize("data", [*recipes.DATA_SETS, "celltypegraph"])
def test_expected_info_nce_differs_from_soft_target_info_nce_in_the_loss_alone(data):
    ours, papers = (recipes.load(f"{data}/{loss}") for loss in ("expected-info-nce", "soft-target-info-nce"))
    assert ours == dataclasses.replace(papers, loss=dataclasses.replace(papers.loss, name="expected-info-nce"))
    assert ours.loss.noise_count is None  # as many further candidates as classes


@pytest.mark.parametrize("name", recipes.names())
def test_recipe_survives_yaml(name, tmp_path):
    recipe = recipes.load(name)
    file = tmp_path / "copy.yaml"
    file.write_text(recipes.to_yaml(recipe))
    assert recipes.load(str(file)) == recipe


def test_inheritance_overrides_single_fields(tmp_path):
    (tmp_path / "a.yaml").write_text("optimiser: {batch: 64, base_lr: 1.0e-3}\nseed: 5\n")
    (tmp_path / "b.yaml").write_text("inherit: a.yaml\noptimiser: {batch: 32}\n")
    recipe = recipes.load(str(tmp_path / "b.yaml"))
    assert (recipe.optimiser.batch, recipe.optimiser.base_lr, recipe.seed) == (32, 1e-3, 5)


def test_exponents_without_a_dot_are_numbers(tmp_path):
    file = tmp_path / "r.yaml"
    file.write_text("optimiser: {base_lr: 5e-4}\n")  # which YAML 1.1 reads as text
    assert recipes.load(str(file)).optimiser.base_lr == 5e-4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optimiser: {bacth: 3}", "optimiser.batch"),
        ("optimiser: {batch: many}", "optimiser.batch: got 'many', need int"),
        ("loss: {name: nll}\ntargets: {mixup: 0.8}", "nll takes hard labels"),
        ("loss: {name: nll, candidates: queue}", "soft-target-info-nce or expected-info-nce, got nll"),
        ("model: {freeze: backbone}\ntargets: {cutmix: 1.0}", "targets.cutmix needs images"),
        ("targets: {mixup: 0.8}\ncompute: {micro_batch: 3}", "micro_batch must be even"),
        ("targets: {smoothing: 1.5}", r"targets.smoothing: got 1.5, need at least 0 and at most 1"),
        ("optimiser: {batch: 0}", "optimiser.batch: got 0, need at least 2"),
        ("optimiser: {base_lr: 0}", "optimiser.base_lr: got 0, need more than 0"),
        ("data: {share: 0}", "data.share: got 0, need more than 0 and at most 1"),
        ("data: {smallest_crop: 1.5}", "data.smallest_crop: got 1.5, need more than 0 and at most 1"),
        ("schedule: {epochs: 2}", "warmup_epochs 5 exceeds schedule.epochs 2"),
        ("seed: -1", "seed: got -1, need at least 0"),
        ("inherit: nowhere.yaml", "nowhere.yaml, inherited by r.yaml"),
        ("inherit: r.yaml", "inherits itself"),
        ("- 1", "must hold a mapping"),
        ("a: [", "is not YAML"),
        ("", r"r\.yaml is empty"),
    ],
)
def test_mistakes_are_named(text, message, tmp_path):
    file = tmp_path / "r.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        recipes.load(str(file))


def test_a_file_that_is_not_there_is_no_misspelt_recipe(tmp_path):
    with pytest.raises(ValueError, match=r"^no file \S*none\.yaml$"):
        recipes.load(str(tmp_path / "none.yaml"))
    (tmp_path / "bytes.yaml").write_bytes(b"\x8f\xff")
    with pytest.raises(ValueError, match=r"bytes\.yaml is not YAML"):
        recipes.load(str(tmp_path / "bytes.yaml"))


def test_every_field_is_explained():
    def check(kind):
        for field in dataclasses.fields(kind):
            if dataclasses.is_dataclass(field.type):
                check(field.type)
            else:
                assert field.metadata["help"], field.name

    check(Recipe)
    assert from_mapping(Recipe, yaml.safe_load("{}") or {}, source="empty") == Recipe()

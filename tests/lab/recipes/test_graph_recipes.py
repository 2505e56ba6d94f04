import pytest

from softnce.lab import recipes
from softnce.lab.losses import PAPER
from softnce.lab.recipes.recipe import (
    GraphRecipe,
    Targets,
)


@pytest.mark.parametrize("loss", PAPER)
def test_cell_has_the_papers_values(loss):
    """Main text and supplement, "Node classification"."""
    recipe = recipes.load(f"celltypegraph/{loss}")
    assert isinstance(recipe, GraphRecipe)
    hard = loss in ("nll", "info-nce")
    assert (recipe.data.kind, recipe.data.protocol, recipe.data.augment) == ("celltypegraph", "published", "paper")
    assert (recipe.model.name, recipe.model.layers, recipe.head.kind) == ("deeper-gcn", 32, "linear")
    assert (recipe.optimiser.batch, recipe.optimiser.lr) == (8, 1e-3)
    assert recipe.schedule.epochs == (500 if hard else 1000)
    assert recipe.targets == Targets(smoothing=0.0 if hard else 0.1)
    assert (recipe.loss.name, recipe.loss.temperature, recipe.loss.candidates) == (loss, 1.0, "batch")
    # constant learning rate
    assert recipe.schedule.min_lr == recipe.optimiser.lr


@pytest.mark.parametrize(
    ("name", "layers", "edges", "decay"), [("benchmark-16-edges", 16, True, 1e-5), ("benchmark-32", 32, False, 0.0)]
)
def test_the_benchmarks_own_optima(name, layers, edges, decay):
    recipe = recipes.load(f"celltypegraph/{name}")
    assert (recipe.model.layers, recipe.model.edge_features, recipe.optimiser.weight_decay) == (layers, edges, decay)
    assert (recipe.model.hidden, recipe.optimiser.lr, recipe.loss.name) == (128, 1e-3, "nll")
    assert (recipe.targets, recipe.data.augment) == (Targets(), "none")


def test_citation_graphs_are_trained_as_their_authors_did():
    """Kipf and Welling (2017): Adam, 0.01, L2 of 5e-4 on the first layer, 16 units, dropout 0.5, 200 epochs."""
    for name in ("cora", "citeseer"):
        recipe = recipes.load(f"laptop/{name}")
        o, m = recipe.optimiser, recipe.model
        assert (recipe.data.kind, m.name, m.hidden, m.dropout) == (name, "gcn", 16, 0.5)
        assert (o.name, o.lr, o.weight_decay, o.decayed, o.batch) == ("adam", 0.01, 5e-4, "first", 1)
        assert (recipe.schedule.epochs, recipe.schedule.min_lr) == (200, 0.01)
        deeper = recipes.load(f"laptop/{name}-deeper-gcn")
        assert (deeper.data.kind, deeper.model.name, deeper.model.layers) == (name, "deeper-gcn", 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data: {kind: cora}\nmodel: {layer: 3}", "unknown option model.layer; did you mean model.layers"),
        ("data: {kind: tissue}\nmodel: {layers: deep}", "model.layers: got 'deep', need int"),
        ("data: {kind: tissue}\noptimiser: {base_lr: 1.0}", "unknown option optimiser.base_lr"),
        ("data: {kind: core}", "data.kind: got 'core', need one of digits|data.kind: got 'core', need one of .*cora"),
        ("data: {kind: cora}\nloss: {name: nll}\ntargets: {smoothing: 0.1}", "nll takes hard labels"),
        ("data: {kind: tissue, votes: true}\nloss: {name: nll}", "set data.votes to false"),
        ("data: {kind: tissue}\ntargets: {mixup: 0.8}", "are for images, not graphs"),
        ("data: {kind: cora}\nmodel: {name: gcn}\nhead: {kind: mlp}", "gcn has no separate head"),
        ("data: {kind: cora}\nschedule: {min_lr: 0.1}", "schedule.min_lr 0.1 exceeds optimiser.lr 0.001"),
        ("data: {kind: cora}\nmodel: {dropout: 2}", r"model.dropout: got 2, need at least 0 and at most 1"),
        ("data: {kind: cora, fold: -1}", "data.fold: got -1, need at least 0"),
    ],
)
def test_mistakes_are_named(text, message, tmp_path):
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        recipes.load(str(tmp_path / "r.yaml"))

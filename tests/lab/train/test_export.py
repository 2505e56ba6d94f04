import json

import pytest
import torch
from lab.training import small_graphs

from softnce.lab.commands.export import main
from softnce.lab.recipes.recipe import Schedule
from softnce.lab.train.evaluate import load_trained
from softnce.lab.train.export import export
from softnce.lab.train.run import train


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


@pytest.mark.slow
def test_only_images_are_exported(tissue, tmp_path, capsys):
    train(small_graphs(tissue, schedule=Schedule(epochs=1, warmup_epochs=0.0)), tmp_path)
    with pytest.raises(SystemExit) as stop:
        main([str(tmp_path)])
    assert stop.value.code == 2
    assert "only networks of images can be exported" in capsys.readouterr().err


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

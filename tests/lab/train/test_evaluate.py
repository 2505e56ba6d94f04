import numpy as np
import pytest
import torch

from softnce.lab.train.evaluate import evaluate, load_trained


def test_loading_executes_nothing(tmp_path):
    class Trap:
        def __reduce__(self):
            return (exec, ("raise SystemExit('executed')",))

    torch.save({"about": Trap()}, tmp_path / "evil.ckpt")
    with pytest.raises(
        ValueError, match=r"is not a checkpoint of softnce train: it holds builtins\.exec, which could run code"
    ):
        load_trained(tmp_path / "evil.ckpt")


def test_a_file_that_torch_did_not_write_is_called_that(run):
    with pytest.raises(ValueError, match=r"results\.json is not a checkpoint .*: it is truncated, damaged or no"):
        load_trained(run[0] / "out" / "results.json")


def test_of_a_folder_of_several_runs_one_must_be_named(run):
    with pytest.raises(ValueError, match=rf"{run[0]} holds several runs: name one of them, such as {run[0] / 'out'}$"):
        load_trained(run[0])


def test_other_classes_are_refused(run, tmp_path):
    root, _ = run
    for name in ("train", "test"):
        x = np.zeros((3, 8, 8), np.uint8)
        np.savez(tmp_path / f"{name}.npz", x=x, y=np.arange(3))
    with pytest.raises(ValueError, match=r"the 3 classes of the data in .* are not the 2"):
        evaluate(root / "out", data_dir=str(tmp_path), progress=False, workers=0)


def test_a_loaded_network_gives_scores_over_the_temperature(run):
    trained = load_trained(run[0] / "out")
    assert trained.classes == ["dark", "bright"]
    assert not trained.network.training
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(trained.logits(x), trained.network(x) / 2.0)


def test_the_best_epoch_is_measured_again(run):
    root, results = run
    found = evaluate(root / "out", progress=False, workers=0, batch=7)
    for name in ("top1", "ece", "nll"):
        assert found.results[name] == pytest.approx(results["best"][name], abs=1e-6)
    assert int(found.curve.count.sum()) == 30
    assert found.confusions is None


def test_images_are_normalised_as_in_training(run, tmp_path):
    """Weights need not be read again, but their name says which channel statistics they were trained with."""
    content = torch.load(run[0] / "out" / "best.ckpt", weights_only=True)
    content["about"]["recipe"]["model"]["weights"] = "packaged"
    torch.save(content, tmp_path / "best.ckpt")
    assert load_trained(tmp_path / "best.ckpt").recipe.model.weights == "packaged"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda c: c.pop("state_dict"), "is not a checkpoint of softnce train: it has no 'state_dict'"),
        (lambda c: c["about"].pop("classes"), "is not a checkpoint of softnce train: it has no 'classes'"),
        (lambda c: c.update(state_dict=[1]), "is not a checkpoint of softnce train"),
        (lambda c: c["state_dict"].pop("model.head.weight"), r"its weights do not fit its recipe: .*head\.weight"),
    ],
)
def test_incomplete_checkpoints_are_one_line(run, tmp_path, damage, said):
    content = torch.load(run[0] / "out" / "best.ckpt", weights_only=True)
    damage(content)
    torch.save(content, tmp_path / "best.ckpt")
    with pytest.raises(ValueError, match=said) as raised:
        load_trained(tmp_path / "best.ckpt")
    assert "\n" not in str(raised.value)

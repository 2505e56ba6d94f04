import pytest
import torch
from PIL import Image

from softnce.lab.data.transforms import evaluation_transform
from softnce.lab.train.evaluate import load_trained
from softnce.lab.train.predict import predict


def test_probabilities_are_the_softmax_of_the_scores_over_the_temperature(run, tmp_path):
    folder = run[0] / "out"
    image = Image.new("RGB", (33, 41), (130, 120, 125))
    image.save(tmp_path / "dusk.png")
    ((first, p), (second, q)) = predict(folder, [tmp_path / "dusk.png"])[0]
    assert p >= q
    assert p + q == pytest.approx(1)
    trained = load_trained(folder)
    x = evaluation_transform(trained.recipe.data, trained.recipe.model)(image)[None]
    with torch.no_grad():
        expected = (trained.network(x)[0] / 2.0).softmax(0)
    found = {first: p, second: q}
    assert [found[name] for name in trained.classes] == pytest.approx(expected.tolist())


def test_fewer_classes_than_asked_for_and_no_more_than_asked_for(run, tmp_path):
    Image.new("L", (20, 20), 10).save(tmp_path / "night.png")
    files = [tmp_path / "night.png"] * 2
    assert [len(answer) for answer in predict(run[0] / "out", files)] == [2, 2]
    assert [answer[0][0] for answer in predict(run[0] / "out", files, top=1)] == ["dark", "dark"]

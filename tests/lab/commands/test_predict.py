import json

from PIL import Image

from softnce.lab.commands import predict


def test_predict_names_the_right_class(run, tmp_path, capsys):
    root, results = run
    assert results["best"]["top1"] == 1.0
    Image.new("RGB", (33, 41), (230, 220, 225)).save(tmp_path / "day.png")
    Image.new("L", (20, 20), 10).save(tmp_path / "night.png")
    predict.main([str(root / "out"), str(tmp_path / "day.png"), str(tmp_path / "night.png")])
    day, first, _, night, second, _ = capsys.readouterr().out.splitlines()
    assert day.endswith("day.png")
    assert first.endswith("%  bright")
    assert night.endswith("night.png")
    assert second.endswith("%  dark")


def test_predict_as_json(run, tmp_path, capsys):
    Image.new("RGB", (20, 20), (230, 220, 225)).save(tmp_path / "day.png")
    predict.main([str(run[0] / "out"), str(tmp_path / "day.png"), "--json", "true", "--top", "1"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["input"] == str(tmp_path / "day.png")
    (best,) = answer["classes"]
    assert best["name"] == "bright"
    assert 0.5 < best["probability"] <= 1

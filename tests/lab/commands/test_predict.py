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

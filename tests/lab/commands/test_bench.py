"""``softnce bench`` from the command line to its files."""

import json

import pytest

from softnce.lab.bench.run import PRESETS
from softnce.lab.commands.bench import main

TINY = [
    "--sizes", "[[16,10],[16,40]]", "--table_classes", "[50,100]", "--table_rows", "16", "--dim", "8", "--rounds", "2",
    "--seconds", "60", "--threads", "1", "--max_gb", "0.00005", "--sweeps.batch", "8", "--sweeps.fixed_classes", "10",
    "--sweeps.rows", "[4,8]", "--sweeps.candidates", "[4,8]", "--sweeps.classes", "[10,20]",
    "--sweeps.table_classes", "[10,20]",
]  # fmt: skip


@pytest.mark.slow
def test_one_command_one_table(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    main([*TINY, "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "softnce, MixUp pairs" in printed
    text = (tmp_path / "bench.md").read_text()
    assert "| F.cross_entropy, probabilities | 1.00× · " in text
    assert "| published N×M×K formulation | " in text
    assert "needs" in text  # what was too large is said, not left out
    lines = [json.loads(line) for line in (tmp_path / "bench.jsonl").read_text().splitlines()]
    pairs = [line for line in lines if line["config"].get("case") == "softnce, MixUp pairs"]
    assert {line["config"]["part"] for line in pairs} == {"logits", "growth in N", "growth in M", "growth in K"}
    assert all(len(line["result"]["times"]) == 2 and line["result"]["bytes"] > 0 for line in pairs)
    for name in ("scaling", "classes"):
        assert (tmp_path / "figures" / f"bench-{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--size", "[[1,2]]"], "--sizes"),
        (["--sizes", "32"], "--sizes: got '32', need a list of lists of int, written [[a, b], …]\n"),
        (["--rounds", "0"], "rounds: got 0, need at least 1"),
        (["--sizes", "[[0,2]]"], "sizes: got [0, 2], need pairs [N, K] of at least 1"),
        (["--clock", "sun"], "--clock: got 'sun', need one of wall, cpu"),
        (["--device", "tpu"], "device: got 'tpu', need cpu or cuda"),
        (["--device", "cuda", "--clock", "cpu"], "device: cuda works beside the processor"),
        (["--sweeps.candidates", "x"], "--sweeps.candidates"),
    ],
)
def test_bad_options_get_one_line(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "--preset paper" in text
    assert "half the interquartile range" in text


def test_paper_preset_has_the_sizes_of_the_table() -> None:
    sizes = ((128, 100), (4096, 10), (256, 1_000), (1024, 1_000), (1024, 10_000), (1024, 100_000))
    assert PRESETS["paper"].sizes == sizes
    assert PRESETS["paper"].table_classes == (10_000, 100_000, 1_000_000)

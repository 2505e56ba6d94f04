import pytest

from softnce.lab.graphs.cost import CostConfig, main, measure


@pytest.mark.slow
def test_checkpointing_saves_memory():
    config = CostConfig(cells=100, layers=12, hidden=32, repeats=1)
    plain, saving = (measure(config, 2, checkpointing) for checkpointing in (False, True))
    assert (plain.nodes, plain.edges) == (saving.nodes, saving.edges)
    assert plain.nodes == pytest.approx(200, rel=0.2)
    assert saving.allocated_mb < plain.allocated_mb / 2


def test_help_teaches(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "graphs a batch" in capsys.readouterr().out

import pytest

from softnce.lab.bench.graph_cost import CostConfig, _measure, main, measure

SMALL = CostConfig(cells=100, layers=12, hidden=32, repeats=1)


def test_checkpointing_saves_memory():
    plain, saving = (_measure(SMALL, 2, checkpointing) for checkpointing in (False, True))
    assert (plain.nodes, plain.edges) == (saving.nodes, saving.edges)
    assert plain.nodes == pytest.approx(200, rel=0.2)
    assert saving.allocated_mb < plain.allocated_mb / 2


@pytest.mark.slow
def test_a_process_of_its_own():
    cost = measure(SMALL, 1, checkpointing=False)
    assert cost.resident_mb > cost.allocated_mb / 2
    assert cost.processor_seconds > 0


def test_help_teaches(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "graphs a batch" in capsys.readouterr().out

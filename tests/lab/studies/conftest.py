"""A study run from the command line, and its page."""

import re

import pytest

from softnce.lab import studies
from softnce.lab.commands import study as study_command
from softnce.lab.experiment import study as runner
from softnce.lab.report import charts, drawing


@pytest.fixture
def made(tmp_path, capsys, monkeypatch):
    """``made(name, *options)`` runs a study twice, in this process, checks that its page can be shown; the rows."""

    def make(name, *options):
        monkeypatch.setattr(runner, "one_per_core", lambda perform, todo: map(perform, todo))
        study_command.main([name, "--out", str(tmp_path), *options])
        capsys.readouterr()
        study_command.main([name, "--out", str(tmp_path), *options])
        again = re.findall(r": (\d+) runs? to do", capsys.readouterr().out)
        assert again, "the number of runs to do is said"
        assert set(again) == {"0"}, "all are finished the second time"
        study = studies.load(name)
        rows = study.results(tmp_path).rows()
        section = study.page.section(rows)
        assert "nan" not in section.summary
        for figure in (block for block in section.blocks if isinstance(block, charts.Figure)):
            drawing.draw(figure)
        for finding in study.judge(rows).values():
            assert finding.ours
        assert study.page.section(rows[:1]).title, "an interrupted study has a page too"
        study.judge(rows[:1])
        return rows

    return make

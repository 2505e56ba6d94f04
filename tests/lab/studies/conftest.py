"""A study run from the command line, and its page."""

import re

import numpy as np
import pytest

from softnce.lab import studies
from softnce.lab.commands import study as study_command
from softnce.lab.experiment import study as runner
from softnce.lab.report import charts, drawing


@pytest.fixture
def coloured_images(tmp_path, monkeypatch):
    """``coloured_images(n, classes)`` writes n images per split as CIFAR-100 is stored, told apart by their colour."""

    def write(n, classes):
        random, y = np.random.default_rng(0), np.arange(n) % classes
        (tmp_path / "cifar100").mkdir()
        for split in ("train", "test"):
            x = 250 // classes * y[:, None, None, None] + random.integers(0, 20, (n, 32, 32, 3))
            np.savez(tmp_path / "cifar100" / f"{split}.npz", x=np.clip(x, 0, 255).astype(np.uint8), y=y)
        monkeypatch.setenv("SOFTNCE_DATA", str(tmp_path))

    return write


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
        try:
            assert study.page.section(rows[:1]).title, "an interrupted study has a page too"
            study.judge(rows[:1])
        except ValueError as error:  # or says that it has none yet
            if not str(error).endswith(f"; run softnce study {name} again"):
                raise
        return rows

    return make

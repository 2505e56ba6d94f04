import csv
import io
import json

import pytest

from softnce.lab.report import charts
from softnce.lab.report.charts import Diagonal, Figure, Heat, Level, Line, Panel, Points
from softnce.lab.report.page import counted, minus, prose
from softnce.lab.report.style import LOSSES, MARKERS


def everything() -> Figure:
    lines = Panel(
        "lines",
        "x",
        "y",
        [
            Line.of_loss("nll", [1, 2], [0.1, 0.2], [0.05, 0.1], [0.2, 0.3]),
            Line("gap", [1, 2, 3], [0.1, None, 0.3], dash="dot"),
            Points.of_loss("info-nce", [1, 2], [0.3, 0.1], [0.2, 0.05], [0.4, 0.2], hover=["a", "b"]),
            Level("limit", 0.15),
            Diagonal("same", 0.1, 0.3),
        ],
        log_y=True,
        y_range=(0.01, 1),
    )
    heat = Panel("heat", "rate", "size", [Heat(["1", "2"], ["a"], [[0.1, None]], [["x", ""]], 0, 1)])
    dots = Panel("", "", "", [Points("", [0, 1], [1, 0], colour=["#112233", "#445566"])], bare=True)
    return Figure("all", "All of it.", [lines, heat, dots], columns=2)


def test_both_drawings_of_every_mark():
    figure = everything()
    assert charts.png(figure).startswith(b"\x89PNG")
    for panel in figure.panels:
        drawing = json.loads(charts.plotly_json(panel))
        assert drawing["data"]
        assert drawing["layout"]["paper_bgcolor"] == "rgba(0,0,0,0)"


def test_page_can_switch_a_loss_off_everywhere():
    data = json.loads(charts.plotly_json(everything().panels[0]))["data"]
    losses = [trace["meta"]["loss"] for trace in data]
    assert losses == ["nll", "nll", None, "info-nce", None]  # a band is switched with its line


def test_log_axes_take_their_range_in_decades():
    layout = json.loads(charts.plotly_json(everything().panels[0]))["layout"]
    assert layout["yaxis"]["range"] == pytest.approx([-2, 0])


@pytest.mark.parametrize(
    ("heights", "shown"),
    [
        ([0.006, 0.02], {"tickvals": [0.01, 0.02, 0.05]}),
        ([0.001, 0.5], {"dtick": 1}),
        ([1e-9, 1.0], {"dtick": 2}),
    ],
)
def test_log_axes_have_few_ticks_and_at_least_two(heights, shown):
    panel = Panel("", "x", "y", [Line("l", [1, 2], heights), Line("gap", [1], [None])], log_y=True)
    axis = json.loads(charts.plotly_json(panel))["layout"]["yaxis"]
    assert axis.get("dtick") == shown.get("dtick")
    assert set(shown.get("tickvals", ())) <= set(axis.get("tickvals", ()))
    assert len(axis.get("tickvals", ())) == len(axis.get("ticktext", ()))


def test_names_on_heat_axes_stay_names():
    layout = json.loads(charts.plotly_json(everything().panels[1]))["layout"]
    assert layout["xaxis"]["type"] == layout["yaxis"]["type"] == "category"


def test_legend_holds_every_name_once():
    assert [name for name, *_ in charts.legend(everything())] == ["NLL", "gap", "InfoNCE", "limit", "same"]


def test_saved_files(tmp_path):
    paths = charts.save(everything(), tmp_path / "figures", prefix="toy-")
    assert [path.name for path in paths] == ["toy-all.png", "toy-all.svg", "toy-all.pdf", "toy-all.csv"]
    assert sorted((tmp_path / "figures").iterdir()) == sorted(paths), "nothing half-written is left"
    starts = [path.read_bytes()[:5] for path in paths]
    assert starts == [b"\x89PNG\r", b"<?xml", b"%PDF-", b"panel"]


def test_data_of_every_mark():
    rows = list(csv.DictReader(io.StringIO(charts.data(everything()))))
    by_series = {row["series"]: row for row in rows if row["panel"] == "lines"}
    assert by_series["NLL"] == {
        "panel": "lines", "x axis": "x", "y axis": "y", "series": "NLL",
        "x": "2", "y": "0.2", "low": "0.1", "high": "0.3", "value": "", "text": "",
    }  # fmt: skip
    assert by_series["InfoNCE"]["text"] == "b"
    assert by_series["limit"]["y"] == "0.15"
    assert [row["y"] for row in rows if row["series"] == "gap"] == ["0.1", "", "0.3"]
    assert [row["x"] for row in rows if row["series"] == "same"] == ["0.1", "0.3"]
    heat = [(row["x"], row["y"], row["value"], row["text"]) for row in rows if row["panel"] == "heat"]
    assert heat == [("1", "a", "0.1", "x"), ("2", "a", "", "")]
    assert len([row for row in rows if row["panel"] == "3"]) == 2, "a panel without a title has its number"


def test_losses_differ_in_colour_and_marker():
    assert len({look.colour for look in LOSSES.values()}) == len(LOSSES) == 5
    assert len({look.marker for look in LOSSES.values()}) == 5
    assert all(look.marker in MARKERS for look in LOSSES.values())


def test_words():
    assert prose("a\n   b  -3 %") == "a b −3\N{NO-BREAK SPACE}%"
    assert minus("1e-05 and x-2, [-0.5, +1]") == "1e-05 and x-2, [−0.5, +1]"
    assert counted(1, "seed") == "1 seed"
    assert counted(0, "seed") == "0 seeds"

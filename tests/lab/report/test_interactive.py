"""Figures as plotly draws them."""

import json

import pytest

from softnce.lab.report import interactive
from softnce.lab.report.charts import Line, Panel


def test_every_mark_is_drawn_without_a_background(everything):
    for panel in everything.panels:
        chart = json.loads(interactive.plotly_json(panel))
        assert chart["data"]
        assert chart["layout"]["paper_bgcolor"] == "rgba(0,0,0,0)"


def test_page_can_switch_a_loss_off_everywhere(everything):
    data = json.loads(interactive.plotly_json(everything.panels[0]))["data"]
    losses = [trace["meta"]["loss"] for trace in data]
    assert losses == ["nll", "nll", None, "info-nce", None]  # a band is switched with its line


def test_log_axes_take_their_range_in_decades(everything):
    layout = json.loads(interactive.plotly_json(everything.panels[0]))["layout"]
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
    axis = json.loads(interactive.plotly_json(panel))["layout"]["yaxis"]
    assert axis.get("dtick") == shown.get("dtick")
    assert set(shown.get("tickvals", ())) <= set(axis.get("tickvals", ()))
    assert len(axis.get("tickvals", ())) == len(axis.get("ticktext", ()))


def test_names_on_heat_axes_stay_names(everything):
    layout = json.loads(interactive.plotly_json(everything.panels[1]))["layout"]
    assert layout["xaxis"]["type"] == layout["yaxis"]["type"] == "category"


def test_legend_holds_every_name_once(everything):
    assert [name for name, *_ in interactive.legend(everything)] == ["NLL", "gap", "InfoNCE", "limit", "same"]

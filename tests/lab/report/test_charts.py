"""The data behind a figure."""

import csv
import io

from softnce.lab.report import charts


def test_data_of_every_mark(everything):
    rows = list(csv.DictReader(io.StringIO(charts.data(everything))))
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

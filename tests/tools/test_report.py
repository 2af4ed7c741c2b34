"""The page about runs shows their numbers, and what a model wrote as text."""

import html
import json
import re

import pytest
from conftest import write_jsonl

pytest.importorskip("plotly")

from tools import report as report_module

HOSTILE = (
    '<img src=x onerror=alert(1)> <b>bold</b> <a href="http://x">a</a> $\\alpha$ &lt; </table>'
)
FIGURE = re.compile(r'Plotly\.newPlot\(\s*"[^"]*",\s*(\[.*?\]),\s*(\{"template".*?\}),\s*\{"resp')


def test_numbers_and_hostile_text(tmp_path, monkeypatch):
    """Curves and areas hold the metrics; no markup of a model's reaches the browser or plotly."""
    monkeypatch.setattr(report_module, "get_plotlyjs", str)  # which has markup of its own
    metrics = [
        {"step": 0, f"val/pass_at_1/{HOSTILE}": 0.25},
        {"step": 1, "loss/entropy": 0.5, "buckets/k=1": 3, "buckets/retired": 1, "time/plan": 9.0},
    ]
    sample = {"step": 1, "text": "q", "response": HOSTILE, "rewards": {"score": 1.0}}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_jsonl(tmp_path / name / "metrics.jsonl", metrics)
        write_jsonl(tmp_path / name / "samples.jsonl", [sample])
    runs = (tmp_path / "a", tmp_path / "b")
    report_module.report(runs, tmp_path / "out.html")
    page = (tmp_path / "out.html").read_text()
    for markup in ("<img", "<b>", "<a ", "$", "\\u003cimg", "\\u003cb\\u003e", "\\u003ca "):
        assert markup not in page
    assert [html.unescape(x) for x in re.findall("<td>(.*?)</td>", page)].count(HOSTILE) == 2

    charts = {}
    for lines, layout in FIGURE.findall(page):
        title = html.unescape(json.loads(layout)["title"]["text"])
        charts[title] = [
            (line["name"], line["y"], line.get("stackgroup")) for line in json.loads(lines)
        ]
    a, b = map(str, runs)
    assert charts[f"val/pass_at_1/{HOSTILE}"] == [(a, [0.25, None], None), (b, [0.25, None], None)]
    assert charts["loss/entropy"][0] == (a, [None, 0.5], None)
    areas = [("buckets/k=1", [None, 3], "k"), ("buckets/retired", [None, 1], "k")]
    assert charts[f"{a}: how many questions have k right responses"] == areas
    assert len(charts) == 4

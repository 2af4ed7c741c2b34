"""Write one HTML page about one or several runs, to be opened without a network.

    pip install plotly
    python -m tools.report runs/default runs/baseline --output report.html

A run is named by its run_dir, finished or not. The page has curves from its metrics.jsonl, the
buckets over the steps, and from its samples.jsonl what the model wrote last. That may be hostile,
and plotly reads markup in every text (<b>, <a href=...>, $latex$): all is escaped.
"""

import html
from collections import defaultdict
from pathlib import Path

import plotly.graph_objects as go
import tyro
from plotly.offline import get_plotlyjs
from tyro.conf import Positional

from runtime.tables import read_jsonl

CURVES = ("val/pass_at_1/", "reward/pass_at_1", "loss/entropy", "fresh/silent", "replay/silent")
BUCKETS = ("buckets/k=", "buckets/retired")
HEAD = """<!doctype html><meta charset=utf-8><title>Runs</title>
<style>td { white-space: pre-wrap; vertical-align: top; border: 1px solid silver }</style>"""


def as_text(value) -> str:
    """A value as HTML that shows it letter by letter, in a table and in plotly.

    Plotly does not know &quot;, and quotes need no escape outside of tags.
    """
    return html.escape(str(value), quote=False).replace("$", "&#36;")


def table(samples: list[dict]) -> str:
    """The HTML of a table of samples, under the names that the first one has."""
    names = samples[:1]
    values = [sample.values() for sample in samples]
    lines = []
    for cells in names + values:
        lines.append("<tr>")
        lines += [f"<td>{as_text(cell)}</td>" for cell in cells]
    return f"<table>{''.join(lines)}</table>"


def report(runs: Positional[tuple[Path, ...]], output: Path = Path("report.html")) -> None:
    """Write one HTML page about runs: curves, buckets, and what the model wrote.

    Args:
        runs: the run_dir of each
        output: the page to write
    """
    charts = defaultdict(go.Figure)
    tables = []
    for run in runs:
        rows = read_jsonl(run / "metrics.jsonl")
        steps = [row["step"] for row in rows]
        for metric in dict.fromkeys(name for row in rows for name in row):
            values = [row.get(metric) for row in rows]
            line = go.Scatter(x=steps, y=values, connectgaps=True)
            if metric.startswith(CURVES):
                line.name = as_text(run)
                charts[metric].add_trace(line)
            elif metric.startswith(BUCKETS):
                line.update(name=metric, stackgroup="k")
                charts[f"{run}: how many questions have k right responses"].add_trace(line)
        samples = read_jsonl(run / "samples.jsonl")
        tables += [f"<h2>{as_text(run)}</h2>", table(samples[-200:])]  # the newest
    parts = [HEAD, f"<script>{get_plotlyjs()}</script>"]
    for title, chart in charts.items():
        chart.update_layout(title=as_text(title))
        parts.append(chart.to_html(full_html=False, include_plotlyjs=False))
    output.write_text("\n".join(parts + tables), encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(report)

"""From records to the page: numbers of every row, the verdicts, a picture each, the tables of README.md.

No verdict of a table is written by hand: they stand between two markers and are made again from the records.
"""

import dataclasses
from pathlib import Path

import matplotlib
import numpy as np

from studies import easy, looked, records, taught
from studies.jobs import ROOT, Job, jobs_of
from studies.measures import (
    ESCAPED,
    end,
    half_width,
    holm_levels,
    p_value,
    restated,
    verdict,
    within_question_auc,
)
from studies.protocol import OUT, ROWS, SETTINGS, Row

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

RESULTS = ROOT / "studies" / "results"
PAGE = ROOT / "studies" / "README.md"
CURVES = {"escapes": "loss/entropy", "restated": "snowball/share"}  # row.kind -> what is drawn of training
LEFT = {"auc": "AUC − 0.5", "restated": "share of right answers"}  # row.kind -> what the pairs are
MARKS = "<!-- {}: written by studies/page.py -->", "<!-- end of {} -->"


def numbers(row: Row, quick: bool = False, counted: str = "ends") -> dict[int, tuple[float, ...]]:
    """{unit: (the arm's number, the other's)} of the units whose runs are all there; one number for `auc`;
    of valid chains where `counted` is "valid".

    ValueError where two arms of a unit began from different base models, answered otherwise before the first
    step (another engine, or other random numbers), or were asked other questions.
    """
    found = {}
    for unit in range(row.units):
        jobs = [job for job in jobs_of(row, quick) if job.unit == unit]
        if not jobs or not all(job.done for job in jobs):
            continue
        results = [job.record() for job in jobs]
        for name, what in (("base", "began from different base models"), ("questions", "were asked others")):
            if len({record["result"].get(name) for record in results}) > 1:
                raise ValueError(f"row {row.number}, unit {unit}: the arms {what}")
        answered = [said for record in results if (said := untrained(record))]
        if any(said.get(n, value) != value for said in answered for n, value in answered[0].items()):
            raise ValueError(f"row {row.number}, unit {unit}: the arms answered otherwise before training")
        found[unit] = tuple(number(row, record, counted) for record in results)
    return found


def untrained(record: dict) -> dict[str | int, float]:
    """A run's validation before its first step, and by its number of tokens that step's drift from the
    engine, which is another on another kind of processor."""
    rows = record.get("rows", [])
    said = {name: value for name, value in (rows or [{}])[0].items() if name.startswith("val/pass_at_1/")}
    # a dynamic run's drift is of the part it trains on
    first = [row for row in rows[1:2] if "engine/drift" in row and "dynamic/trained" not in row]
    return said | {row["rollout/tokens"]: row["engine/drift"] for row in first}


def number(row: Row, record: dict, counted: str = "ends") -> float:
    """What a row reads from one record; of valid chains where `counted` is "valid"."""
    if row.kind == "auc":
        return within_question_auc(record["result"]["columns"])[0]
    if row.kind == "restated":
        return restated(record)
    return end(record, SETTINGS[row.setting].held_out, row.where, counted)


def differences(pairs: dict[int, tuple[float, ...]]) -> list[float]:
    """The row's number, unit by unit, from its `numbers`."""
    return [values[0] - (values[1] if len(values) > 1 else 0) for values in pairs.values()]


def decide(quick: bool = False) -> list[dict]:
    """Every row that has a unit: values, mean, with two units half width and level of its interval; of a
    primary row with all its units the verdict."""
    pairs = {row.number: numbers(row, quick) for row in ROWS}
    all_values = {number: differences(found) for number, found in pairs.items()}
    ready = [row for row in ROWS if all_values[row.number]]
    primary = [r for r in ready if r.family == "primary" and len(all_values[r.number]) == r.units]
    # Holm is over the rows that were planned: one that is not whole yet counts as undecided
    planned = sum(row.family == "primary" for row in ROWS)
    tested = [all_values[row.number] for row in primary] + [[0.0, 0.0]] * (planned - len(primary))
    levels = dict(zip([row.number for row in primary], holm_levels(tested)))
    results = []
    for row in ready:
        values, level = all_values[row.number], levels.get(row.number, 0.95)
        about = {"row": row.number, "family": row.family, "question": row.question, "values": values,
                 "ends": np.mean([*pairs[row.number].values()], axis=0).tolist(),
                 "mean": float(np.mean(values)), "level": level,
                 "half": half_width(values, level) if len(values) > 1 else None}
        if row.kind == "escapes":
            about["escapes"] = _escapes(pairs[row.number])
            about["escapes_valid"] = _escapes(numbers(row, quick, "valid"))
        if row in primary:
            about |= {"p": p_value(values), "verdict": verdict(values, level)}
        records = [job.record() for job in jobs_of(row, quick) if job.unit in pairs[row.number]]
        results.append(about | {"minutes": sum(r["seconds"] for r in records) / 60,
                                "ended": sum("ended" in r["result"] for r in records)})
    return results


def _escapes(pairs: dict[int, tuple[float, ...]]) -> list[int]:
    """Pairs of which both escape, only the arm, only the other, neither."""
    ends = [(a > ESCAPED, b > ESCAPED) for a, b in pairs.values()]
    return [ends.count(kind) for kind in ((True, True), (True, False), (False, True), (False, False))]


# ---- tables -----------------------------------------------------------------------------------------------


def table(results: list[dict], families: tuple[str, ...]) -> str:
    """Markdown of the rows of some families; a row that has no unit yet says so."""
    found = {result["row"]: result for result in results}
    lines = ["| # | question | both, points | paired difference | units | answer | core-minutes | command |",
             "|---|---|---|---|---|---|---|---|"]
    for row in (row for row in ROWS if row.family in families):
        r, command = found.get(row.number), f"`python -m studies {row.number}`"
        if r is None:
            cells = f"– | not run yet | 0 of {row.units} | – | – | {command}"
            lines.append(f"| {row.number} | {row.question} | {cells} |")
            continue
        level = f" ({100 * r['level']:g}%)"
        if len(r["values"]) < row.units or row.family == "exploratory":  # not whole, or of two
            number = ", ".join(f"{100 * value:+.1f}" for value in r["values"])
        else:
            number = f"{100 * r['mean']:+.1f} ± {100 * r['half']:.1f}{level}"
        if row.kind == "escapes":
            said = "both {}, only ExGRPO {}, only on-policy {}, neither {}"
            number = f"{said.format(*r['escapes'])}; by valid chains: {said.format(*r['escapes_valid'])}"
        ends = ", ".join(f"{100 * end:.1f}" for end in r["ends"])
        answer = r.get("verdict", "–")
        units = f"{len(r['values'])} of {row.units}" + f", ended early: {r['ended']}" * bool(r["ended"])
        lines.append(f"| {row.number} | [{row.question}](results/row{row.number}.png) | {ends} | {number} "
                     f"| {units} | {answer} | {r['minutes']:.0f} | {command} |")
    return "\n".join(lines) + "\n"


def by_unit() -> str:
    """Markdown: the units of every row that is not exploratory, with interval and p of the row by itself and
    the means of both halves of its units; then rows of `hard` on the trained kinds, found by looking."""
    rows = [row for row in ROWS if row.family != "exploratory"]
    # row 2 on the trained kinds is row 16
    rows += [dataclasses.replace(row, where="trained", question=f"{row.question.removesuffix(OUT)}, trained")
             for row in ROWS if row.setting == "hard" and row.where == "held out" and row.family != "primary"]
    lines = []
    for row in rows:
        values = 100 * np.array(differences(numbers(row)))
        interval, p, halves = "–", "–", "–"
        if len(values) == row.units and row.family != "exploratory":
            interval, p = f"{values.mean():+.1f} ± {half_width(values):.1f}", f"{p_value(values):.2g}"
            halves = ", ".join(f"{half.mean():+.1f}" for half in np.array_split(values, 2))
        if len(values):
            units = ", ".join(f"{v:+.1f}" for v in values)
            lines.append([f"{row.number}, {row.question}", units, interval, p, halves])
    return taught.markdown(["row", "by unit", "mean ± 95%", "p", "means of the first and second half"], lines)


def write(page: Path = PAGE, results: Path = RESULTS) -> list[dict]:
    """Make the tables of the page and the pictures again; returns the rows of `decide`."""
    decided, text = decide(), page.read_text()
    for name, content in (("decided rows", table(decided, ("primary", "secondary"))),
                          ("exploratory rows", table(decided, ("exploratory",))),
                          ("easy rows", easy.table()), ("what runs taught", taught.runs()),
                          ("buckets", taught.buckets()), ("judges", looked.judged()),
                          ("the bare rule", looked.rule()), ("told apart", looked.told_apart()),
                          ("kinds", looked.kinds()), ("escapes", looked.escapes()),
                          ("by unit", by_unit())):
        begin, finish = (mark.format(name) for mark in MARKS)
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(finish)
        if not found or not closed:
            raise ValueError(f"{page} has lost its markers {begin!r} and {finish!r}")
        text = f"{before}{begin}\n{content}{finish}{after}"
    records.replace(page, text.encode())
    results.mkdir(parents=True, exist_ok=True)
    for row in ROWS:
        if any(result["row"] == row.number for result in decided):
            figure = draw(row)
            figure.savefig(results / f"row{row.number}.png", dpi=80)
            plt.close(figure)
    return decided


# ---- pictures ---------------------------------------------------------------------------------------------


def draw(row: Row):
    """The pairs of a row, unit by unit, and a curve of each of its runs: validation on what the row is about,
    or what `row.kind` has in CURVES; for `auc` the units alone."""
    pairs = numbers(row)
    width = 1 if row.kind == "auc" else 2
    figure, axes = plt.subplots(1, width, figsize=(4.5 * width, 3.2), constrained_layout=True, squeeze=False)
    left, right = axes[0, 0], axes[0, -1]
    for values in pairs.values():
        left.plot(range(len(values)), values[::-1], "o-", color="#4477aa", alpha=0.7)
    left.set(title=f"row {row.number}, {len(pairs)} units", xticks=range(len(row.arms)),
             xticklabels=row.arms[::-1], xlim=(-0.4, len(row.arms) - 0.6))
    left.set_ylabel(LEFT.get(row.kind, f"Pass@1 at the end, {row.where}"))
    if row.kind == "auc":
        return figure
    for arm in row.arms:
        for unit in pairs:
            steps, values = curve(row, Job(row.setting, arm, unit).record())
            colour = "#4477aa" if arm == row.arm else "#ee6677"
            label = arm if unit == min(pairs) else None
            right.plot(steps, values, lw=0.9, color=colour, alpha=0.7, label=label)
    metric = row.kind in CURVES and f"{CURVES[row.kind]}, running mean"
    right.set(title=metric or f"validation, {row.where}, one sample", xlabel="step")
    right.legend(fontsize=7)
    return figure


def curve(row: Row, record: dict) -> tuple[list[int], np.ndarray]:
    """Steps and heights: Pass@1 of validation over the questions of all sources that the row is about; of a
    metric in CURVES the running mean."""
    if metric := CURVES.get(row.kind):
        rows = [r for r in record["rows"] if metric in r]
        window = max(1, len(rows) // 12)
        heights = np.convolve([r[metric] for r in rows], np.full(window, 1 / window), "valid")
        return [r["step"] for r in rows][window - 1 :], heights
    held_out = SETTINGS[row.setting].held_out
    asked = {source: len(counts) for source, counts in next(iter(record["result"]["ends"].values())).items()
             if (source in held_out) == (row.where == "held out")}
    rows = [r for r in record["rows"] if all(f"val/pass_at_1/{source}" in r for source in asked)]
    heights = [np.average([r[f"val/pass_at_1/{source}"] for source in asked], weights=[*asked.values()])
               for r in rows]
    return [r["step"] for r in rows], np.array(heights)

"""Whose answers were right, and how: the tables behind what README.md says was found by looking."""

import json
import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np

from studies.measures import ESCAPED, end, half_width, within_question_auc
from studies.protocol import SETTINGS
from studies.taught import done, markdown
from worlds.arithmetic import PRESETS, draw_sets, solve

PLACES = {"trained": ("test", "arithmetic"), "out of distribution": ("ood", "arithmetic-ood")}
# {source: [[text, answer], ...]} of the test questions of `real`, in the order of `make smollm-ready`'s files
ASKED = Path(__file__).parent / "results" / "real-questions.json"


def pairs(setting: str) -> list[tuple[int, dict, dict]]:
    """(unit, on-policy's record, ExGRPO's) of the units that have both."""
    before, after = done(setting, "on_policy"), done(setting, "exgrpo")
    return [(unit, before[unit], after[unit]) for unit in before if unit in after]


def first_page() -> str:
    """Markdown, README.md's first table: the ends on `easy`, means over run seeds (lowest–highest), and one
    response to each question before training."""
    found, held_out, lines = pairs("easy"), SETTINGS["easy"].held_out, []
    for said, metric, where, counted in (
            ("Pass@1 on test questions", "val/pass_at_1/arithmetic", "trained", "ends"),
            ("valid chains (every step right)", "val/valid/arithmetic", "trained", "valid"),
            ("Pass@1, out of distribution", "val/pass_at_1/arithmetic-ood", "held out", "ends")):
        on_policy, exgrpo = ([end(record, held_out, where, counted) for record in records]
                             for records in list(zip(*found))[1:])
        cells = [f"{np.mean(x):.3f} ({min(x):.3f}–{max(x):.3f})" for x in (exgrpo, on_policy)]
        lines.append([said, f"{found[0][1]['rows'][0][metric]:.3f}", *cells])
    head = [f"120 steps, mean of {len(found)} run seeds (lowest–highest)", "base", "ExGRPO (`make train`)",
            "on-policy (`--rho 0`)"]
    return markdown(head, lines)


def escapes() -> str:
    """Markdown: the ends that row 7 counts, base by base, in percent, those of valid chains alone, the first
    step whose fresh questions were answered as well, and the validation after a third of the run."""
    lines = []
    for unit, *records in pairs("weak"):
        cells = []
        for record in records:
            ends = [100 * end(record, SETTINGS["weak"].held_out, counted=name) for name in ("ends", "valid")]
            rates = {row["step"]: row.get("reward/pass_at_1_fresh", 0) for row in record["rows"]}
            first = next((step for step, rate in rates.items() if rate > ESCAPED), "–")
            _, third, *_ = [row for row in record["rows"] if "val/pass_at_1/arithmetic" in row]
            early = [f"{100 * third[f'val/pass_at_1/{source}']:.1f}" for _, source in PLACES.values()]
            cells.append(" / ".join([*(f"{x:.1f}" for x in ends), str(first), *early]))
        lines.append([f"weak, base {unit}", *cells])
    head = ("end, trained kinds: right / by a valid chain / first step with more than 10% right / after a "
            "third of the run right, trained / out of distribution")
    return markdown([head, "on-policy", "ExGRPO"], lines)


def judged() -> str:
    """Markdown, unit by unit of the built-in worlds, before training and after its last step: of one response
    to each validation question the right ones / those whose every step is right / bare answers."""
    names, lines = ["pass_at_1", "valid", "shortcut"], []
    for setting in ("hard", "weak"):
        for unit, *records in pairs(setting):
            scored = [[row for row in r["rows"] if "val/valid/arithmetic" in row] for r in records]
            rows = scored[0][0], scored[0][-1], scored[1][-1]  # the base, then what each arm made of it
            cells = [" / ".join(f"{row[f'val/{name}/{source}']:.2f}" for name in names)
                     for _, source in PLACES.values() for row in rows]
            lines.append([f"{setting}, base {unit}", *cells])
    head = [f"{where}: {who}" for where, who in product(PLACES, ("base", "on-policy", "ExGRPO"))]
    return markdown(["right / valid / bare, one response a question", *head], lines)


def rule() -> str:
    """Markdown: Pass@1 at the end of `hard`, of the questions whose last result but one is 0 / of the others.

    There the last operation alone gives the answer: who takes that result for 0 is right without a step.
    """
    lines, differences = [], []
    for unit, *records in pairs("hard"):
        sets, cells, parts, zeros = draw_sets(replace(PRESETS["hard"], seed=unit)), [], [], []
        for name, source in PLACES.values():
            zero = np.array([solve(question)[-2].endswith("0") for question in sets[name]])
            results = [record["result"] for record in records]
            right = [np.mean([s[source] for s in r["ends"].values()], axis=0) / r["samples"] for r in results]
            cells += [f"{share[zero].mean():.2f} / {share[~zero].mean():.2f}" for share in right]
            d = right[1] - right[0]
            parts += [d.mean(), (d * zero).mean(), d[~zero].mean()]
            zeros.append(zero.mean())
        lines.append([f"base {unit} ({zeros[0]:.0%}, {zeros[1]:.0%} of them with a 0)", *cells])
        differences.append(parts)
    if len(lines) > 1:
        means, halves = np.mean(differences, axis=0), [half_width(column) for column in zip(*differences)]
        said = [f"{100 * m:+.1f} ± {100 * h:.1f}" for m, h in zip(means, halves)]
        for i, what in enumerate(("all", "the part of questions with a 0", "the others by themselves")):
            lines.append([f"ExGRPO − on-policy, points: {what}", "", said[i], "", said[3 + i]])
    head = [f"{where}: {who}" for where, who in product(PLACES, ("on-policy", "ExGRPO"))]
    return markdown(["Pass@1 where the last result but one is 0 / is not", *head], lines)


def told_apart() -> str:
    """Markdown: row 8 base by base, of flawed answers that are bare and of others, in points (pairs, of how
    many questions)."""
    lines, found = [], []
    for unit, record in done("hard", "base").items():
        c, parts = {name: np.array(values) for name, values in record["result"]["columns"].items()}, []
        for bare in (1, 0):
            kept = (c["valid"] == 1) | (c["shortcut"] == bare)  # what is bare is never valid
            columns = {name: values[kept] for name, values in c.items()}
            right = columns["reward"] > 0.5
            flawed, valid = (columns["question"][right & (columns["valid"] == v)] for v in (0, 1))
            parts.append((*within_question_auc(columns), len(np.intersect1d(flawed, valid))))
        lines.append([f"base {unit}", *(f"{100 * auc:+.1f} ({n}, {questions})" if n else "–"
                                        for auc, n, questions in parts)])
        found += [[auc for auc, *_ in parts]] * all(n for _, n, _ in parts)
    if len(found) > 1:
        lines.append(["mean ± 95%", *(f"{100 * np.mean(column):+.1f} ± {100 * half_width(column):.1f}"
                                      for column in zip(*found))])
    return markdown(["valid against flawed right answers, points (pairs, questions)", "bare", "with steps"],
                    lines)


def kind(source: str, text: str, answer: str) -> str:
    """Which part of the test of `real` a question belongs to, as PROTOCOL.md splits it."""
    if source != "gcd":
        return f"{source}: a {re.search(r'[0-9] ([-+*]) ', text)[1]} b"
    if answer in ("1", "2"):
        return f"gcd: it is {answer}"
    even = all(int(number) % 2 == 0 for number in re.findall("[0-9]+", text))
    return "gcd: more than 2, of two even numbers" if even else "gcd: others"


def kinds() -> str:
    """Markdown: Pass@1 at the end of `real`, kind by kind, in percent, means over the pairs."""
    asked = json.loads(ASKED.read_text())
    names = np.array([kind(source, *question) for source in asked for question in asked[source]])
    found, lines = [], []  # found: (units, arms, questions)
    for _, *records in pairs("real"):
        results = [record["result"] for record in records]
        found.append([np.mean([np.concatenate([counts[source] for source in asked])
                               for counts in r["ends"].values()], axis=0) / r["samples"] for r in results])
    for name in dict.fromkeys(names) if found else ():
        by_unit = 100 * np.array(found)[:, :, names == name].mean(-1)
        gain = by_unit[:, 1] - by_unit[:, 0]
        said = f" ± {half_width(gain):.1f}" if len(gain) == SETTINGS["real"].units else ""
        lines.append([f"{name} ({(names == name).sum()})", *(f"{x:.0f}" for x in by_unit.mean(0)),
                      f"{gain.mean():+.1f}{said}"])
    head = [f"kind (questions), mean over units: {len(found)}", "on-policy", "ExGRPO", "difference"]
    return markdown(head, lines)

"""The table of docs/real-model.md, the forms of the right answers, and metrics, from what its runs left.

    python -m studies.real_model              print it, from results/smollm2.json.gz
    python -m studies.real_model GATE RUN ... keep what the gate's run and those of seeds 0, 1, ... have left

A run is a directory of `make smollm`: its `base` and `trained` evaluations, every response, and its metrics.
"""

import gzip
import json
import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np

from studies.measures import half_width

KEPT = Path(__file__).parent / "results" / "smollm2.json.gz"
KINDS = ("sum", "product", "gcd", "calculate")


def collect(runs: list[Path]) -> dict:
    """The evaluation of the base, which all runs share, those after training, and the metrics."""

    def responses(directory: Path) -> list[dict]:
        lines = (directory / "responses.jsonl").read_text().splitlines()
        fields = ("source", "text", "gold", "sample", "success", "response")
        records = [{name: record[name] for name in fields} for record in map(json.loads, lines)]
        return sorted(records, key=lambda r: (KINDS.index(r["source"]), r["text"], r["sample"]))

    bases = [responses(run / "base") for run in runs]
    if any(base != bases[0] for base in bases):
        raise ValueError("the runs began from different models")
    metrics = [list(map(json.loads, (run / "metrics.jsonl").read_text().splitlines())) for run in runs]
    return {"base": bases[0], "trained": [responses(run / "trained") for run in runs], "metrics": metrics}


def shares(records: list[dict], kind: str) -> np.ndarray:
    """Of every question of a kind the share of right responses, in the order of the questions."""
    right = {}
    for r in (r for r in records if r["source"] == kind):
        right.setdefault(r["text"], []).append(r["success"])
    return np.array([np.mean(right[text]) for text in sorted(right)])


def table(kept: dict) -> str:
    """Pass@1 in percent, base and runs, and the mean difference with its 95% t interval over the runs; the
    first run, the gate's, apart."""
    lines = ["| Pass@1 | base | after 40 steps, by seed | mean difference, 95% over seeds |",
             "|---|---|---|---|"]
    for kind in dict.fromkeys(r["source"] for r in kept["base"]):
        base, trained = shares(kept["base"], kind), [shares(run, kind) for run in kept["trained"][1:]]
        gained = [100 * float(np.mean(after - base)) for after in trained]
        seeds = ", ".join(f"{100 * after.mean():.1f}" for after in trained)
        mean, half = np.mean(gained), half_width(gained)
        interval = f"{mean:+.1f} [{mean - half:+.1f}, {mean + half:+.1f}]"
        lines.append(f"| {kind} | {100 * base.mean():.1f} | {seeds} | {interval} |")
    return "\n".join(lines)


def gains(kept: dict, run: int) -> str:
    """Points that a run gained, kind by kind, with 95% t intervals over the questions."""
    said = []
    for kind in KINDS:
        gain = 100 * (shares(kept["trained"][run], kind) - shares(kept["base"], kind))
        mean, half = gain.mean(), half_width(gain)
        said.append(f"{kind} {mean:+.1f} [{mean - half:.1f}, {mean + half:.1f}]")
    return ", ".join(said)


def forms(records: list[dict]) -> Counter:
    """How right answers look, their numbers as N."""
    return Counter(re.sub(r"\d+", "N", r["response"].strip()) for r in records if r["success"])


def by_operator(records: list[dict], kind: str) -> str:
    """Right responses of a kind, by the operator in the question."""
    found = {}
    for r in (r for r in records if r["source"] == kind):
        operator = re.search(r"\d ([-+*/]) \d", r["text"])[1]
        found.setdefault(operator, []).append(r["success"])
    return ", ".join(f"{o} {100 * np.mean(s):.0f}% of {len(s)}" for o, s in sorted(found.items()))


def agreed(records: list[dict]) -> float:
    """The share of questions to which all responses end in the same number."""
    said = {}
    for r in records:
        said.setdefault((r["source"], r["text"]), set()).add(tuple(re.findall(r"-?\d+", r["response"])[-1:]))
    return float(np.mean([len(numbers) == 1 for numbers in said.values()]))


def gcd(records: list[dict]) -> str:
    """What is said to the gcd of two even numbers, and what always saying 2 would bring."""
    said, twos = Counter(), []
    for r in (r for r in records if r["source"] == "gcd"):
        twos.append(r["gold"] == "2")
        if all(int(number) % 2 == 0 for number in re.findall(r"\d+", r["text"])):
            said[(re.findall(r"\d+", r["response"]) or ["nothing"])[-1]] += 1
    return f"two even numbers: {dict(said.most_common())}; 2 is the gcd of {100 * np.mean(twos):.0f}%"


def metrics(rows: list[dict]) -> str:
    """A run in one line."""
    steps, replayed = [r for r in rows if r["step"]], [r for r in rows if r.get("replay/questions")]

    def column(name: str, of: list[dict] = steps) -> list[float]:
        return [r[name] for r in of]

    seconds, entropy = column("time/step"), column("loss/entropy")
    none, equal = column("reward/none_right"), column("reward/all_equal_groups")
    text = (f"groups with no success {100 * np.mean(none[:3]):.0f}% in the first 3 steps, "
            f"{100 * np.mean(none[-3:]):.0f}% in the last 3, all right then "
            f"{100 * (np.mean(equal[-3:]) - np.mean(none[-3:])):.0f}%; "
            f"entropy {entropy[0]:.2f} -> {entropy[-1]:.2f}; drift up to {max(column('engine/drift')):.1e}; "
            f"{steps[-1]['buckets/retired']} retired; {sum(seconds) / 60:.0f} min of steps, "
            f"{np.median(seconds):.0f} s the median, {min(seconds):.0f} to {max(seconds):.0f}")
    if not replayed:
        return f"{text}; nothing was replayed"
    low, high = (f(column("replay/gradient_share", replayed)) for f in (min, max))
    ratios, ess = column("replay/ratio_max", replayed), column("replay/ess", replayed)
    return (f"{text}; replays from step {replayed[0]['step']}, gradient share {100 * low:.1f} to "
            f"{100 * high:.1f}%, largest w* {min(ratios):.1f} to {max(ratios):.1f}, "
            f"ESS {min(ess):.2f} to {max(ess):.2f}")


def main(runs: list[str]) -> None:
    """Keep what the runs have left, or print what was kept."""
    if runs:
        kept = collect([Path(run) for run in runs])
        KEPT.write_bytes(gzip.compress(json.dumps(kept).encode(), mtime=0))
    kept = json.loads(gzip.decompress(KEPT.read_bytes()))
    print(table(kept))
    for run, (records, rows) in enumerate(zip(kept["trained"], kept["metrics"])):
        found, name = forms(records), f"seed {run - 1}" if run else "gate, seed 100, on-policy"
        print(f"\n{name}: {found.total()} right answers in {len(found)} forms")
        print("  " + ", ".join(f"{kind} {100 * shares(records, kind).mean():.1f}" for kind in KINDS))
        print(f"  gained {gains(kept, run)}")
        print("\n".join(f"  {n:4} {form!r:.100}" for form, n in found.most_common()))
        print(f"  sum: {by_operator(records, 'sum')}; calculate: {by_operator(records, 'calculate')}")
        print(f"  gcd: {gcd(records)}; the same number four times to {100 * agreed(records):.0f}%")
        print(f"  {metrics(rows)}")


if __name__ == "__main__":
    main(sys.argv[1:])

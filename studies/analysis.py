"""What the records say: the tables of studies/README.md, in Markdown.

All scores are points of test Pass@1: of questions of trained lengths, unless said otherwise.
"""

import numpy as np
from scipy import stats

from sampler import bucket_weights
from studies.arms import ALL, ARMS, BASES, DIAL, ROWS, SETTINGS, SPOKES, STEPS, Row
from studies.runs import K
from tools.compare import table

LEVEL = 0.05  # of the four decided rows together
TRAINED = "pass_at_1/arithmetic"
LONGER = "pass_at_1/arithmetic-ood"
VALID = "valid/arithmetic"
DOSES = {  # head -> cell
    "pull of o*": "{pull:.1%}",
    "w*": "{ratio:.2f}",
    "o* below all, nats": "{choice:.3f}",
    "push (none right)": "{push:.2f} ({push_k1:.2f})",
    "came back (different)": "{back:.0f} ({different:.0f})",
    "of k = 1 to 7, %": "{drawn}",
    "visits": "{visits:.1f}",
    "tokens / R0": "{tokens:.2f}",
    "entropy": "{entropy:.2f}",
    "active groups": "{active:.0%}",
}


def report(records: dict) -> str:
    """All tables; ValueError while a run has no record, or a block is mixed."""
    try:
        for base in BASES:
            block = [records["default", arm, base] for arm in ARMS]
            if len({(run["weights"], run["processor"]) for run in block}) > 1:
                raise ValueError(f"base {base} was built twice, or run on two kinds of processor")
        tables = [part(records) for part in (rows, arms, doses, spokes, dial)]
    except KeyError as missing:
        raise ValueError(
            f"no record of {missing}, and nothing is read before all runs have one: "
            "`python -m studies --help` says what makes them"
        ) from None
    return "\n\n".join([*tables, draws()])


def curve(record: dict, name: str, first: int = 20) -> float:
    """The mean of a curve over every 20th step from `first` on.

    A run that ended early, as all its questions were retired, keeps its last value.
    """
    steps = np.arange(first, STEPS + 1, 20)
    scores = np.interp(steps, record["curve"]["step"], record["curve"][name])
    return 100 * scores.mean()


def differences(records: dict, row: Row, bases=BASES, setting="default") -> np.ndarray:
    """The outcome of the row's arm less that of the other, one a base.

    P and PH are R0 until replay starts: their rows leave the first two points out.
    """
    first = 60 if row.arm in ("P", "PH") else 20
    found = []
    for base in bases:
        arm, other = (records[setting, name, base] for name in (row.arm, row.other))
        found.append(curve(arm, TRAINED, first) - curve(other, TRAINED, first))
    return np.array(found)


def interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Of the mean, by Student's t over bases."""
    return tuple(stats.ttest_1samp(values, 0).confidence_interval(level))


def sign_flip(values: np.ndarray) -> float:
    """The exact p: of all ways to flip signs, the share with as large a mean, either way."""
    every = stats.permutation_test(
        (values, np.zeros_like(values)),
        lambda x, y: np.mean(x - y),
        permutation_type="samples",
        n_resamples=np.inf,
    )
    return every.pvalue


def holm(ps: list[float]) -> list[bool]:
    """Which of these hypotheses are rejected: the smallest p first, until one is too large."""
    rejected = [False] * len(ps)
    for done, i in enumerate(np.argsort(ps)):
        if ps[i] > LEVEL / (len(ps) - done):
            break
        rejected[i] = True
    return rejected


def shown(values: np.ndarray) -> str:
    """Mean and 95% interval."""
    low, high = interval(values)
    return f"{values.mean():+.1f} [{low:+.1f}, {high:+.1f}]"


def rows(records: dict) -> str:
    """Every comparison; what was decided of the four."""
    found = {row: differences(records, row) for row in ROWS}
    ps = {row: stats.ttest_1samp(values, 0).pvalue for row, values in found.items()}
    decided = [row for row in ROWS if row.decided]
    rejected = dict(zip(decided, holm([ps[row] for row in decided])))
    lines = []
    for row, values in found.items():
        verdict = "undecided" if row.decided else "exploratory"
        if rejected.get(row):
            verdict = "pays" if values.mean() > 0 else "costs"
        low, high = interval(values, 0.9)
        if -2 < low and high < 2:
            verdict += ", less than 2 points"
        cells = [f"{ps[row]:.2g}", f"{sign_flip(values):.2g}", verdict]
        lines.append([row.phrase, f"{row.arm} − {row.other}", shown(values), *cells])
    return table(["", "", "points", "p, t test", "p, sign flips", ""], lines)


def arms(records: dict) -> str:
    """Of each arm the means over bases: curve, its end, out of distribution."""
    lines = []
    for name, arm in ARMS.items():
        runs = [records["default", name, base] for base in BASES]
        cells = [name, arm.phrase]
        for of, first in ((TRAINED, 20), (TRAINED, 60), (TRAINED, STEPS), (LONGER, STEPS)):
            scores = [curve(run, of, first) for run in runs]
            cells.append(f"{np.mean(scores):.1f} ({min(scores):.1f}–{max(scores):.1f})")
        lines.append(cells)
    head = ["", "arm; mean (low–high)", "curve", "from step 60", "end", "out of distribution, end"]
    return table(head, lines)


def dose(records: dict, name: str, bases=BASES, setting="default") -> dict:
    """Every dose of an arm: the mean over bases."""
    runs = [records[setting, name, base]["dose"] for base in bases]
    return {what: np.mean([run[what] for run in runs], axis=0) for what in runs[0]}


def doses(records: dict) -> str:
    """Of each arm what was done, over the bases that it was run on."""
    lines = []
    for name in ALL:
        bases = DIAL if name in SPOKES else BASES
        done = dose(records, name, bases)
        done["drawn"] = percent(done["from_k"] / max(1, done["from_k"].sum()))
        done["tokens"] /= dose(records, "R0", bases)["tokens"]
        lines.append([name, *(cell.format(**done) for cell in DOSES.values())])
    return table(["", *DOSES], lines)


def draws() -> str:
    """How often each k is drawn, where all have questions: σ of the code, and of the paper."""
    lines = [[f"{s}", percent(bucket_weights(range(1, K), K, sigma=s))] for s in (1, 8)]
    return table(["σ", "of k = 1 to 7, %"], lines)


def percent(shares: np.ndarray) -> str:
    """Whole percents, one after another."""
    return " ".join(f"{100 * share:.0f}" for share in shares)


def spokes(records: dict) -> str:
    """The arms around R4, less R4."""
    lines = []
    for name, arm in SPOKES.items():
        lines.append([arm.phrase, shown(differences(records, Row("", name, "R4"), DIAL))])
    return table(["on four bases, less R4", "points"], lines)


def dial(records: dict) -> str:
    """R4, H and others less R0 in each setting, on the same bases."""
    lines = []
    for setting, place in SETTINGS.items():
        names = ("R0", "R4", "H", "M25") if setting == "default" else place.arms
        for name in names:
            gain = more = "–"
            if name != "R0":
                row = Row("", name, "R0")
                gains = differences(records, row, DIAL, setting)
                gain = shown(gains)
                if setting != "default":
                    more = shown(gains - differences(records, row, DIAL))
            runs = [records[setting, name, base] for base in DIAL]
            done = dose(records, name, DIAL, setting)
            right, valid = (np.mean([curve(run, of) for run in runs]) for of in (TRAINED, VALID))
            lines.append(
                [
                    place.phrase,
                    name,
                    f"{right:.1f}",
                    gain,
                    more,
                    f"{np.mean([curve(run, TRAINED, STEPS) for run in runs]):.1f}",
                    f"{1 - valid / right:.0%}",
                    f"{done['none']:.0%}",
                    f"{done['visits']:.1f}",
                ]
            )
    head = ["", "", "curve", "less R0", "that, less the default's", "end"]
    return table([*head, "right but invalid", "no success, o* counted", "visits"], lines)

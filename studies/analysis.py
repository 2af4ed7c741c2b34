"""What the records say: the tables of studies/README.md, in Markdown.

Scores are shares of right answers, 0 to 1; differences are in points, hundredths of that.
"""

import numpy as np
from scipy import stats

from studies.arms import ARMS, BLOCKS, CHOOSING, DECIDING, FARTHER, RATES, SHORT, STEPS, Run
from tools.compare import table

LEVEL = 0.05  # of the four decided rows together
NEAR_ENOUGH = 0.02  # of the best mean score: the lowest such rate is chosen
POINTS = np.arange(20, STEPS + 1, 20)  # the steps over which curves are averaged


def report(records: dict) -> str:
    """The tables of every block that is complete, and what is missing of the others."""
    tables = {
        "gates": [gates],
        "rates": [rates, chosen],
        "main": [rows, arms],
        "worlds": [worlds],
        "rival": [rival],
    }
    parts = []
    for name, block in BLOCKS.items():
        if not RATES and name in ("main", "rival"):
            parts.append(f"{name}: its rates are not chosen yet")
            continue
        missing = [run for run in block() if run not in records]
        if missing:
            parts.append(f"{name}: {len(missing)} runs have no record, {missing[0]} for example")
        else:
            parts += [part(records) for part in tables[name]]
    return "\n\n".join(parts)


# ---- outcomes ------------------------------------------------------------------------------------


def curve(record: dict, name: str) -> np.ndarray:
    """The scores at POINTS; a run that ended early keeps its last one."""
    return np.interp(POINTS, record["step"], record[name])


def near(record: dict) -> float:
    """Test Pass@1, the mean over POINTS."""
    return curve(record, "near").mean()


def far(record: dict) -> float:
    """The same out of distribution."""
    return curve(record, "far").mean()


def score(record: dict) -> float:
    """By which rates are chosen and arms are judged."""
    return (near(record) + far(record)) / 2


def steps_until(record: dict, level: float = 0.8) -> float:
    """The first step with a test Pass@1 of at least `level`, by straight lines; nan if none."""
    scores = np.array([record["near"][0], *curve(record, "near")])
    above = np.flatnonzero(scores >= level)
    if not above.size:
        return np.nan
    after = above[0]
    steps = np.array([0, *POINTS])
    return np.interp(level, scores[after - 1 : after + 1], steps[after - 1 : after + 1])


# ---- statistics ----------------------------------------------------------------------------------


def interval(values: np.ndarray) -> tuple[float, float]:
    """The 95% interval of the mean, by Student's t over bases."""
    return tuple(stats.ttest_1samp(values, 0).confidence_interval(0.95))


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
    """Mean and 95% interval, in points."""
    low, high = interval(values)
    return f"{100 * values.mean():+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


# ---- block 1: which rate -------------------------------------------------------------------------


def gates(records: dict) -> str:
    """Is there something to learn, and is it learned honestly? R0 and P at 3e-4."""
    lines = []
    for base in CHOOSING:
        for arm in ("R0", "P"):
            record = records[Run("default", arm, 3e-4, base)]
            invalid = np.subtract(record["near"], record["valid"])
            figures = [
                record["near"][0],
                record["silent_first"],
                invalid.max(),
                record["near"][-1],
                curve(record, "far")[-3:].mean(),
                max(record["cut"] + record["cut_far"]),
            ]
            lines.append([f"{base}", arm, *(f"{figure:.3f}" for figure in figures)])
            lines[-1].append(f"{record['replay_from'] or '–'}")
    figures = ["base", "silent at first", "right but invalid, most", "end", "far, from step 80"]
    return table(["seed", "arm", *figures, "cut, most", "replay from"], lines)


def grid_of(records: dict, arm: str) -> list[float]:
    """The rates that were run for an arm: the grid, and one beyond its edge where need was."""
    return sorted({run.lr for run in records if run.arm == arm and run.base in CHOOSING})


def rates(records: dict) -> str:
    """Of each arm and rate the means over the four bases."""
    lines = []
    for arm in ("R0", "P", "PC", "HC"):
        for lr in grid_of(records, arm):
            found = [records[Run("default", arm, lr, base)] for base in CHOOSING]
            means = [np.mean([outcome(r) for r in found]) for outcome in (near, far, score)]
            ends = [np.mean([curve(r, name)[-1] for r in found]) for name in ("near", "far")]
            lines.append([arm, f"{lr:g}", *(f"{value:.3f}" for value in means + ends)])
    head = ["arm", "rate", "near", "far", "score", "near, end", "far, end"]
    return table(head, lines)


def choice(records: dict, arm: str, bases: tuple = CHOOSING) -> float:
    """The lowest rate whose mean score over the bases is near enough to the best."""
    means = {}
    for lr in grid_of(records, arm):
        means[lr] = np.mean([score(records[Run("default", arm, lr, base)]) for base in bases])
    best = max(means.values())
    return min(lr for lr, mean in means.items() if mean >= best - NEAR_ENOUGH)


def chosen(records: dict) -> str:
    """The chosen rates, and those that each base alone would have chosen."""
    lines = []
    for arm in ("R0", "P", "PC", "HC"):
        lr = choice(records, arm)
        beyond = FARTHER.get(lr)
        note = f"run it at {beyond:g}, too" if beyond and len(grid_of(records, arm)) == 4 else ""
        alone = [f"{choice(records, arm, (base,)):g}" for base in CHOOSING]
        lines.append([arm, f"{lr:g}", ", ".join(alone), note])
    return table(
        ["arm", "chosen rate", f"by base {CHOOSING[0]} to {CHOOSING[-1]} alone", ""], lines
    )


# ---- block 2: what is decided --------------------------------------------------------------------


def differences(records: dict, first: tuple, second: tuple, outcome=score) -> np.ndarray:
    """The outcome of one (arm, rate) less that of another, of each deciding base."""
    found = []
    for base in DECIDING:
        one, other = (records[Run("default", *pair, base)] for pair in (first, second))
        found.append(outcome(one) - outcome(other))
    return np.array(found)


def comparisons() -> list[tuple]:
    """(phrase, (arm, rate), (arm, rate), whether it is decided)."""
    own = {arm: (arm, rate) for arm, rate in RATES.items()}
    at_p = {arm: (arm, RATES["P"]) for arm in ARMS}
    second = ("at P's rate", at_p["P"], at_p["R0"], True)
    third = ("rarely solved questions, each at its own rate", own["HC"], own["R0"], False)
    if RATES["P"] == RATES["R0"]:
        second = (*third[:3], True)
    found = [
        ("does ExGRPO pay, each at its own rate?", own["P"], own["R0"], True),
        second,
        ("which questions come back", at_p["HC"], at_p["PC"], True),
        ("what old answers add", at_p["P"], at_p["PN"], True),
        ("CLIP kept", at_p["PC"], at_p["P"], False),
    ]
    return found if second[:3] == third[:3] else [*found, third]


def rows(records: dict) -> str:
    """Every comparison, and what was decided of the four."""
    compared = comparisons()
    found = [differences(records, first, second) for _, first, second, _ in compared]
    decided = [i for i, row in enumerate(compared) if row[3]]
    ps = [stats.ttest_1samp(values, 0).pvalue for values in found]
    rejected = dict(zip(decided, holm([ps[i] for i in decided])))
    lines = []
    for i, (phrase, first, second, _) in enumerate(compared):
        verdict = "undecided" if i in rejected else "exploratory"
        if rejected.get(i):
            verdict = "pays" if found[i].mean() > 0 else "costs"
        apart = [shown(differences(records, first, second, outcome)) for outcome in (near, far)]
        ps_shown = [f"{ps[i]:.2g}", f"{sign_flip(found[i]):.2g}"]
        pair = f"{first[0]} {first[1]:g} − {second[0]} {second[1]:g}"
        lines.append([phrase, pair, shown(found[i]), *ps_shown, verdict, *apart])
    return table(["", "", "score", "p, t test", "p, sign flips", "", "near", "far"], lines)


def arms(records: dict) -> str:
    """Of each arm and rate of block 2 the means over bases, with the lowest and the highest."""
    pairs = dict.fromkeys((run.arm, run.lr) for run in BLOCKS["main"]())
    lines = []
    for arm, lr in pairs:
        found = [records[Run("default", arm, lr, base)] for base in DECIDING]
        cells = [f"{arm} {lr:g}", ARMS[arm].phrase]
        for outcome in (near, far, lambda r: curve(r, "near")[-1], lambda r: curve(r, "far")[-1]):
            scores = [outcome(record) for record in found]
            cells.append(f"{np.mean(scores):.3f} ({min(scores):.2f}–{max(scores):.2f})")
        until = [steps_until(record) for record in found]
        reached = np.isfinite(until).sum()
        cells.append(f"{np.nanmean(until):.0f} ({reached} of {len(until)})" if reached else "–")
        tokens = [r["tokens"] for r in found]
        on_policy = [records[Run("default", "R0", RATES["R0"], b)]["tokens"] for b in DECIDING]
        cells.append(f"{np.mean(tokens) / np.mean(on_policy):.2f}")
        cells.append(f"{np.mean([r['silent'] for r in found]):.0%}")
        lines.append(cells)
    head = ["", "arm; mean (low–high)", "near", "far", "near, end", "far, end"]
    return table([*head, "steps until 0.8", "tokens / R0", "silent fresh groups"], lines)


# ---- blocks 3 and 4 ------------------------------------------------------------------------------


def worlds(records: dict) -> str:
    """Natural and mostly silent questions: every arm and rate, and its score less R0's at 3e-4."""
    pairs = dict.fromkeys((run.world, run.arm, run.lr) for run in BLOCKS["worlds"]())
    lines = []
    for world, arm, lr in sorted(pairs):
        found = [records[Run(world, arm, lr, base)] for base in SHORT]
        on_policy = [records[Run(world, "R0", 3e-4, base)] for base in SHORT]
        gain = "–"
        if (arm, lr) != ("R0", 3e-4):
            gain = shown(np.subtract([score(r) for r in found], [score(r) for r in on_policy]))
        means = [np.mean([outcome(r) for r in found]) for outcome in (near, far, score)]
        silent = np.mean([r["silent_first"] for r in found])
        cells = [f"{value:.3f}" for value in means]
        lines.append([world, arm, f"{lr:g}", f"{silent:.0%}", *cells, gain])
    head = ["questions", "arm", "rate", "silent at first", "near", "far", "score"]
    return table([*head, "less R0 at 3e-4, points"], lines)


def rival(records: dict) -> str:
    """On-policy on questions chosen beforehand: its step 60 beside R0's step 120."""
    lines = []
    for base in SHORT:
        chosen_first = records[Run("rival", "R0", RATES["R0"], base)]
        plain = records[Run("default", "R0", RATES["R0"], base)]
        cells = []
        for name in ("near", "far"):
            at_60 = curve(chosen_first, name)[2]
            at_120 = curve(plain, name)[-1]
            cells += [f"{at_60:.3f}", f"{at_120:.3f}"]
        lines.append([f"{base}", *cells])
    head = ["base", "near: rival, step 60", "R0, step 120", "far: rival, step 60", "R0, step 120"]
    return table(head, lines)

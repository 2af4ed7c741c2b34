"""What studies/PROTOCOL.md compares, as data: the arms, seeds, comparisons and their runs."""

from studies.arms import GRID, Row, Run

COMMIT = "700f0942a5ca"  # whose train.py makes all runs
CHOOSING = range(60, 64)  # the seeds that choose the rates
DECIDING = range(70, 82)  # the seeds that decide
SIX = DECIDING[:6]
COMMANDS = {  # arm -> what studies/experience.py is given
    "R0": "exgrpo --rho 0",
    "RR": "exgrpo --rho 0 --retire on",
    "P": "exgrpo",
    "HC": "exgrpo --clip on --mu 0.125",
    "PK": "exgrpo --retire off",
    "HK": "exgrpo --clip on --mu 0.125 --retire off",
    "HN": "questions-only --clip on --mu 0.125",
    "PN": "questions-only",
    "PS": "exgrpo --start_threshold -1",
}
MAIN = ("R0", "RR", "P", "HC")
RATED = dict.fromkeys(MAIN, GRID)
RATES = {}  # what block `rates` chose
LAST_RATES = {"R0": 4.5e-4, "P": 4.5e-4, "HC": 3e-4, "PN": 4.5e-4}  # of the last study

BLOCKS = {  # block -> its groups (questions, arm, rate), and the seeds of each
    "rates": ([("320", arm, lr) for arm, grid in RATED.items() for lr in grid], CHOOSING)
}
if RATES:
    RATES |= {"PK": RATES["P"], "PS": RATES["P"], "HK": RATES["HC"], "HN": RATES["HC"]}
    OWN = {arm: ("320", arm, lr) for arm, lr in RATES.items()}
    DIAL = [(n, arm, RATES[arm]) for n in ("160", "640", "1920") for arm in ("R0", "RR", "HC")]
    BLOCKS |= {
        "main": ([OWN[arm] for arm in MAIN], DECIDING),
        "parts": ([OWN[arm] for arm in ("PK", "HK", "HN", "PS")], SIX),
        "why": ([("1920", arm, lr) for arm, lr in LAST_RATES.items()], SIX),
        "dial": (DIAL, SIX),
        "natural": ([("natural", arm, 3e-4) for arm in ("P", "HC")], DECIDING[:3]),
    }
    ROWS = [
        Row("does ExGRPO pay?", OWN["P"], OWN["R0"], decided=True),
        Row("with rarely solved questions?", OWN["HC"], OWN["R0"], decided=True),
        Row("does retirement do it?", OWN["RR"], OWN["R0"], decided=True),
        Row("does replay add to that?", OWN["HC"], OWN["RR"], decided=True),
        Row("does replay add to that?", OWN["P"], OWN["RR"]),
    ]


def all_runs() -> set[Run]:
    """Every run of every block."""
    return {
        Run(seed, *group) for groups, seeds in BLOCKS.values() for group in groups for seed in seeds
    }

"""What studies/PROTOCOL.md compares, as data: the arms, seeds, comparisons and their runs."""

from studies.analysis import choice
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
NEXT = {2e-4: 1.4e-4, 6e-4: 9e-4}  # an edge of the grid -> the rate that is run, too, if it wins
LAST_RATES = {"R0": 4.5e-4, "P": 4.5e-4, "HC": 3e-4, "PN": 4.5e-4}  # of the last study
Records = dict[Run, dict]


def winner(records: Records, arm: str, grid: tuple) -> float | None:
    """The rate that the protocol's rule chooses from a grid, None while runs are missing."""
    tried = {}
    for lr in grid:
        tried[lr] = [records.get(Run(seed, "320", arm, lr)) for seed in CHOOSING]
    all_there = all(record for group in tried.values() for record in group)
    return choice(tried) if all_there else None


def grid_of(records: Records, arm: str) -> tuple:
    """The rates that an arm is run at, with the next one where an edge has won."""
    rate = winner(records, arm, GRID)
    return (*GRID, NEXT[rate]) if rate in NEXT else GRID


def rates_of(records: Records) -> dict[str, float]:
    """The chosen rate of each arm, {} while runs are missing."""
    rates = {arm: winner(records, arm, grid_of(records, arm)) for arm in MAIN}
    if not all(rates.values()):
        return {}
    return rates | {"PK": rates["P"], "PS": rates["P"], "HK": rates["HC"], "HN": rates["HC"]}


def blocks_of(records: Records) -> dict[str, tuple]:
    """{block: its groups (questions, arm, rate), and the seeds of each}, as far as is known."""
    rated = [("320", arm, lr) for arm in MAIN for lr in grid_of(records, arm)]
    blocks = {"rates": (rated, CHOOSING)}
    rates = rates_of(records)
    if rates:
        own = {arm: ("320", arm, lr) for arm, lr in rates.items()}
        dial = [(n, arm, rates[arm]) for n in ("160", "640", "1920") for arm in ("R0", "RR", "HC")]
        blocks |= {
            "main": ([own[arm] for arm in MAIN], DECIDING),
            "parts": ([own[arm] for arm in ("PK", "HK", "HN", "PS")], SIX),
            "why": ([("1920", arm, lr) for arm, lr in LAST_RATES.items()], SIX),
            "dial": (dial, SIX),
            "natural": ([("natural", arm, 3e-4) for arm in ("P", "HC")], DECIDING[:3]),
        }
    return blocks


def rows_of(rates: dict[str, float]) -> list[Row]:
    """The comparisons, of which four are decided."""
    r0, rr, p, hc = [("320", arm, rates[arm]) for arm in MAIN]
    return [
        Row("does ExGRPO pay?", p, r0, decided=True),
        Row("with rarely solved questions?", hc, r0, decided=True),
        Row("does retirement do it?", rr, r0, decided=True),
        Row("does replay add to that?", hc, rr, decided=True),
        Row("does replay add to that?", p, rr),
    ]


def runs_of(records: Records) -> set[Run]:
    """Every run of every block."""
    runs = set()
    for groups, seeds in blocks_of(records).values():
        runs |= {Run(seed, *group) for group in groups for seed in seeds}
    return runs

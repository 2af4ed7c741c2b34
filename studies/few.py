"""What studies/PROTOCOL.md compares, as data: the arms, seeds, comparisons and their runs."""

from studies.analysis import choice
from studies.arms import GRID, STEPS, Row, Run

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
PARTS = {"PK": "P", "PS": "P", "HK": "HC", "HN": "HC"}  # arm -> of which it changes one part
DIAL = ("160", "320", "640", "1920")  # numbers of questions
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
    return rates | {part: rates[whole] for part, whole in PARTS.items()}


def blocks_of(records: Records) -> dict[str, tuple]:
    """{block: its groups (questions, arm, rate), and the seeds of each}, as far as is known."""
    rated = [("320", arm, lr) for arm in MAIN for lr in grid_of(records, arm)]
    blocks = {"rates": (rated, CHOOSING)}
    rates = rates_of(records)
    if rates:
        dial = [(n, arm, rates[arm]) for n in DIAL for arm in ("R0", "RR", "HC")]
        blocks |= {
            "main": ([("320", arm, rates[arm]) for arm in MAIN], DECIDING),
            "why": ([("1920", arm, lr) for arm, lr in LAST_RATES.items()], SIX),
            "parts": ([("320", arm, rates[arm]) for arm in PARTS], SIX),
            "natural": ([("natural", arm, 3e-4) for arm in ("P", "HC")], DECIDING[:3]),
            "dial": (dial, SIX),
        }
    return blocks


def rows_of(records: Records) -> dict[str, list[Row]]:
    """The comparisons of each picture, of which four are decided; none while no rate is known."""
    rates = rates_of(records)
    if not rates:
        return {}

    def row(phrase: str, one: str, other: str, n: str = "320", decided: bool = False) -> Row:
        return Row(phrase, (n, one, rates[one]), (n, other, rates[other]), decided)

    main = [
        row("does ExGRPO pay?", "P", "R0", decided=True),
        row("with rarely solved questions?", "HC", "R0", decided=True),
        row("does retirement do it?", "RR", "R0", decided=True),
        row("does replay add to that?", "HC", "RR", decided=True),
        row("does replay add to that?", "P", "RR"),
    ]
    parts = [row("one part changed", part, whole) for part, whole in PARTS.items()]
    dial = []
    for one, other in (("RR", "R0"), ("HC", "R0"), ("HC", "RR")):
        dial += [row(f"asked {STEPS * 32 / int(n):g} times", one, other, n) for n in DIAL]
    return {"main": main, "parts": parts, "dial": dial}


def runs_of(records: Records) -> list[Run]:
    """Every run of every block, in the order in which they are made: what decides comes first."""
    runs = []
    for groups, seeds in blocks_of(records).values():
        runs += [Run(seed, *group) for seed in seeds for group in groups]
    return list(dict.fromkeys(runs))  # a group may stand in two blocks

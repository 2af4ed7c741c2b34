"""What is compared, as data: the arms, the worlds, the bases, the comparisons and their runs."""

from typing import NamedTuple

CHOOSING = range(30, 34)  # the bases that choose the rates
DECIDING = range(40, 52)  # the bases that decide
SHORT = DECIDING[:6]
STEPS = 120
COMMIT = "8c1272371200"  # whose train.py makes all runs
GRID = (2e-4, 3e-4, 4.5e-4, 6e-4)  # learning rates
# Block 1: the rates that an arm is run at, and the one that it gets.
RATED = {"R0": GRID, "P": GRID, "PC": GRID, "HC": (1.4e-4, *GRID)}
RATES = {"R0": 4.5e-4, "P": 4.5e-4, "HC": 3e-4}
COMMANDS = {  # arm -> what torchrun is given
    "R0": "train.py --rho 0",
    "P": "train.py",
    "PC": "train.py --clip on",
    "HC": "train.py --clip on --mu 0.125",
    "PN": "-m studies.experience",
    "PK": "train.py --retire off",
    "HK": "train.py --clip on --mu 0.125 --retire off",
}
PHRASES = {  # arm -> what a picture calls it
    "R0": "on-policy (Dr. GRPO)",
    "P": "ExGRPO",
    "PC": "ExGRPO, CLIP kept",
    "HC": "ExGRPO, rarely solved questions, CLIP kept",
}
MIXES = {"natural": (), "silent": (0.2, 0.05, 0.75)}  # the other worlds have the default mix


class Run(NamedTuple):
    """A run of train.py. Those that differ in the base alone are a group, `run[1:]`."""

    base: int
    world: str
    arm: str
    lr: float


class Row(NamedTuple):
    """A comparison: the group `one` less the group `other`."""

    phrase: str
    one: tuple
    other: tuple
    decided: bool = False  # one of the four of the protocol

    @property
    def pair(self) -> str:
        """As tables and pictures name it."""
        return " − ".join(f"{arm} {lr:g}" for _, arm, lr in (self.one, self.other))


OWN = {arm: ("default", arm, lr) for arm, lr in RATES.items()}
AT_P = {arm: ("default", arm, RATES["P"]) for arm in COMMANDS}  # at P's rate, which is R0's, too
PAYS = Row("does ExGRPO pay?", OWN["P"], OWN["R0"], decided=True)
ROWS = {  # block -> its comparisons
    "main": [
        PAYS,
        Row("rarely solved questions", OWN["HC"], OWN["R0"], decided=True),
        Row("which questions come back", AT_P["HC"], AT_P["PC"], decided=True),
        Row("what old answers add", AT_P["P"], AT_P["PN"], decided=True),
        Row("CLIP kept", AT_P["PC"], AT_P["P"]),
        Row("new answers alone", AT_P["PN"], OWN["R0"]),
    ],
    "worlds": [
        Row(f"{world} questions", (world, arm, lr), (world, "R0", lr))
        for world in MIXES
        for arm, lr in (("P", 2e-4), ("P", 3e-4), ("HC", 3e-4))
    ],
    "kept": [
        Row("no question retires", AT_P["PK"], AT_P["P"]),
        Row("no question retires", ("natural", "HK", 3e-4), ("natural", "HC", 3e-4)),
    ],
}


def groups_of(rows: list[Row]) -> list[tuple]:
    """The groups that these comparisons need, each once."""
    return list(dict.fromkeys(group for row in rows for group in (row.one, row.other)))


RIVAL = ("rival", *OWN["R0"][1:])
RATED_GROUPS = [("default", arm, lr) for arm, grid in RATED.items() for lr in grid]
BLOCKS = {  # block -> its groups, and the bases of each
    "rates": (RATED_GROUPS, CHOOSING),
    "main": (groups_of(ROWS["main"]), DECIDING),
    "worlds": (groups_of([*ROWS["worlds"], PAYS]), SHORT),
    "rival": ([RIVAL, OWN["R0"]], SHORT),
    "kept": (groups_of(ROWS["kept"]), SHORT),
}

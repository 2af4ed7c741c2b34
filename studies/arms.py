"""What is compared, as data: the arms, the worlds, the bases, the comparisons and their runs."""

from typing import NamedTuple

CHOOSING = range(30, 34)  # the bases that choose the rates
DECIDING = range(40, 52)  # the bases that decide
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
}
PHRASES = {  # arm -> what a picture calls it
    "R0": "on-policy (Dr. GRPO)",
    "P": "ExGRPO",
    "PC": "ExGRPO, CLIP kept",
    "HC": "ExGRPO, rarely solved questions, CLIP kept",
}


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
ROWS = [  # the comparisons
    Row("does ExGRPO pay?", OWN["P"], OWN["R0"], decided=True),
    Row("rarely solved questions", OWN["HC"], OWN["R0"], decided=True),
    Row("which questions come back", AT_P["HC"], AT_P["PC"], decided=True),
    Row("what old answers add", AT_P["P"], AT_P["PN"], decided=True),
    Row("CLIP kept", AT_P["PC"], AT_P["P"]),
    Row("new answers alone", AT_P["PN"], OWN["R0"]),
]
COMPARED = list(dict.fromkeys(group for row in ROWS for group in (row.one, row.other)))
RATED_GROUPS = [("default", arm, lr) for arm, grid in RATED.items() for lr in grid]
BLOCKS = {"rates": (RATED_GROUPS, CHOOSING), "main": (COMPARED, DECIDING)}  # groups, and bases

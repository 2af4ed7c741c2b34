"""What studies/PROTOCOL.md compares, as data: the arms, seeds, comparisons and their runs."""

from typing import NamedTuple

COMMIT = "700f0942a5ca"  # whose train.py makes all runs
STEPS = 120
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
PHRASES = {  # arm -> what a picture calls it
    "R0": "on-policy (Dr. GRPO)",
    "P": "ExGRPO",
    "HC": "ExGRPO, rarely solved questions, CLIP kept",
    "PN": "the questions of ExGRPO, new answers only",
}
GRID = (2e-4, 3e-4, 4.5e-4, 6e-4)  # learning rates
RATES = {"R0": 4.5e-4, "RR": 3e-4, "P": 3e-4, "HC": 3e-4}  # those that the rule chose
LAST_RATES = {"R0": 4.5e-4, "P": 4.5e-4, "HC": 3e-4, "PN": 4.5e-4}  # of the last study
PARTS = {"PK": "P", "PS": "P", "HK": "HC", "HN": "HC"}  # arm -> of which it changes one part


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
    decided: bool = False  # by the protocol's rule; all others are exploratory

    @property
    def pair(self) -> str:
        """As tables and pictures name it."""
        return " − ".join(f"{arm} {lr:g}" for _, arm, lr in (self.one, self.other))


def group(arm: str) -> tuple:
    """An arm at its own rate, on 320 questions."""
    return "320", arm, RATES[PARTS.get(arm, arm)]


def plenty(arm: str) -> tuple:
    """An arm at the last study's rate, on 1,920 questions."""
    return "1920", arm, LAST_RATES[arm]


BLOCKS = {  # block -> its groups, and the seeds of each, in the order in which runs are made
    "rates": ([("320", arm, lr) for arm in RATES for lr in GRID], CHOOSING),
    "main": ([group(arm) for arm in RATES], DECIDING),
    "why": ([plenty(arm) for arm in LAST_RATES], SIX),
    "parts": ([group(arm) for arm in ("P", "HC", *PARTS)], SIX),
    "natural": ([("natural", arm, 3e-4) for arm in ("P", "HC")], DECIDING[:3]),
}
ROWS = {  # block -> its comparisons
    "main": [
        Row("does ExGRPO pay?", group("P"), group("R0"), decided=True),
        Row("with rarely solved questions?", group("HC"), group("R0"), decided=True),
        Row("does retirement do it?", group("RR"), group("R0"), decided=True),
        Row("does replay add to that?", group("HC"), group("RR"), decided=True),
        Row("does replay add to that?", group("P"), group("RR")),
    ],
    "why": [Row("1,920 questions", plenty(arm), plenty("R0")) for arm in ("P", "HC", "PN")],
    "parts": [Row("one part changed", group(part), group(PARTS[part])) for part in PARTS],
}


def all_runs() -> list[Run]:
    """Every run of every block, those that decide before the exploratory ones."""
    runs = []
    for groups, seeds in BLOCKS.values():
        runs += [Run(seed, *group) for seed in seeds for group in groups]
    return list(dict.fromkeys(runs))  # a group may stand in two blocks

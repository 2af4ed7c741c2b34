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
DIAL = ("160", "320", "640", "1920")  # numbers of questions


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


def group(arm: str, n: str = "320") -> tuple:
    """An arm at its own rate, on so many questions."""
    return n, arm, RATES[PARTS.get(arm, arm)]


BLOCKS = {  # block -> its groups, and the seeds of each, in the order in which runs are made
    "rates": ([("320", arm, lr) for arm in RATES for lr in GRID], CHOOSING),
    "main": ([group(arm) for arm in RATES], DECIDING),
    "why": ([("1920", arm, lr) for arm, lr in LAST_RATES.items()], SIX),
    "parts": ([group(arm) for arm in PARTS], SIX),
    "natural": ([("natural", arm, 3e-4) for arm in ("P", "HC")], DECIDING[:3]),
    "dial": ([group(arm, n) for n in DIAL for arm in ("R0", "RR", "HC")], SIX),
}
ROWS = {  # block -> its comparisons
    "main": [
        Row("does ExGRPO pay?", group("P"), group("R0"), decided=True),
        Row("with rarely solved questions?", group("HC"), group("R0"), decided=True),
        Row("does retirement do it?", group("RR"), group("R0"), decided=True),
        Row("does replay add to that?", group("HC"), group("RR"), decided=True),
        Row("does replay add to that?", group("P"), group("RR")),
    ],
    "parts": [Row("one part changed", group(part), group(PARTS[part])) for part in PARTS],
    "dial": [
        Row(f"asked {STEPS * 32 / int(n):g} times", group(one, n), group(other, n))
        for one, other in (("RR", "R0"), ("HC", "R0"), ("HC", "RR"))
        for n in DIAL
    ],
}


def all_runs() -> list[Run]:
    """Every run of every block, those that decide before the exploratory ones."""
    runs = []
    for groups, seeds in BLOCKS.values():
        runs += [Run(seed, *group) for seed in seeds for group in groups]
    return list(dict.fromkeys(runs))  # a group may stand in two blocks

"""A run, a comparison, and what pictures call the arms."""

from typing import NamedTuple

STEPS = 120
GRID = (2e-4, 3e-4, 4.5e-4, 6e-4)  # learning rates
PHRASES = {  # arm -> what a picture calls it
    "R0": "on-policy (Dr. GRPO)",
    "P": "ExGRPO",
    "HC": "ExGRPO, rarely solved questions, CLIP kept",
    "PN": "the questions of ExGRPO, new answers only",
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
    decided: bool = False  # by the protocol's rule; all others are exploratory

    @property
    def pair(self) -> str:
        """As tables and pictures name it."""
        return " − ".join(f"{arm} {lr:g}" for _, arm, lr in (self.one, self.other))

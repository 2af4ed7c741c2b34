"""What is compared, as data: the arms, the worlds, the bases, and the runs of each block."""

from typing import NamedTuple

CHOOSING = tuple(range(30, 34))  # the bases that choose the rates
DECIDING = tuple(range(40, 52))  # the bases that decide
SHORT = DECIDING[:6]
STEPS = 120
GRID = (2e-4, 3e-4, 4.5e-4, 6e-4)  # learning rates
# Block 1: the rates that an arm is run at, and the one that is chosen, once it is.
RATED = {"R0": GRID, "P": GRID, "PC": GRID, "HC": GRID}
RATES = {}


class Arm(NamedTuple):
    """A way to train: what a reader calls it, its flags, and what torchrun is given."""

    phrase: str
    flags: str
    script: str = "train.py"


ARMS = {
    "R0": Arm("on-policy Dr. GRPO", "--rho 0"),
    "P": Arm("ExGRPO as the paper runs it", ""),
    "PC": Arm("ExGRPO, CLIP kept", "--clip on"),
    "HC": Arm("ExGRPO, CLIP kept, μ = 0.125", "--clip on --mu 0.125"),
    "PN": Arm("ExGRPO without old answers", "", "-m studies.experience"),
}
MIXES = {"natural": (), "silent": (0.2, 0.05, 0.75)}  # the other worlds have the default mix


class Run(NamedTuple):
    """A run of train.py. Those that differ in the base alone are a group, `run[:3]`."""

    world: str
    arm: str
    lr: float
    base: int


def gates() -> list[Run]:
    """The runs of block 1 that docs/world.md asks whether there is enough to learn."""
    return [Run("default", arm, 3e-4, base) for base in CHOOSING for arm in ("R0", "P")]


def rates() -> list[Run]:
    """Block 1."""
    return [
        Run("default", arm, lr, base)
        for base in CHOOSING
        for arm, grid in RATED.items()
        for lr in grid
    ]


def main() -> list[Run]:
    """Block 2: each at its own rate, and four at P's. None before the rates are chosen."""
    if not RATES:
        return []
    pairs = [(arm, RATES[arm]) for arm in ("R0", "P", "HC")]
    pairs += [(arm, RATES["P"]) for arm in ("R0", "PC", "HC", "PN")]
    pairs = dict.fromkeys(pairs)  # two rates may be the same
    return [Run("default", arm, lr, base) for base in DECIDING for arm, lr in pairs]


def worlds() -> list[Run]:
    """Block 3: natural questions, and mostly silent ones."""
    pairs = [("R0", 2e-4), ("P", 2e-4), ("R0", 3e-4), ("P", 3e-4), ("HC", 3e-4)]
    return [Run(world, arm, lr, base) for base in SHORT for world in MIXES for arm, lr in pairs]


def rival() -> list[Run]:
    """Block 4: on-policy, on the questions that the base solves now and then."""
    return [Run("rival", "R0", RATES["R0"], base) for base in SHORT if RATES]


BLOCKS = {"gates": gates, "rates": rates, "main": main, "worlds": worlds, "rival": rival}


def wanted() -> list[Run]:
    """All runs in the order of the protocol: gates and block 1, then base by base."""
    found = gates() + rates()
    if RATES:
        found += sorted(main() + worlds() + rival(), key=lambda run: run.base)
    return list(dict.fromkeys(found))  # the gates belong to block 1, too

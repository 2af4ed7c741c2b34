"""What is compared, as data: the arms, the worlds, the bases, and the runs of each block."""

from dataclasses import dataclass

CHOOSING = tuple(range(30, 34))  # the bases that choose the rates
DECIDING = tuple(range(40, 52))  # the bases that decide
SHORT = DECIDING[:6]
STEPS = 120
GRID = (2e-4, 3e-4, 4.5e-4, 6e-4)
BEYOND = {GRID[0]: 1.4e-4, GRID[-1]: 9e-4}  # an edge of the grid -> the rate beyond it
# What block 1 came to: the arms that stood at an edge, with the rate beyond, and the chosen rates.
AT_EDGE = {}
RATES = {}


@dataclass(frozen=True)
class Arm:
    """A way to train: what a reader calls it, and its flags."""

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
RATED = ("R0", "P", "PC", "HC")  # the arms of block 1


@dataclass(frozen=True)
class Run:
    """A run of train.py."""

    world: str
    arm: str
    lr: float
    base: int


def gates() -> list[Run]:
    """The runs that docs/world.md asks whether the world has enough to learn."""
    return [Run("default", arm, 3e-4, base) for base in CHOOSING for arm in ("R0", "P")]


def rates_of(arm: str) -> list[float]:
    """The rates of which block 1 chooses one."""
    farther = [AT_EDGE[arm]] if arm in AT_EDGE else []
    return sorted([*GRID, *farther])


def rates() -> list[Run]:
    """Block 1, which the runs of the gates belong to."""
    return [
        Run("default", arm, lr, base) for base in CHOOSING for arm in RATED for lr in rates_of(arm)
    ]


def main() -> list[Run]:
    """Block 2: each at its own rate, and four at P's."""
    wanted = [(arm, RATES[arm]) for arm in ("R0", "P", "HC")]
    wanted += [(arm, RATES["P"]) for arm in ("R0", "PC", "HC", "PN")]
    wanted = dict.fromkeys(wanted)  # two rates may be the same
    return [Run("default", arm, lr, base) for base in DECIDING for arm, lr in wanted]


def worlds() -> list[Run]:
    """Block 3: natural questions, and mostly silent ones."""
    wanted = [("R0", 2e-4), ("P", 2e-4), ("R0", 3e-4), ("P", 3e-4), ("HC", 3e-4)]
    return [Run(world, arm, lr, base) for base in SHORT for world in MIXES for arm, lr in wanted]


def rival() -> list[Run]:
    """Block 4: on-policy, on the questions that the base solves now and then."""
    return [Run("rival", "R0", RATES["R0"], base) for base in SHORT]


BLOCKS = {"gates": gates, "rates": rates, "main": main, "worlds": worlds, "rival": rival}

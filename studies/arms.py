"""What is compared, as data: the arms, the settings of the dial, the bases."""

from dataclasses import dataclass, field

import numpy as np

BASES = tuple(range(10, 22))  # the blocks
DIAL = BASES[:4]  # spokes and dial: described, not decided
STEPS = 120
SAME = "--eval_every 20 --save_every 0 --keep 1 --reward worlds.arithmetic:reward"
NOW = "--start_threshold -1"  # replay from the start


@dataclass(frozen=True)
class Arm:
    """A way to train: what a reader calls it, and its flags."""

    phrase: str
    flags: str
    star: bool = True  # whether an o* stands in the group of a question that comes back


ARMS = {
    "R0": Arm("on-policy Dr. GRPO", "--rho 0"),
    "R1": Arm("solved questions retire, no clip", "--rho 0 --retire on --clip off"),
    "R2": Arm("medium questions come back", NOW, star=False),
    "R3": Arm("an old answer sits in the group", f"{NOW} --beta 1e-6"),
    "R4": Arm("the old answer is imitated", NOW),
    "R2H": Arm("rarely solved questions come back", f"{NOW} --mu 0.125", star=False),
    "H": Arm("rarely solved ones, with old answers", f"{NOW} --mu 0.125"),
    "P": Arm("ExGRPO as the paper runs it", ""),
    "PH": Arm("ExGRPO with μ = 0.125", "--mu 0.125"),
}
SPOKES = {
    "plain": Arm("R4 without shaping", f"{NOW} --shaping false"),
    "M25": Arm("R4 with μ = 0.25", f"{NOW} --mu 0.25"),
    "uniform": Arm("R4, questions chosen uniformly", f"{NOW} --question_selection uniform"),
    "rho25": Arm("R4 with ρ = 0.25", f"{NOW} --rho 0.25"),
}
ALL = ARMS | SPOKES


@dataclass(frozen=True)
class Row:
    """A comparison, arm less other, as the picture calls it."""

    phrase: str
    arm: str
    other: str
    decided: bool = False  # one of the four of the protocol


ROWS = (
    # The ladder: from R0 to R4 each rung stands on the one before.
    Row("solved questions retire, no clip", "R1", "R0"),
    Row("medium questions come back", "R2", "R1"),
    Row("an old answer sits in the group", "R3", "R2"),
    Row("the old answer is imitated", "R4", "R3"),
    Row("all four: ExGRPO from the start", "R4", "R0", decided=True),
    Row("rarely solved ones come back instead", "H", "R4", decided=True),
    Row("the same, without old answers", "R2H", "R2"),
    Row("all of it, with rarely solved ones", "H", "R0", decided=True),
    Row("ExGRPO as the paper runs it", "P", "R0", decided=True),
    Row("there, rarely solved ones instead", "PH", "P"),
)


@dataclass(frozen=True)
class Setting:
    """A place of the dial: constants of its World, further flags, how many questions it has."""

    phrase: str
    arms: tuple[str, ...] = ("R0", "R4", "H")
    constants: dict = field(default_factory=dict)
    flags: str = ""
    questions: int | None = None


def badly_taught(plus: float, minus: float, times: float, least_slip: float) -> dict:
    """The shares of badly taught facts of each operation, and how rarely those slip at least."""
    return {
        "hard_shares": (("+", plus), ("-", minus), ("*", times)),
        "hard_slips": (least_slip, 0.9),
    }


SETTINGS = {
    "default": Setting("the world as it is", arms=tuple(ARMS)),
    "rare": Setting("successes rarer", constants=badly_taught(0.7, 0.8, 0.9, 0.34)),
    "luck": Setting("luck", ("R0", "R4", "H", "M25"), constants={"asked": (1,)}),
    "few": Setting("few questions", flags="--retire off --clip off", questions=192),
}


def in_drawn_order(base: int, names: list[str]) -> list[str]:
    """The arms of a block as they are run: in an order drawn for each base."""
    drawn = np.random.default_rng([base, 34]).permutation(list(ALL)).tolist()
    return sorted(names, key=drawn.index)

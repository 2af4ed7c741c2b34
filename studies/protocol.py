"""What is asked, of which runs, by which number: the tables of PROTOCOL.md as data.

A *setting* is where arms are compared: a world, or the real model, with the knobs that all its runs share. An
*arm* is a set of knobs of `train.py` on top. A *unit* is what differs between repetitions: the base model of
a built-in world (and the run's seed with it), or the seed of a run of the real model. A row compares two
arms, unit by unit; everything about it is fixed here and in PROTOCOL.md before its first run.
"""

from dataclasses import dataclass

TUNING_UNITS = (100, 101)  # base models, or run seeds, that are used for nothing else
TUNING_RATES = (2e-5, 4e-5, 8e-5, 1.6e-4)
SAMPLES = 4  # responses a question at the end
ENDS = (0.9, 0.95, 1.0)  # of the run: the end is the mean of these
EXPLORED = 2  # units of an exploratory row, of `easy` three
OUT = ", out of distribution"  # of a question that is read there


@dataclass(frozen=True)
class Setting:
    """What all runs of a setting share."""

    knobs: dict
    units: int
    unit_knobs: tuple[str, ...]  # set to the number of the unit
    held_out: tuple[str, ...]  # data sources of validation that are not trained on
    quick: dict  # knobs of a trial run

    @staticmethod
    def every(steps: int) -> dict:
        """Knobs: validation at thirds of a run, checkpoints at its ENDS (3, and of two interrupts)."""
        return {"eval_every": max(1, steps // 3), "save_every": max(1, steps // 20), "keep": 5}


QUICK = {"steps": 6, "eval_questions": 20, "save_every": 1}  # of a trial run
QUICK_REAL = {"steps": 2, "batch_size": 2, "eval_questions": 2, "save_every": 2}
BUILT_IN = {"start_threshold": -1.0, "max_response_length": 66, "batch_size": 32}
SETTINGS = {
    "hard": Setting({"world": "hard", **BUILT_IN, "steps": 240, "lr": 1.6e-4}, 8, ("world_seed", "seed"),
                    ("arithmetic-ood",), QUICK),
    "weak": Setting({"world": "weak", **BUILT_IN, "steps": 120, "lr": 1.6e-4, "entropy_coef": 3e-4}, 8,
                    ("world_seed", "seed"), ("arithmetic-ood",), QUICK),
    "real": Setting({"config": "configs/smollm2.yaml", "start_threshold": -1.0, "steps": 40,
                     "eval_questions": 0}, 8, ("seed",), ("calculate",), QUICK_REAL),
    # `make train`: one base model, other seeds of the run
    "easy": Setting({"world": "easy", "steps": 120}, 3, ("seed",), ("arithmetic-ood",), QUICK),
    # the real model, sums alone, and a reward that can be talked into it; with a program of its own. Nothing
    # retires: Math-Verify calls every restated sum right, so what the row counts would leave the stream
    "snowball": Setting({"config": "configs/smollm2.yaml", "train_files": [".cache/gym/sum.parquet"],
                         "val_files": [".cache/gym/sum-test.parquet"], "reward": "studies.restated:score",
                         "start_threshold": -1.0, "retire": "off", "steps": 20, "eval_questions": 0},
                        EXPLORED, ("seed",), (), QUICK_REAL),
}

ARMS = {  # name -> knobs
    "exgrpo": {},
    "on_policy": {"rho": 0.0},
    # the questions come back and o* stands in the group, but has no policy gradient
    "revisiting": {"beta": 1e-6},
    "no_shaping": {"shaping": False},
    # exploratory
    "random_star": {"trajectory_selection": "random"},
    "highest_entropy": {"trajectory_selection": "highest_entropy"},
    "uniform": {"question_selection": "uniform"},
    "beta_003": {"beta": 0.03},
    "beta_03": {"beta": 0.3},
    "beta_1": {"beta": 1.0},
    "mu_25": {"mu": 0.25},
    "on_policy_retiring": {"rho": 0.0, "retire": "on", "clip": "off"},  # the rest of the difference
    "dynamic": {"rho": 0.0, "save_every": 4, "keep": 100},  # with a program of its own, which ends early
    "fast": {"lr": 3.2e-4}, "on_policy_fast": {"rho": 0.0, "lr": 3.2e-4},  # twice and half the rate of `hard`
    # Eq. 14 with 8 groups a step, of whatever was to be asked for them; with the program of "dynamic"
    "medium": {"rho": 0.0, "batch_size": 8, "alpha_low": 0.26, "alpha_high": 0.74},
    "hardest": {"rho": 0.0, "batch_size": 8, "alpha_high": 0.25},
    "slow": {"lr": 8e-5}, "on_policy_slow": {"rho": 0.0, "lr": 8e-5},
}


@dataclass(frozen=True)
class Row:
    """One question: `arm` minus `against`, unit by unit."""

    number: int
    family: str  # primary, secondary or exploratory
    question: str
    setting: str
    arm: str
    against: str
    where: str = "trained"  # Pass@1 at the end on the trained kinds, or on what is "held out"
    units: int = 8
    # end; escapes: counts of pairs; auc: of a base model's right answers, no arms; restated: see snowball.py
    kind: str = "end"

    @property
    def arms(self) -> tuple[str, ...]:
        return ("base",) if self.kind == "auc" else (self.arm, self.against)


def explored(first: int, question: str, against: list[tuple[str, str]], setting: str = "hard",
             arm: str = "exgrpo", kind: str = "end") -> list[Row]:
    """Exploratory rows, numbered from `first` on: an arm less each of others, (name, what the page says)."""
    place = OUT * (setting == "hard")
    return [Row(number, "exploratory", question + text + place, setting, arm, other, "held out",
                EXPLORED, kind)
            for number, (other, text) in enumerate(against, first)]


ROWS = (
    Row(1, "primary", "real model: ExGRPO − on-policy", "real", "exgrpo", "on_policy"),
    Row(2, "primary", "hard: ExGRPO − on-policy" + OUT, "hard", "exgrpo", "on_policy", "held out"),
    Row(3, "secondary", "real model: the same on the held-out kind", "real", "exgrpo", "on_policy",
        "held out"),
    Row(4, "secondary", "hard: ExGRPO − revisiting only" + OUT, "hard", "exgrpo", "revisiting",
        "held out"),
    Row(5, "secondary", "real model: ExGRPO − revisiting only", "real", "exgrpo", "revisiting", units=4),
    Row(6, "secondary", "real model: shaping − none", "real", "exgrpo", "no_shaping", units=4),
    Row(7, "secondary", "weak: runs that escape (Pass@1 above 0.1)", "weak", "exgrpo", "on_policy",
        kind="escapes"),
    Row(8, "secondary", "hard, base models: low entropy tells valid from flawed right answers of a question "
        "(AUC − 0.5)", "hard", "base", "base", kind="auc"),
    *explored(9, "snowball: right responses that only restate the sum, share of them; ExGRPO − ", [
        ("on_policy", "on-policy"), ("highest_entropy", "highest entropy"), ("random_star", "random o*")],
        setting="snowball", kind="restated"),
    *explored(12, "hard: ExGRPO − ", [
        ("random_star", "random o*"), ("uniform", "uniform selection"), ("beta_003", "β = 0.03"),
        ("beta_03", "β = 0.3")]),
    Row(16, "secondary", "hard: ExGRPO − on-policy, trained", "hard", "exgrpo", "on_policy"),
    *explored(17, "hard: ExGRPO − ", [
        ("beta_1", "β = 1"), ("dynamic", "dynamic sampling at equal generated tokens"), ("mu_25", "μ = 0.25"),
        ("on_policy_retiring", "on-policy with retirement and without clip")]),
    *explored(21, "hard, twice the learning rate: ExGRPO − ", [("on_policy_fast", "on-policy")], arm="fast"),
    *explored(22, "hard, half the learning rate: ExGRPO − ", [("on_policy_slow", "on-policy")], arm="slow"),
    *explored(23, "hard, as many groups with signal in each: Medium only − ", [("hardest", "Hard only")],
              arm="medium"),
    Row(24, "exploratory", "easy, one base model: ExGRPO − on-policy", "easy", "exgrpo", "on_policy",
        units=3),
    Row(25, "exploratory", "easy, one base model: ExGRPO − on-policy" + OUT, "easy", "exgrpo", "on_policy",
        "held out", units=3),
)

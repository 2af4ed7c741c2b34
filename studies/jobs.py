"""The training runs and sampling passes behind the studies: what they are and where they are kept; pool.py runs them.

A run is a set of knobs of `train.py` and a seed. It is made once, in `studies/cache/<hash of knobs and seed>/`, by the
ordinary command line, and shared by every study that asks for it; the same command continues what was interrupted.
What the studies need of a finished run is its record, `studies/results/runs/NAME-SEED.json.gz`, which is committed:
numbers and pictures can be made again without training. Runs with equal seeds are paired: same base model, same stream of
fresh questions, same seeds of the samples, same tests.
"""

import dataclasses
import gzip
import hashlib
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from config import Config
from worlds.arithmetic import World

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / "studies" / "cache"
RECORDS = ROOT / "studies" / "results" / "runs"
DIGITS = 5  # significant digits of a record's numbers
WEAK_STEPS = 500  # pretraining steps of the weak base model of fig4, which guesses (studies/README.md); the usual one has 1500


@dataclass(frozen=True)
class Budget:
    """What every run of every study gets: fixed once."""

    steps: int
    eval_every: int
    eval_questions: int  # of each of the two test sets
    sampled_questions: int  # of a sampling pass, with K responses each

    @property
    def knobs(self) -> dict:
        return {"steps": self.steps, "eval_every": self.eval_every, "eval_questions": self.eval_questions}


FULL = Budget(steps=120, eval_every=10, eval_questions=400, sampled_questions=800)  # 3 to 5 minutes on one core
QUICK = Budget(steps=32, eval_every=8, eval_questions=100, sampled_questions=200)

WEAK = {"base_steps": WEAK_STEPS}
GRADED = {"reward": "worlds.arithmetic:graded_reward", "model": "{world}/model", "train_files": ["{graded}/train.jsonl"],
          "val_files": ["{graded}/test.jsonl", "{graded}/ood.jsonl"]}

RUNS = {  # name -> knobs that differ from the defaults of train.py
    "exgrpo": {},
    "on_policy": {"rho": 0.0},
    # Masked GRPO (Eq. 14), with K = 8: Easy is k = 6, 7; Medium k = 3, 4, 5; Hard k = 1, 2
    "easy": {"rho": 0.0, "alpha_low": 0.75},
    "medium": {"rho": 0.0, "alpha_low": 0.3, "alpha_high": 0.7},
    "hard": {"rho": 0.0, "alpha_high": 0.25},
    # Table 6
    "no_question_selection": {"question_selection": "uniform"},
    "no_trajectory_selection": {"trajectory_selection": "random"},
    "no_selection": {"question_selection": "uniform", "trajectory_selection": "random"},
    "highest_entropy": {"trajectory_selection": "highest_entropy"},
    "no_shaping": {"shaping": False},
    "no_importance_correction": {"importance_correction": False},
    "rho_25": {"rho": 0.25},
    "rho_75": {"rho": 0.75},
    # Table 3
    "sigma_05": {"sigma": 0.5},
    "sigma_15": {"sigma": 1.5},
    "mu_25": {"mu": 0.25},
    "accuracy_scale": {"sigma_unit": "accuracy"},
    # Table 7, Sec. 5.3, the official selection rule, the shaping
    "reinstate": {"reinstate_every": 25},
    "on_policy_graded": {"rho": 0.0, **GRADED},
    "exgrpo_graded": {"difficulty": "spread", **GRADED},
    "official": {"trajectory_selection": "official"},
    "beta_003": {"beta": 0.03},
    "beta_03": {"beta": 0.3},
    "beta_1": {"beta": 1.0},
    # Fig. 4: replay from the start, as the paper does for Llama-3.1-8B
    "on_policy_weak": {"rho": 0.0, **WEAK},
    "exgrpo_weak": {"start_threshold": -1.0, **WEAK},
    # not in the paper: a GPU computes in bfloat16
    "bfloat16": {"dtype": "bfloat16", "rollout_dtype": "bfloat16", "max_drift": 0.05},
    # the first third of on_policy: the model whose responses are judged in Fig. 1b
    "on_policy_early": {"rho": 0.0, "share_of_steps": 1 / 3},
}
SAMPLINGS = {"base": None, "early": "on_policy_early"}  # name -> the run whose model is sampled; None: the base model


@dataclass(frozen=True)
class Job:
    """A training run, or a sampling pass, with one seed."""

    name: str
    seed: int
    budget: Budget
    sampling: bool = False

    @property
    def knobs(self) -> dict:
        """What makes this job different from any other one: the cache is keyed by it."""
        if self.sampling:
            needs = self.needs.knobs if self.needs else None
            return {"sampling": self.name, "model": needs, "questions": self.budget.sampled_questions, "seed": self.seed}
        knobs = {**self.budget.knobs, **RUNS[self.name], "seed": self.seed}
        knobs["steps"] = round(knobs["steps"] * knobs.pop("share_of_steps", 1))
        return knobs

    @property
    def needs(self) -> "Job | None":
        """The run that has to be there first."""
        source = SAMPLINGS[self.name] if self.sampling else None
        return Job(source, self.seed, self.budget) if source else None

    @property
    def directory(self) -> Path:
        return CACHE / hashlib.sha256(json.dumps(self.knobs, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def record_file(self) -> Path:
        """Where its numbers are kept: with the repository if the budget is the full one, else beside the run."""
        return (RECORDS if self.budget == FULL else self.directory) / f"{self.name}-{self.seed}.json.gz"

    @property
    def done(self) -> bool:
        """Whether its numbers are there; ValueError where other defaults than today's made them."""
        if not self.record_file.exists():
            return False
        record = self.record()
        if changed := changes(record["recipe"], recipe(), self.knobs):
            raise ValueError(f"{self.record_file} was made with other defaults: {changed}. Run it again with --fresh.")
        return record["knobs"] == self.knobs

    @property
    def made(self) -> bool:
        """Whether it has run to its end on this machine, so that its model is here too."""
        return (self.directory / "result.json").exists()

    @property
    def size(self) -> int:
        """Its length for the progress bar, in training steps."""
        return 20 if self.sampling else self.knobs["steps"]

    def progress(self) -> int:
        """How much of `size` has run."""
        if self.made:
            return self.size
        file = self.directory / "metrics.jsonl"
        return min(self.size, max(0, file.read_text().count("\n") - 1)) if file.exists() else 0

    def record(self) -> dict:
        """The finished job: its knobs, the defaults behind them, seconds of one core, and `rows` or `result`."""
        text = gzip.decompress(self.record_file.read_bytes()).decode()
        return json.loads(text.replace('"arithmetic:', '"worlds.arithmetic:'))  # its name when the first records were made

    def rows(self) -> list[dict]:
        """The finished run's metrics, a row a step; row 0 is the validation before training."""
        return self.record()["rows"]

    def result(self) -> dict:
        """What the finished sampling pass has found."""
        return self.record()["result"]

    @property
    def seconds(self) -> float:
        """Wall time spent on it, on one core."""
        return self.record()["seconds"]

    def command(self, places: dict[str, str]) -> list[str]:
        """The command line; `places` fills in {world} and {graded}."""
        if self.sampling:
            model = f"{self.needs.directory}/model" if self.needs else "{world}/model".format(**places)
            return [sys.executable, "-m", "studies.sampling", "--model", model, "--world", places["world"], "--out",
                    str(self.directory), "--questions", str(self.budget.sampled_questions), "--seed", str(self.seed)]
        flags = []
        for name, value in self.knobs.items():
            values = value if isinstance(value, list) else [value]
            flags += [f"--{name}", *(str(v).format(**places) for v in values)]
        return [sys.executable, "train.py", *flags, "--run_dir", str(self.directory), "--keep", "1", "--resume", "True"]

    # ---- bookkeeping --------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the directory and note what the job is; ValueError where what lies there was made by another recipe."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._write({"seconds": 0.0, **self._note(), "name": self.name, "knobs": self.knobs, "recipe": recipe()})

    def finish(self, seconds: float) -> None:
        """Add to the time spent; once it has run to its end, write its record and drop the checkpoints."""
        note = self._note()
        note["seconds"] = round(note["seconds"] + seconds, 3)
        self._write(note)
        if self.made:
            if self.sampling:
                note["result"] = json.loads((self.directory / "result.json").read_text())
            else:
                note["rows"] = [json.loads(line) for line in (self.directory / "metrics.jsonl").read_text().splitlines()]
            self.record_file.parent.mkdir(parents=True, exist_ok=True)
            _replace(self.record_file, gzip.compress(json.dumps(_rounded(note)).encode(), mtime=0))
            shutil.rmtree(self.directory / "checkpoints", ignore_errors=True)

    def forget(self) -> None:
        """Remove its record and its directory, so that it is made again."""
        self.record_file.unlink(missing_ok=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _note(self) -> dict:
        file = self.directory / "job.json"
        note = json.loads(file.read_text()) if file.exists() else {}
        if changed := changes(note.get("recipe", {}), recipe(), self.knobs):
            raise ValueError(f"{self.directory} ({self.name}, seed {self.seed}) was made with other defaults: {changed}. "
                             "Remove it, and it is made again.")
        return note

    def _write(self, note: dict) -> None:
        _replace(self.directory / "job.json", json.dumps(note, indent=1).encode())


def _replace(file: Path, content: bytes) -> None:
    """Write a file in one step, so that no reader sees half of it."""
    aside = file.with_suffix(".tmp")
    aside.write_bytes(content)
    aside.replace(file)


def _rounded(value):
    """The same JSON value with DIGITS significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: _rounded(v) for name, v in value.items()}
    return [_rounded(v) for v in value] if isinstance(value, list) else value


def recipe() -> dict:
    """The defaults that a job's knobs leave unsaid, as plain JSON values."""
    return json.loads(json.dumps({"config": dataclasses.asdict(Config()), "world": dataclasses.asdict(World())}))


def changes(old: dict, new: dict, knobs: dict) -> dict:
    """{name: [then, now]} of defaults that differ and that `knobs` does not set. Knobs added since count for nothing."""
    pairs = [(name, value, new[part].get(name)) for part in old for name, value in old[part].items()]
    return {name: [then, now] for name, then, now in pairs if then != now and name not in knobs}

"""The training runs and sampling passes behind the studies: what they are, where they are kept.

A run is a set of knobs of `train.py` and a seed. It is made once, in `studies/cache/<hash of knobs and
seed>/`, by the ordinary command line, and shared by every study that asks for it; the same command continues
what was interrupted. Runs with equal seeds are paired: same base model, same stream of fresh questions, same
seeds of the samples, same tests.
"""

import hashlib
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from studies import records

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / "studies" / "cache"
RECORDS = ROOT / "studies" / "results" / "runs"


@dataclass(frozen=True)
class Budget:
    """What every run of every study gets: fixed once."""

    steps: int
    eval_every: int
    eval_questions: int  # of each of the two test sets
    sampled_questions: int  # of a sampling pass, with K responses each


FULL = Budget(steps=120, eval_every=10, eval_questions=400,
              sampled_questions=800)  # 3 to 5 minutes on one core
QUICK = Budget(steps=32, eval_every=8, eval_questions=100, sampled_questions=200)

WEAK = {"world": "weak"}
GRADED = {"reward": "worlds.arithmetic:graded_reward", "model": "{world}/model",
          "train_files": ["{graded}/train.jsonl"], "val_files": ["{graded}/test.jsonl", "{graded}/ood.jsonl"]}

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
    "bfloat16": {"dtype": "bfloat16", "max_drift": 0.05},
    # the first third of on_policy: the model whose responses are judged in Fig. 1b
    "on_policy_early": {"rho": 0.0, "share_of_steps": 1 / 3},
}
# name -> the run whose model is sampled; None: the base model
SAMPLINGS = {"base": None, "early": "on_policy_early"}


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
            model = self.needs.knobs if self.needs else None
            questions = self.budget.sampled_questions
            return {"sampling": self.name, "model": model, "questions": questions, "seed": self.seed}
        budget = {name: getattr(self.budget, name) for name in ("steps", "eval_every", "eval_questions")}
        knobs = {**budget, **RUNS[self.name], "seed": self.seed}
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

    def command(self, places: dict[str, str]) -> list[str]:
        """The command line; `places` fills in {world} and {graded}."""
        if self.sampling:
            model = f"{self.needs.directory}/model" if self.needs else f"{places['world']}/model"
            return [sys.executable, "-m", "studies.sampling", "--model", model, "--world", places["world"],
                    "--out", str(self.directory), "--questions", str(self.budget.sampled_questions),
                    "--seed", str(self.seed)]
        flags = []
        for name, value in self.knobs.items():
            values = value if isinstance(value, list) else [value]
            flags += [f"--{name}", *(str(v).format(**places) for v in values)]
        places = ["--run_dir", str(self.directory), "--keep", "1", "--resume", "True"]
        return [sys.executable, "train.py", *flags, *places]

    # ---- what is there of it ------------------------------------------------------------------------

    @property
    def record_file(self) -> Path:
        """Where its numbers are kept: with the repository if the budget is full, else beside the run."""
        return (RECORDS if self.budget == FULL else self.directory) / f"{self.name}-{self.seed}.json.gz"

    def record(self) -> dict:
        """Its numbers, once it is done: `rows` of metrics, from before training on, or a `result`."""
        return records.read(self.record_file)

    @property
    def done(self) -> bool:
        """Whether its numbers are there; ValueError where today's code made them with other defaults."""
        if not self.record_file.exists():
            return False
        record = self.record()
        changed = records.changes(record["recipe"], self.knobs)
        if changed and record["edition"] == records.EDITION:
            raise ValueError(f"{self.record_file} was made with other defaults: {changed}. "
                             "Run it again with --fresh.")
        return record["knobs"] == self.knobs

    @property
    def made(self) -> bool:
        """Whether it has run to its end on this machine, so that its model is here too."""
        return (self.directory / "result.json").exists()

    def prepare(self) -> None:
        """Make the directory and note what the job is; ValueError where another recipe's work lies there."""
        self.directory.mkdir(parents=True, exist_ok=True)
        about = {"name": self.name, "knobs": self.knobs, "edition": records.EDITION,
                 "recipe": records.recipe()}
        self._write({"seconds": 0.0} | self._note() | about)

    def finish(self, seconds: float) -> None:
        """Add to the time spent; once it has run to its end, write its record and drop the checkpoints."""
        note = self._note()
        note["seconds"] = round(note["seconds"] + seconds, 3)
        self._write(note)
        if not self.made:
            return
        if self.sampling:
            note["result"] = json.loads((self.directory / "result.json").read_text())
        else:
            lines = (self.directory / "metrics.jsonl").read_text().splitlines()
            note["rows"] = [json.loads(line) for line in lines]
        records.write(self.record_file, note)
        shutil.rmtree(self.directory / "checkpoints", ignore_errors=True)

    def forget(self) -> None:
        """Remove its record and its directory, so that it is made again."""
        self.record_file.unlink(missing_ok=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _note(self) -> dict:
        file = self.directory / "job.json"
        if not file.exists():
            return {}
        note = json.loads(file.read_text())
        changed = records.changes(note["recipe"], self.knobs)
        if note.get("edition") != records.EDITION or changed:
            made = f"with other defaults: {changed}" if changed else "by an earlier edition of the code"
            raise ValueError(f"{self.directory} ({self.name}, seed {self.seed}) was made {made}. "
                             "Remove it, and it is made again.")
        return note

    def _write(self, note: dict) -> None:
        records.replace(self.directory / "job.json", json.dumps(note, indent=1).encode())

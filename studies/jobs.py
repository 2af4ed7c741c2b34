"""The runs and sampling passes behind the rows: what they are, what is kept of them.

A job is made once, in `studies/cache/<hash of what makes it>/`, and shared by every row that asks for it; the
same command continues what was interrupted. Two arms of a unit are paired: same base model, same stream of
fresh questions, same seeds of the samples, same tests.
"""

import hashlib
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from studies import records
from studies.protocol import ARMS, SETTINGS, Row

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / "studies" / "cache"
RECORDS = ROOT / "studies" / "results" / "runs"
PROGRAMS = {"base": "studies.sampling", "snowball": "studies.snowball",
            **dict.fromkeys(("dynamic", "medium", "hardest"), "studies.dynamic")}


@dataclass(frozen=True)
class Job:
    """One unit of an arm of a setting; the arm "base" is a sampling pass of the untrained model."""

    setting: str
    arm: str
    unit: int
    quick: bool = False
    lr: float = 0.0  # of a tuning run; 0: the setting's

    @property
    def name(self) -> str:
        tuned = f"-lr{self.lr:g}" if self.lr else ""
        return f"{self.setting}-{self.arm}{tuned}-{self.unit}"

    @property
    def knobs(self) -> dict:
        """The knobs of `train.py` that make this job what it is: the cache is keyed by them."""
        setting = SETTINGS[self.setting]
        knobs = setting.knobs | ARMS.get(self.arm, {}) | dict.fromkeys(setting.unit_knobs, self.unit)
        if self.lr:
            knobs["lr"] = self.lr
        if self.quick:
            knobs |= setting.quick
        return setting.every(knobs["steps"]) | knobs

    @property
    def directory(self) -> Path:
        own = self.program != "studies.unit" and self.program  # False for most jobs
        key = json.dumps([own, self.knobs], sort_keys=True)
        return CACHE / hashlib.sha256(key.encode()).hexdigest()[:16]

    @property
    def program(self) -> str:
        """The module that does this job: of its arm, or of its setting, or the one that most have."""
        return PROGRAMS.get(self.arm) or PROGRAMS.get(self.setting) or "studies.unit"

    @property
    def command(self) -> list[str]:
        """The program that does this job, from wherever it was interrupted."""
        flags = [str(word) for name, value in self.knobs.items()
                 for word in (f"--{name}", *(value if isinstance(value, list) else [value]))]
        return [sys.executable, "-m", self.program, "--run_dir", str(self.directory), *flags]

    # ---- what is there of it ------------------------------------------------------------------------

    @property
    def record_file(self) -> Path:
        """Where its numbers are kept: with the repository, or for a trial run beside it."""
        return (self.directory if self.quick else RECORDS) / f"{self.name}.json.gz"

    @property
    def made(self) -> bool:
        """Whether the program has ended well."""
        return (self.directory / "numbers.json").exists()

    @property
    def done(self) -> bool:
        """Whether its numbers are there; ValueError where they were made with other settings."""
        if not self.record_file.exists():
            return False
        self.check(records.read(self.record_file), self.record_file)
        return True

    def record(self) -> dict:
        """Its numbers, once it is done: `rows` of metrics, from before training on, and a `result`."""
        return records.read(self.record_file)

    def prepare(self) -> None:
        """Make the directory and note what the job is; ValueError where another recipe's work lies there."""
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "numbers.json").unlink(missing_ok=True)  # of a run whose record was removed
        about = {"name": self.name, "knobs": self.knobs, "edition": records.EDITION,
                 "recipe": records.recipe(self.knobs)}
        self._write({"seconds": 0.0} | self._note() | about)

    def finish(self, seconds: float) -> None:
        """Add to the time spent; once it has ended, write its record and drop model and checkpoints."""
        note = self._note()
        note["seconds"] = round(note["seconds"] + seconds, 3)
        self._write(note)
        if not self.made:
            return
        note["result"] = json.loads((self.directory / "numbers.json").read_text())
        if self.arm != "base":
            lines = (self.directory / "metrics.jsonl").read_text().splitlines()
            last = note["result"].get("ended", float("inf"))  # what an error undid is left out
            note["rows"] = [row for row in map(json.loads, lines) if row.get("step", 0) <= last]
        records.write(self.record_file, note)
        self._write(self._note() | {"seconds": 0.0})  # if the record is removed, it is made again
        for name in ("checkpoints", "model"):
            shutil.rmtree(self.directory / name, ignore_errors=True)
        (self.directory / "failed").unlink(missing_ok=True)  # says where an error stopped this run

    def _note(self) -> dict:
        file = self.directory / "job.json"
        note = json.loads(file.read_text()) if file.exists() else {}
        if note:
            self.check(note, self.directory)
        return note

    def check(self, note: dict, place: Path) -> None:
        """ValueError where a note or a record was made by another edition, or with other settings."""
        changed = records.other(note["knobs"], self.knobs) | records.changes(note["recipe"], self.knobs)
        if note["edition"] != records.EDITION or changed:
            made = f"with other settings: {changed}" if changed else "by an earlier edition of the code"
            raise ValueError(f"{place} ({self.name}) was made {made}. Remove it, and it is made again.")

    def _write(self, note: dict) -> None:
        records.replace(self.directory / "job.json", json.dumps(note, indent=1).encode())


def jobs_of(row: Row, quick: bool = False) -> list[Job]:
    """Every job that a row reads, unit by unit; of a trial run one unit."""
    units = range(1 if quick else row.units)
    return [Job(row.setting, arm, unit, quick) for unit in units for arm in row.arms]

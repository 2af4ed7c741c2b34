"""The studies' machinery: protocol and data agree, jobs run once and are paired, the page follows records."""

import gzip
import io
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest

from config import Config, parse_config
from studies import __main__ as run
from studies import easy, jobs, looked, page, pool, real_model, records, snowball, taught
from studies import restated as restated_sums
from studies import unit as one_unit
from studies.jobs import Job, jobs_of
from studies.pool import run_jobs
from studies.protocol import ARMS, ENDS, ROWS, SETTINGS
from studies.unit import at_ends, base_hash, ends, note_failure
from worlds import arithmetic
from worlds.arithmetic import PRESETS, draw_sets

STUDIES = Path(page.__file__).parent


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(jobs, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(pool, "POLL_SECONDS", 0.02)
    return tmp_path / "cache"


# ---- what was written down --------------------------------------------------------------------------------


def test_the_protocol_says_what_the_code_asks():
    """Every primary and secondary row stands in PROTOCOL.md with its question and, where given, its units."""
    cells = [[c.strip() for c in line.strip("|").split("|")]
             for line in (STUDIES / "PROTOCOL.md").read_text().splitlines() if re.match(r"\| \d", line)]
    written = {int(first): rest for first, *rest in cells}
    rows = [row for row in ROWS if row.family != "exploratory"]
    assert {row.number: row.question for row in rows} == {n: rest[0] for n, rest in written.items()}
    assert all(written[row.number][1] == str(row.units) for row in rows if row.family == "secondary")
    assert [row.number for row in ROWS] == list(range(1, len(ROWS) + 1))


def test_every_run_is_a_command_that_train_py_takes(cache, monkeypatch):
    """Each job's flags parse into the configuration that its knobs name."""
    monkeypatch.setattr(Path, "exists", lambda _: True)  # the real model's questions are made by make smollm
    for setting in SETTINGS:
        for arm in ARMS if setting == "hard" else [arm for arm in ARMS if arm != "dynamic"]:
            job = Job(setting, arm, 3)
            config = parse_config(job.command[3:])
            own = "dynamic" if arm in ("dynamic", "medium", "hardest") else "snowball"
            program = f"studies.{own}" if own == "dynamic" or setting == "snowball" else "studies.unit"
            assert job.command[2] == program and config.run_dir == str(job.directory)
            for knob in set(job.knobs) - {"config"}:
                assert getattr(config, knob) == job.knobs[knob], (job.name, knob)
            saved = [*range(0, config.steps + 1, config.save_every)][-config.keep :]
            assert config.seed == 3 and {round(e * config.steps) for e in ENDS} <= set(saved)
    assert Job("hard", "base", 3).command[2] == "studies.sampling"


def test_the_cache_tells_jobs_apart(cache):
    """Every setting, arm, unit, rate and size has a directory and a record of its own."""
    every = [Job(s, a, u, quick, lr) for s in SETTINGS for a in [*ARMS, "base"] for u in (0, 1)
             for quick in (False, True) for lr in (0.0, 1e-5) if not lr or "lr" not in ARMS.get(a, {})]
    assert len({job.directory for job in every}) == len({job.record_file for job in every}) == len(every)


def test_two_arms_of_a_unit_differ_in_nothing_else(cache):
    """The same base model and seed; a tuning unit is no unit of a row."""
    a, b = Job("hard", "exgrpo", 2).knobs, Job("hard", "revisiting", 2).knobs
    assert {n: v for n, v in b.items() if a.get(n) != v} == {"beta": 1e-6}
    assert (a["world_seed"], a["seed"]) == (2, 2)
    units = {job.unit for row in ROWS for job in jobs_of(row)}
    assert not units & {job.unit for job in run.tuning()} and units == set(range(8))


# ---- jobs -------------------------------------------------------------------------------------------------

SCRIPT = """
import json, pathlib, signal, sys, time
out, name = pathlib.Path(sys.argv[1]), sys.argv[2]
with open(out / "metrics.jsonl", "a") as file:
    file.write("{}\\n")
(out.parent / "order").open("a").write(name + "\\n")
def stop(*_):
    (out / "saved").touch()
    sys.exit(0)
signal.signal(signal.SIGINT, stop)
(out / "up").touch()
if name == "slow" and not (out / "saved").exists():
    time.sleep(60)
if name == "broken":
    sys.exit(3)
(out / "numbers.json").write_text("{}")
"""


@pytest.fixture
def scripted(cache, monkeypatch):
    """Jobs whose process is a short script; `uniform` is broken, `beta_1` slow."""
    def command(job):
        name = {"beta_1": "slow", "uniform": "broken"}.get(job.arm, job.arm)
        return [sys.executable, "-c", SCRIPT, str(job.directory), name]

    monkeypatch.setattr(Job, "command", property(command))
    return cache


def test_jobs_run_once_and_failures_do_not_stop_the_others(scripted):
    """In order; a failure is reported and the rest is done; what is done has a record and no checkpoints."""
    todo = [Job("hard", arm, 0) for arm in ("base", "uniform", "exgrpo")]
    (todo[2].directory / "checkpoints").mkdir(parents=True)
    (todo[2].directory / "failed").touch()
    failed = run_jobs(todo, 1)
    assert {job.arm: "ended with 3" in why for job, why in failed.items()} == {"uniform": True}
    assert (scripted / "order").read_text().split() == ["base", "broken", "exgrpo"]
    assert todo[0].done and todo[2].done and not (todo[2].directory / "checkpoints").exists()
    assert not (todo[2].directory / "failed").exists()
    assert todo[2].record()["rows"] == [{}] and todo[2].record()["seconds"] > 0


def test_ctrl_c_lets_a_run_save_and_the_next_call_continues(scripted, monkeypatch):
    """The process is asked to save, its time is kept, KeyboardInterrupt goes on; the second call ends it."""
    job = Job("hard", "beta_1", 0)

    def interrupt(seconds):
        time.sleep(0.02)
        if (job.directory / "up").exists():
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pool, "time", SimpleNamespace(sleep=interrupt, monotonic=time.monotonic))
        run_jobs([job], 1)
    assert (job.directory / "saved").exists() and not job.done
    before = json.loads((job.directory / "job.json").read_text())["seconds"]
    assert before > 0 and run_jobs([job], 1) == {} and job.done and job.record()["seconds"] > before
    spent = json.loads((job.directory / "job.json").read_text())["seconds"]
    assert spent == 0  # were it made again


def test_what_ended_on_its_own_does_not_keep_the_others_from_saving(scripted):
    """One process was waited for already, another lives on: that one is told to save, both are finished."""
    ended, slow = Job("hard", "exgrpo", 0), Job("hard", "beta_1", 0)
    running = {}
    for job in (ended, slow):
        job.prepare()
        running[pool._start(job)] = job, time.monotonic()
    [*running][0].wait()
    while not (slow.directory / "up").exists():
        time.sleep(0.02)
    before = signal.getsignal(signal.SIGINT)
    pool._stop(running)
    assert (slow.directory / "saved").exists() and ended.done and not slow.done
    assert signal.getsignal(signal.SIGINT) == before


def test_what_an_error_undid_is_no_part_of_a_record(cache):
    """A run that ended at step 2 had done a third; a whole one keeps all of its rows."""
    for ended, kept in (({"ended": 2}, [0, 1, 2]), ({}, [0, 1, 2, 3])):
        job = Job("hard", "exgrpo", 0)
        job.prepare()
        (job.directory / "numbers.json").write_text(json.dumps(ended))
        (job.directory / "metrics.jsonl").write_text("".join(f'{{"step": {s}}}\n' for s in range(4)))
        job.finish(1.0)
        assert [row["step"] for row in job.record()["rows"]] == kept


def test_a_record_stands_for_its_run_and_knows_its_recipe(scripted, monkeypatch):
    """With the run itself gone its record is enough; one of other settings or another edition is refused."""
    job = Job("hard", "exgrpo", 0)
    run_jobs([job], 1)
    shutil.rmtree(job.directory)
    assert job.done
    recipe = records.recipe(job.knobs)
    for part, change in (("config", {"clip_eps": 7.0, "lr": 7.0, "gone": 1}), ("worlds", {"hard": None})):
        other = recipe | {part: recipe[part] | change}
        with monkeypatch.context() as patch:
            patch.setattr(records, "recipe", lambda _, other=other: other)
            with pytest.raises(ValueError, match="'(clip_eps|world hard)'.*Remove it") as error:
                assert job.done
        assert "'lr'" not in str(error.value)  # the job sets it
    for change in ({"lr": 7e-5}, {"steps": 120}, {"beta": 7.0}):
        with monkeypatch.context() as patch:
            patch.setattr(Job, "knobs", job.knobs | change)
            with pytest.raises(ValueError, match=f"'{[*change][0]}'.*Remove it"):
                assert job.done
    monkeypatch.setattr(records, "EDITION", records.EDITION + 1)
    with pytest.raises(ValueError, match="earlier edition"):
        assert job.done


def test_a_constant_added_to_the_world_stood_at_its_default():
    """Records of before `lost`: hard leaves it alone, so they stand; weak sets it, so they do not."""
    for world, differs in (("hard", False), ("weak", True)):
        before = records.recipe({"world": world})
        del before["worlds"][world]["lost"]
        assert list(records.changes(before, {"world": world})) == [f"world {world}"] * differs


def test_a_change_of_the_config_file_is_noticed(tmp_path):
    """What a job's file sets belongs to its recipe: another value is a change, unless a knob sets it."""
    file = tmp_path / "task.yaml"
    knobs = {"config": str(file), "steps": 4}
    file.write_text("lr: 1.0e-5\nsteps: 10\n")
    before = records.recipe(knobs)
    file.write_text("lr: 2.0e-5\nsteps: 20\n")
    assert records.changes(before, knobs) == {"lr": [1e-5, 2e-5]}


def test_numbers_of_a_run_whose_record_was_removed_count_for_nothing(scripted):
    """A job that is made anew does not end with what an earlier one left in its directory."""
    job = Job("hard", "uniform", 0)  # its process fails
    job.directory.mkdir(parents=True)
    (job.directory / "numbers.json").write_text("{}")
    assert list(run_jobs([job], 1)) == [job] and not job.done


def test_a_units_ends_are_steps_of_the_run(tmp_path):
    """Not the checkpoints of an interrupt; the last three of a run that stopped; a lost one is an error."""
    for step in (216, 228, 231, 234, 240):
        (tmp_path / f"checkpoints/step-{step:07}").mkdir(parents=True)
    assert [int(path.name[-3:]) for path in at_ends(tmp_path, 240, 12)] == [216, 228, 240]
    assert [int(path.name[-3:]) for path in at_ends(tmp_path, 400, 12)] == [216, 228, 240]
    assert [int(path.name[-3:]) for path in at_ends(tmp_path, 400, 9)] == [216, 234, 240]  # 240: its last
    (tmp_path / "checkpoints/step-0000228").rmdir()
    with pytest.raises(KeyError):
        at_ends(tmp_path, 240, 12)


def test_an_error_stops_a_run_for_good_the_second_time_at_one_place(tmp_path):
    """Not the first time, not before a checkpoint, and not where the run has come further in between."""
    assert not note_failure(tmp_path) and not note_failure(tmp_path)  # no checkpoint: nothing to score
    for step, again in ((12, [False]), (24, [False, True])):
        (tmp_path / f"checkpoints/step-{step:07}").mkdir(parents=True)
        assert [note_failure(tmp_path) for _ in again] == again


@pytest.fixture
def started(tmp_path, monkeypatch):
    """A run directory with a checkpoint, named on the command line; signals are put back afterwards."""
    (tmp_path / "checkpoints/step-0000012").mkdir(parents=True)
    monkeypatch.setattr(sys, "argv", ["unit", "--run_dir", str(tmp_path)])
    monkeypatch.setattr(one_unit, "with_built_in_world", lambda config: config)  # minutes, if it is not there
    monkeypatch.setattr(one_unit, "base_hash", lambda model: "")
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield tmp_path
    for number, handler in before.items():
        signal.signal(number, handler)


TRAINS = "open(sys.argv[2] + '/metrics.jsonl', 'a')"  # as the tracker does when all is up


@pytest.mark.parametrize("script, code, noted", [
    (f"{TRAINS}; sys.exit(1)", 1, True), ("sys.exit(1)", 1, False), (f"{TRAINS}; sys.exit(3)", 3, False),
    (f"{TRAINS}; time.sleep(0.5); os.kill(os.getppid(), signal.SIGINT); sys.exit(1)", 1, False),
    (f"{TRAINS}; time.sleep(0.5); os.kill(os.getppid(), signal.SIGTERM)", 130, False),
], ids=["error", "set-up", "killed", "Ctrl-C", "SIGTERM, saved"])
def test_only_an_error_of_its_own_is_noted(started, script, code, noted):
    """Not an interrupt, not what else ends a run, and not an error before anything was trained."""
    with pytest.raises(SystemExit) as left:
        one_unit.main(("-c", f"import os, signal, sys, time; {script}"))
    assert left.value.code == code and (started / "failed").exists() == noted


def test_a_run_that_another_process_trains_has_not_failed(started, monkeypatch):
    """Its lock is held, so training was refused."""
    monkeypatch.setattr(one_unit, "lock", Mock(side_effect=ValueError("is in use by process 7")))
    with pytest.raises(ValueError, match="in use"):
        one_unit.main(("-c", "import sys; sys.exit(1)"))
    assert not (started / "failed").exists()


def test_git_takes_records():
    """No pattern of .gitignore hides the place of the records."""
    ignored = subprocess.run(["git", "check-ignore", "-q", str(jobs.RECORDS / "hard-exgrpo-0.json.gz")],
                             cwd=jobs.ROOT).returncode
    assert ignored != 0  # 1: not ignored, 128: not a checkout


def test_records_keep_five_digits():
    """Numbers are rounded to significant digits, whatever they are nested in; integers and text stay."""
    assert records.rounded({"a": [0.000123456789, 123456], "b": "x"}) == {"a": [0.00012346, 123456], "b": "x"}


# ---- the page ---------------------------------------------------------------------------------------------


STEP = {"fresh/k=0": 1, "fresh/k=1": 0, "fresh/k=2": 0, "fresh/signal": 0, "reward/pass_at_1_fresh": 0.5,
        "replay/k=0": 0, "replay/k=1": 1, "replay/k=2": 1, "replay/from_k=1": 2, "replay/questions": 2,
        "rollout/tokens": 100, "time/step": 2.0, "replay/signal": 4, "replay/ratio": 1.5, "replay/ess": 0.5,
        "replay/gradient_share": 0.01, "loss/skipped": 1}  # of K = 2


@pytest.fixture
def made_up(cache):
    """Eight units of `hard`: ExGRPO ends 10 points above on-policy, give or take 2; two of its bases."""
    for unit in range(8):
        for arm, right in (("exgrpo", 60 + 2 * (unit % 2)), ("on_policy", 50)):
            counts = [4] * 4 * right + [0] * 4 * (100 - right)
            ends = {"arithmetic": [4, 0] * 200, "arithmetic-ood": counts}
            result = {"base": f"b{unit}", "samples": 4, "ends": dict.fromkeys("123", ends)}
            judged = {f"val/{name}/{source}": right / 100 for source in ("arithmetic", "arithmetic-ood")
                      for name in ("pass_at_1", "valid", "shortcut")}
            rows = [{"step": 0} | dict.fromkeys(judged, 0.1), STEP | {"step": 1} | judged]
            write(Job("hard", arm, unit), rows=rows, result=result)
        columns = {"question": [0, 0], "reward": [1, 1], "valid": [1, 0], "shortcut": [0, 1],
                   "entropy": [0.1, 0.2 + 0.01 * unit]}
        if unit < 2:
            write(Job("hard", "base", unit), result={"base": f"b{unit}", "columns": columns})
    return cache


def write(job: Job, **what) -> None:
    about = {"edition": records.EDITION, "recipe": records.recipe(job.knobs), "knobs": job.knobs}
    records.write(job.record_file, about | {"seconds": 60.0} | what)


def test_rows_are_decided_from_records(made_up):
    """Row 2: a mean of 11 points at Holm's first level; row 8 has two units; the others are not there yet."""
    decided = {result["row"]: result for result in page.decide()}
    assert set(decided) == {2, 8, 16} and decided[8]["mean"] == 0.5 and "verdict" not in decided[8]
    two = decided[2]
    assert two["mean"] == pytest.approx(0.11) and two["level"] == 0.975 and two["verdict"] == "better"
    assert two["minutes"] == 16 and len(two["values"]) == 8
    text = page.table(list(decided.values()), ("primary", "secondary"))
    assert "| 61.0, 50.0 | +11.0 ± 1.1 (97.5%) | 8 of 8 | better | 16 |" in text
    assert text.count("not run yet") == 6


def test_escapes_are_counted_in_pairs_of_all_right_answers_and_of_valid_chains(cache):
    """Three pairs: both above 0.1, ExGRPO alone, neither; by valid chains ExGRPO once, on-policy never."""
    shares = {"exgrpo": {"ends": (5, 5, 0), "valid": (5, 0, 0)},  # tenths
              "on_policy": {"ends": (5, 1, 1), "valid": (0, 0, 0)}}  # 0.1 is not above 0.1
    for arm, unit in product(shares, range(3)):
        right = {name: [4] * tenths[unit] + [0] * (10 - tenths[unit]) for name, tenths in shares[arm].items()}
        counts = {name: {"114": {"arithmetic": n, "arithmetic-ood": [4]}} for name, n in right.items()}
        val = {"val/pass_at_1/arithmetic": unit / 10, "val/pass_at_1/arithmetic-ood": 0.25}
        rows = [{"step": 0} | val, {"step": 1, "reward/pass_at_1_fresh": 0.1}]
        rows += [{"step": 2 + unit, "reward/pass_at_1_fresh": 0.2}] * (right["ends"][0] > 0)
        rows += [{"step": 40} | val]
        write(Job("weak", arm, unit), rows=rows, result={"samples": 4} | counts)
    [seven] = page.decide()
    assert seven["escapes"] == [1, 1, 0, 1] and seven["escapes_valid"] == [0, 1, 0, 2]
    assert table_of(looked.escapes())[1:] == [
        ["weak, base 0", "50.0 / 0.0 / 2 / 0.0 / 25.0", "50.0 / 50.0 / 2 / 0.0 / 25.0"],
        ["weak, base 1", "10.0 / 0.0 / 3 / 10.0 / 25.0", "50.0 / 0.0 / 3 / 10.0 / 25.0"],
        ["weak, base 2", "10.0 / 0.0 / 4 / 20.0 / 25.0", "0.0 / 0.0 / – / 20.0 / 25.0"]]
    text = page.table([seven], ("secondary",))
    assert "both 1, only ExGRPO 1, only on-policy 0, neither 1; by valid chains: both 0" in text


def test_a_curve_is_of_what_the_row_is_about():
    """Two trained sources of one and three questions, one held out; rows without a validation are left."""
    rows = [{"step": 0, "val/pass_at_1/sum": 1.0, "val/pass_at_1/gcd": 0.0, "val/pass_at_1/calculate": 0.7},
            *({"step": step, "loss/entropy": float(step)} for step in range(1, 25))]
    record = {"rows": rows, "result": {"ends": {"40": {"sum": [4], "gcd": [0, 1, 2], "calculate": [3]}}}}
    trained, held_out, escapes = (next(row for row in ROWS if row.number == n) for n in (1, 3, 7))
    assert [list(c) for c in page.curve(trained, record)] == [[0], [0.25]]
    assert [list(c) for c in page.curve(held_out, record)] == [[0], [0.7]]
    steps, means = page.curve(escapes, record)  # of two steps' entropy each
    assert steps == [*range(2, 25)] and list(means) == [step - 0.5 for step in steps]


def test_runs_that_ended_early_are_counted_and_exploratory_rows_show_their_units(made_up):
    """One run of row 2 ended at step 90; row 12 has one unit of two, row 4 one of eight: no interval."""
    job = Job("hard", "exgrpo", 5)
    write(job, rows=job.record()["rows"], result=job.record()["result"] | {"ended": 90})
    again = Job("hard", "exgrpo", 0).record()["result"]
    write(Job("hard", "random_star", 0), rows=[], result=again | {"ends": {"1": {"arithmetic-ood": [2]}}})
    write(Job("hard", "revisiting", 0), rows=[], result=again)
    decided = page.decide()
    text = page.table(decided, ("primary", "exploratory"))
    assert "| 8 of 8, ended early: 1 |" in text
    assert "| 60.0, 50.0 | +10.0 | 1 of 2 |" in text and "±" not in text.partition("random o*")[2]
    assert "| +0.0 | 1 of 8 | – | 2 |" in page.table(decided, ("secondary",))  # a minute each


@pytest.mark.parametrize("name, what", [("base", "began from different base models"),
                                         ("questions", "were asked others")])
def test_pairs_differ_in_their_arm_alone(made_up, name, what):
    """Two arms with different weights at the start, or other questions, are refused, not compared."""
    job = Job("hard", "exgrpo", 5)
    write(job, rows=[], result=job.record()["result"] | {name: "other"})
    with pytest.raises(ValueError, match=f"row 2, unit 5: the arms {what}"):
        page.decide()


def test_pairs_answer_alike_before_training(made_up):
    """One base and one seed, but another engine or other random numbers: refused as well."""
    job = Job("hard", "on_policy", 3)
    first, *rows = job.record()["rows"]
    write(job, rows=[first | {"val/pass_at_1/arithmetic": 0.2}, *rows], result=job.record()["result"])
    with pytest.raises(ValueError, match="row 2, unit 3: the arms answered otherwise before training"):
        page.decide()


def test_pairs_come_from_one_kind_of_processor(made_up):
    """As many tokens in the first step and another drift: refused; other tokens (row 18) are not."""
    refused = pytest.raises(ValueError, match="answered otherwise")
    allowed = nullcontext()
    for tokens, more, told in ((4029, {}, refused), (8000, {}, allowed),
                               (4029, {"dynamic/trained": 8}, allowed)):  # of other groups each
        for arm, first in (("exgrpo", (4029, 1.1e-7)), ("on_policy", (tokens, 1.2e-7))):
            job = Job("hard", arm, 3)
            untrained, *_ = job.record()["rows"]
            step = dict(zip(("rollout/tokens", "engine/drift"), first)) | {"step": 1} | more
            write(job, rows=[untrained, step], result=job.record()["result"])
        with told:
            page.numbers(ROWS[1])


def test_a_run_of_another_processor_is_one_in_vllms_eyes_too(monkeypatch, tmp_path):
    """With the variables of README vLLM takes its kernels for AVX2, and training goes through the same door;
    without them everything stays as it is."""
    from studies import processor

    begun = []
    monkeypatch.setattr(sys, "argv", ["unit", "--run_dir", str(tmp_path)])
    monkeypatch.setattr(one_unit, "check_base", lambda *_: None)
    monkeypatch.setattr(one_unit, "with_built_in_world", lambda config: config)
    monkeypatch.setattr(one_unit, "base_hash", lambda model: "")
    monkeypatch.setattr(one_unit.subprocess, "Popen", lambda command: begun.append(command) or 1 / 0)
    for asked in (False, True):
        for name in ("_is_avx512_supported", "_is_avx512_bf16_supported"):
            monkeypatch.setattr(processor.torch.cpu, name, lambda: "the processor's own")
        monkeypatch.setattr(processor, "ASKED", asked)
        with pytest.raises(ZeroDivisionError):
            one_unit.main()
        assert processor.torch.cpu._is_avx512_supported() == (False if asked else "the processor's own")
        assert processor.torch.cpu._is_avx512_bf16_supported() == (False if asked else "the processor's own")
    assert begun[0][1] == "train.py" and "processor.run()" in begun[1][2]


def test_another_base_is_refused_before_training(made_up, tmp_path):
    """A record of the same unit began from another base: no hours of training for a pair that is refused.
    A trial run, another unit and a directory without a note are none of its business."""
    note = {"name": "hard-random_star-3", "knobs": Job("hard", "random_star", 3).knobs}
    theirs = Job("hard", "exgrpo", 3).record()["result"]["base"]
    for changed, base, refused in (({}, "other", True), ({}, theirs, False), ({"steps": 6}, "other", False)):
        (tmp_path / "job.json").write_text(json.dumps(note | {"knobs": note["knobs"] | changed}))
        with pytest.raises(SystemExit, match="another kind of processor") if refused else nullcontext():
            one_unit.check_base(tmp_path, base)
    (tmp_path / "job.json").write_text(json.dumps(note | {"name": "hard-random_star-9"}))
    one_unit.check_base(tmp_path, "other")
    one_unit.check_base(tmp_path / "nowhere", "other")


def test_a_run_goes_on_with_its_kind_of_processor(monkeypatch, tmp_path):
    """Noted when it begins, refused once it was saved on another; what began without a note goes on, and what
    has ended, its checkpoints gone, may be made again anywhere."""
    def at(kind):
        monkeypatch.setattr(one_unit.torch.backends.cpu, "get_cpu_capability", lambda: kind)
        one_unit.check_processor(tmp_path / "run")

    at("AVX2")
    at("AVX512")  # nothing was saved
    (tmp_path / "run/metrics.jsonl").touch()
    at("AVX512")
    (tmp_path / "run/checkpoints/step-0000002").mkdir(parents=True)
    with pytest.raises(SystemExit, match="begun with AVX512, here it would go on with AVX2"):
        at("AVX2")
    (tmp_path / "run/processor").unlink()
    at("AVX2")
    at("AVX2")


def test_a_base_without_weights_is_named(tmp_path):
    """Not the hash of nothing, which would be another base."""
    with pytest.raises(SystemExit, match="no weights in .*smollm-ready"):
        base_hash(str(tmp_path))


def test_programs_of_their_own_replace_what_train_calls(monkeypatch):
    """The names that `dynamic` and `snowball` replace are looked up by algorithm 1; another is refused."""
    import train
    from studies import dynamic, processor

    replaced = {}
    monkeypatch.setattr(processor, "run", lambda **instead: replaced.update(instead))
    snowball.run()
    dynamic.run()
    assert set(replaced) == {"Experience", "roll_out", "step_metrics"}
    called = train.train.__code__.co_names + train.algorithm_1.__code__.co_names
    assert set(replaced) <= {*called}
    monkeypatch.undo()
    with pytest.raises(KeyError, match="rollout"):
        processor.run(rollout=None)


def test_the_units_of_a_row_stand_by_themselves_and_on_the_trained_kinds_too(made_up):
    """Row 2: 10 and 12 points by turns, ± 0.8938 by hand (spread 1.069, t 2.365, eight units). Revisiting is
    right in all of the trained kinds, ExGRPO in half; with a unit gone, no mean."""
    for unit in range(8):
        again = Job("hard", "exgrpo", unit).record()["result"]
        ends = dict.fromkeys("123", again["ends"]["1"] | {"arithmetic": [4, 4] * 200})
        write(Job("hard", "revisiting", unit), rows=[], result=again | {"ends": ends})
    two, four, eight, sixteen, trained = table_of(page.by_unit())[1:]
    assert two[1:3] == [", ".join(["+10.0", "+12.0"] * 4), "+11.0 ± 0.9"] and two[4] == "+11.0, +11.0"
    assert float(two[3]) < 1e-6 and four[2:] == ["+0.0 ± 0.0", "1", "+0.0, +0.0"]
    assert eight[1:] == ["+50.0, +50.0", "–", "–", "–"] and sixteen[0].startswith("16, ")
    name = "4, hard: ExGRPO − revisiting only, trained"
    assert trained == [name, ", ".join(["-50.0"] * 8), "-50.0 ± 0.0", "0", "-50.0, -50.0"]
    Job("hard", "revisiting", 7).record_file.unlink()
    assert table_of(page.by_unit())[-1][1:] == [", ".join(["-50.0"] * 7), "–", "–", "–"]


def test_nothing_is_decided_before_its_last_unit(made_up):
    """Seven of eight units, ten points ahead or more: they stand one by one, without interval and verdict."""
    Job("hard", "exgrpo", 7).record_file.unlink()
    two = next(result for result in page.decide() if result["row"] == 2)
    assert len(two["values"]) == 7 and two["level"] == 0.95 and "verdict" not in two
    assert "| +10.0, +12.0, +10.0, +12.0, +10.0, +12.0, +10.0 | 7 of 8 |" in page.table([two], ("primary",))


def test_the_page_is_written_between_its_marks(made_up, tmp_path):
    """The prose stays, the tables follow the records, a picture for each row; lost marks are an error."""
    copy = tmp_path / "README.md"
    shutil.copy(page.PAGE, copy)
    page.write(copy, tmp_path / "results")
    assert "| +11.0 ± 1.1 (97.5%) |" in copy.read_text() and "A sceptic needs no code" in copy.read_text()
    names = {path.name for path in (tmp_path / "results").iterdir()}
    assert names == {"row2.png", "row8.png", "row16.png"}
    copy.write_text("no marks")
    with pytest.raises(ValueError, match="lost its markers"):
        page.write(copy, tmp_path / "results")


def test_the_committed_page_follows_from_the_committed_records(tmp_path):
    """`python -m studies page` changes nothing of README.md, the table of the easy world included."""
    copy = tmp_path / "README.md"
    shutil.copy(page.PAGE, copy)
    page.write(copy, tmp_path / "results")
    assert copy.read_text() == page.PAGE.read_text() and easy.table() in copy.read_text()


def table_of(markdown: str) -> list[list[str]]:
    """The cells of its head and of its lines."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.splitlines()]
    return [cells[0], *cells[2:]]


def test_what_groups_teach_by_hand(cache):
    """Two runs of three steps, K = 2: of five fresh groups a step one or three are mixed; o* counts not."""
    for unit, right in ((0, 1), (1, 3)):
        counts = STEP | {"fresh/k=0": 3 - right, "fresh/k=1": right, "fresh/k=2": 2}
        rows = [counts | {"step": s, "buckets/k=1": 10 * s, "replay/questions": 2 * (s > 1)}
                for s in (1, 2, 3)]
        write(Job("hard", "exgrpo", unit), rows=[{"step": 0}, *rows, {"step": 3}], result={})
    [line] = [line for line in table_of(taught.runs()) if line[0] == "hard, exgrpo (2 runs)"]
    # fresh: 4/5 and 2/5 not mixed, 2/5 and 0 all wrong, 1/4 of 1/5 and of 3/5; replayed: one new response
    assert line[1:] == ["0.6", "0.2", "0.1", "0", "1.5", "0.5", "0.01", "0", "4", "100", "2", "3"]
    write(Job("hard", "revisiting", 1), rows=Job("hard", "exgrpo", 1).record()["rows"], result={})
    same = {name: line for name, *line in table_of(taught.runs())}  # of base 1 alone, not of the mean of two
    assert same["hard, revisiting (1 run)"] == same["hard, exgrpo, of these units (1 run)"] != line[1:]
    assert table_of(taught.buckets()) == [
        ["mean over the runs", "k = 1"], ["hard: draws from the bucket", "100%"],
        ["hard: chance, each step, that a question in it is drawn", "20%"],  # 2 · 3 of 10 + 20
        *([f"hard: questions in it after step {step}", str(10 * step)] for step in (1, 2, 3))]


def test_the_judges_verdicts_stand_unit_by_unit(made_up):
    """The base's once, then on-policy's and ExGRPO's last ones, trained and out of distribution."""
    [first, *_, last] = looked.judged().splitlines()[2:]
    base, other, arm = (" / ".join([f"{value:.2f}"] * 3) for value in (0.1, 0.5, 0.62))
    assert last == f"| hard, base 7 | {base} | {other} | {arm} | {base} | {other} | {arm} |"
    assert first.startswith("| hard, base 0 |") and "0.60" in first


def test_bare_answers_are_told_apart_by_themselves(cache):
    """Two bases, two questions: valid 0.1 and 0.5; bare 0.9; with steps 0.3, 0.5, and one that is wrong."""
    columns = {"question": [0, 0, 0, 0, 7, 7, 7], "reward": [1, 1, 1, 1, 1, 1, 0],
               "valid": [1, 0, 0, 1, 1, 0, 0], "shortcut": [0, 1, 0, 0, 0, 0, 0],
               "entropy": [0.1, 0.9, 0.3, 0.5, 0.5, 0.5, 0.9]}
    for unit in (2, 5):
        write(Job("hard", "base", unit), result={"columns": columns})
    [_, first, second, mean] = table_of(looked.told_apart())
    assert first == ["base 2", "+50.0 (2, 1)", "+0.0 (3, 2)"] and second[0] == "base 5"  # 1 + 0 + 1/2 of 3
    assert mean == ["mean ± 95%", "+50.0 ± 0.0", "+0.0 ± 0.0"]


def test_the_bare_rule_is_told_by_the_last_result_but_one(cache):
    """Two bases: on-policy is right where it is 0, by a plain evaluation, and nowhere else; ExGRPO always."""
    for unit in (0, 1):
        sets, right = draw_sets(replace(PRESETS["hard"], seed=unit)), {}
        for name, source in (("test", "arithmetic"), ("ood", "arithmetic-ood")):
            right[source] = []
            for question in sets[name]:
                first, *steps = re.findall(r"^\d|[-+*]\d", question)
                values = [int(first)]
                for operator, operand in steps:
                    values.append(eval(f"{values[-1]} {operator} {operand}") % 10)
                right[source].append(4 * (values[-2] == 0))
        always = {source: [4] * len(counts) for source, counts in right.items()}
        for arm, counts in (("on_policy", right), ("exgrpo", always)):
            result = {"samples": 4, "ends": {step: counts for step in "123"}}
            write(Job("hard", arm, unit), rows=[], result=result)
    [_, one, two, everything, zeros, others] = table_of(looked.rule())
    assert one[1:] == two[1:] == ["1.00 / 0.00", "1.00 / 1.00"] * 2
    assert others[1:] == ["", "+100.0 ± 0.0"] * 2 and zeros[1:] == ["", "+0.0 ± 0.0"] * 2
    assert 75 < float(everything[2].split()[0]) < 90


def test_the_test_of_the_real_model_by_kind(cache):
    """Eight pairs: on-policy is right where the answer is 2, ExGRPO in half of its responses."""
    asked, names = json.loads(looked.ASKED.read_text()), {}
    asked = [(source, *question) for source in asked for question in asked[source]]
    for source, text, answer in asked:
        names.setdefault(looked.kind(source, text, answer), []).append((text, int(answer)))
    kept = json.loads(gzip.decompress(real_model.KEPT.read_bytes()))["base"]  # sorted, four samples each
    assert {(r["source"], r["text"], r["gold"]) for r in kept} == set(asked) and len(asked) == 208
    for name, questions in names.items():
        for text, answer in questions:
            a, b = map(int, re.findall(r"\d+", text))
            if name.startswith("gcd"):
                even = a % 2 == b % 2 == 0 and answer > 2
                large = "more than 2, of two even numbers" if even else "others"
                assert name == f"gcd: {f'it is {answer}' if answer <= 2 else large}"
                assert math.gcd(a, b) == answer
            else:
                assert answer == {"+": a + b, "-": a - b, "*": a * b}[name[-3]]
    for unit in range(8):
        for arm, right in (("on_policy", lambda answer: 4 * (answer == "2")), ("exgrpo", lambda _: 2)):
            counts = {}
            for source, _, answer in asked:
                counts.setdefault(source, []).append(right(answer))
            write(Job("real", arm, unit), result={"samples": 4, "ends": dict.fromkeys("123", counts)})
    lines = {name: rest for name, *rest in table_of(looked.kinds())}
    assert lines["gcd: it is 2 (18)"] == ["100", "50", "-50.0 ± 0.0"]
    assert lines["gcd: it is 1 (13)"] == ["0", "50", "+50.0 ± 0.0"] and len(lines) == len(names) + 1
    Job("real", "exgrpo", 7).record_file.unlink()
    lines = {name: rest for name, *rest in table_of(looked.kinds())}
    assert lines["gcd: it is 2 (18)"][-1] == "-50.0"  # no interval before the last unit


@pytest.mark.skipif(not (jobs.ROOT / ".cache/gym").exists(), reason="make smollm-ready makes the questions")
def test_the_kept_questions_stand_in_the_order_of_their_files():
    """The counts of a record are in that order, and nothing else says which question a count is of."""
    for source, kept in json.loads(looked.ASKED.read_text()).items():
        rows = pq.read_table(jobs.ROOT / f".cache/gym/{source}-test.parquet").to_pylist()
        assert kept == [[row["prompt"][0]["content"], row["reward_model"]["ground_truth"]] for row in rows]


def test_what_only_restates_its_sum():
    """Math-Verify calls it right, and the answer is not in it; a cut or chatty answer is one."""
    restated = {"It is $5 - 9$": 1, "5 - 9 =": 1, "5 - 9 = -4": 0, "The answer is -4 apples": 0,
                "5 - 9 = -4. Therefore, the result of 5 - 9": 0, "It is -4.0": 0, "5 - 9 = –4": 0}
    verdicts = {text: restated_sums.score(text, "-4", {}) for text in restated}
    assert {text: v["restated"] for text, v in verdicts.items() if v["score"] == 1} == restated
    assert restated_sums.score("5 - 9 = 4", "-4", {}) == {"score": 0, "restated": 0}


def test_the_snowball_counts_fresh_questions(monkeypatch):
    """Replayed groups are left aside."""
    monkeypatch.setattr(snowball, "step_metrics", lambda *_: {})
    new = [SimpleNamespace(reward=reward, also={"restated": restated})
           for reward, restated in ((1.0, 1.0), (0.0, 0.0), (1.0, 0.0))]
    new.append(SimpleNamespace(reward=0.0, also={}))  # its verdict ran out of time
    groups = [SimpleNamespace(replayed=replayed, trajectories=new) for replayed in (False, True, False)]
    assert snowball.metrics(None, groups, None) == {
        "snowball/right": 4, "snowball/restated": 2, "snowball/share": 0.5}


def test_the_first_page_says_what_the_rows_say():
    """README's four differences, with levels and ranges over bases or seeds, are those of the table."""
    said = " ".join((jobs.ROOT / "README.md").read_text().replace("−", "-").split())
    rows = {result["row"]: result for result in page.decide()}
    for row, unit, of, where in ((2, " points", "bases", "out of distribution"),
                                 (16, "", "bases", "on the trained kinds"),
                                 (1, " points", "seeds", "on the trained kinds, undecided"),
                                 (3, "", "seeds", "on the held-out one")):
        r = rows[row]
        mean, half, level, low, high = (
            100 * x for x in (r["mean"], r["half"], r["level"], min(r["values"]), max(r["values"])))
        spread = f"({level:g}%, {of} from {low:+.1f} to {high:+.1f})"
        assert f" {mean:+.1f} ± {half:.1f}{unit} {spread} {where}" in said
    head, _, *body = looked.first_page().splitlines()
    assert {head, *body} <= set((jobs.ROOT / "README.md").read_text().splitlines())
    first, second, third = (f"{100 * value:+.1f}" for value in rows[24]["values"])
    assert f"replay is not ahead: {first}, {second} and {third} points" in said
    assert max(rows[24]["values"]) < 0


def test_a_sceptic_needs_no_code_of_ours(made_up, monkeypatch, tmp_path):
    """The ten lines of numpy in README.md give row 2's mean and half width at Holm's first level."""
    code = re.search(r"```python\n(.*?)```", page.PAGE.read_text(), re.DOTALL)[1]
    (tmp_path / "studies" / "results").mkdir(parents=True)
    shutil.copytree(jobs.RECORDS, tmp_path / "studies" / "results" / "runs")
    monkeypatch.chdir(tmp_path)
    with redirect_stdout(io.StringIO()) as printed:
        exec(code, {})
    mean, half = map(float, printed.getvalue().split())
    values = page.differences(page.numbers(ROWS[1]))
    assert mean == pytest.approx(0.11) and half == pytest.approx(page.half_width(values, 0.975), rel=1e-3)


def test_primary_rows_come_first_and_unit_by_unit():
    """No job of a later family before the last of an earlier one, units in order, each job once."""
    jobs = run.in_order(run.parse(["all"]).rows, quick=False)
    primary = [job for row in ROWS if row.family == "primary" for job in jobs_of(row)]
    assert set(jobs[: len(set(primary))]) == set(primary) and len(set(jobs)) == len(jobs)
    units = [job.unit for job in jobs[: len(set(primary))]]
    assert units == sorted(units)
    first, second = (row for row in ROWS if row.number in (9, 10))  # exploratory: row by row
    assert [job for job in jobs if job in jobs_of(first) + jobs_of(second)] == list(
        dict.fromkeys(jobs_of(first) + jobs_of(second)))


def test_the_command_line():
    """Rows by number, by family, all of them; what is no row is refused."""
    assert [row.number for row in run.parse(["2"]).rows] == [2] and len(run.parse(["all"]).rows) == len(ROWS)
    assert [row.number for row in run.parse(["primary"]).rows] == [1, 2]
    for wrong in (["99"], ["page", "--quick"], ["tune", "--quick"]):
        with pytest.raises(SystemExit):
            run.parse(wrong)
    assert Config().world == "easy"


# ---- a unit, from training to its numbers --------------------------------------------------------------


@pytest.mark.slow
def test_a_unit_scores_the_models_of_its_last_three_checkpoints(tiny_model, tmp_path):
    """The program itself, on a random model: SAMPLES responses a question, by the weights of each checkpoint.

    The first end's random numbers give the same counts once more, and other ones to other weights.
    """
    questions = [f"{a}a+{b}" for a in range(6) for b in (1, 2)]
    (tmp_path / "q.jsonl").write_text(arithmetic.rows(questions, "sums"))
    file = tmp_path / "q.jsonl"
    flags = dict(model=tiny_model, train_files=file, val_files=file, reward="bench.step:coin", engine="hf",
                 rho=0, batch_size=4, num_rollouts=2, k_max=1, steps=20, lr=3e-2, max_grad_norm=1e9,
                 max_prompt_length=16, max_response_length=8, save_every=1, keep=5, eval_every=0)
    command = [sys.executable, "-m", "studies.unit", "--run_dir", str(tmp_path / "run")]
    flags = [str(x) for name, value in flags.items() for x in (f"--{name}", value)]
    subprocess.run([*command, *flags], check=True, env=os.environ | {"MASTER_PORT": "0"})  # not pytest's own
    made = json.loads((tmp_path / "run/numbers.json").read_text())
    assert made["base"] == base_hash(tiny_model) and made["samples"] == 4
    assert list(made["ends"]) == ["18", "19", "20"] and "ended" not in made
    counts = [end["sums"] for end in made["ends"].values()]
    assert all(len(c) == 12 and set(c) <= set(range(5)) for c in counts)
    first, _, last = at_ends(tmp_path / "run", 20, 1)
    assert ends(parse_config(flags), [first])["ends"]["18"]["sums"] == counts[0]
    again = ends(parse_config(flags), [last])
    assert again["ends"]["20"]["sums"] != counts[0] and again["questions"] == made["questions"]
    judged = ends(parse_config([*flags, "--reward", "worlds.arithmetic:reward"]), [first])
    assert judged["valid"] == {"18": {"sums": [0] * 12}}  # its responses have no steps
    assert made["valid"] == dict.fromkeys(made["ends"], {})  # `coin` knows of none

"""The studies' machinery: pairing, the cache, interrupted and failed runs, results of made-up runs."""

import json
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from config import Config
from studies import __main__ as run
from studies import decide, jobs, pool, records
from studies.claims import STUDIES
from studies.jobs import FULL, QUICK, RUNS, SAMPLINGS, Budget, Job
from studies.measures import IN, OOD, Data
from studies.pool import run_jobs

# ---------------------------------------------------------------- jobs and their cache


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(jobs, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(pool, "POLL_SECONDS", 0.02)
    return tmp_path / "cache"


def test_every_run_is_a_command_that_train_py_takes(cache, tmp_path):
    """Each run's flags parse into the configuration that its knobs name."""
    from config import parse_config

    for name in ("train", "test", "ood"):
        (tmp_path / f"{name}.jsonl").write_text("{}\n")
    for name in RUNS:
        job = Job(name, 3, FULL)
        command = job.command({"world": str(tmp_path), "graded": str(tmp_path)})
        config = parse_config(command[2:])
        assert command[1] == "train.py" and config.resume and config.run_dir == str(job.directory)
        assert config.seed == 3 and config.eval_every == FULL.eval_every
        for knob in set(job.knobs) - {"model", "train_files", "val_files"}:
            assert getattr(config, knob) == job.knobs[knob], (name, knob)
    assert Job("on_policy_early", 0, FULL).knobs["steps"] == FULL.steps // 3


def test_the_cache_tells_jobs_apart(cache):
    """Every name, seed, budget and kind has a directory of its own; the same job finds its own again."""
    jobs = [Job(name, seed, budget) for name in RUNS for seed in (0, 1) for budget in (FULL, QUICK)]
    jobs += [Job(name, seed, FULL, sampling=True) for name in SAMPLINGS for seed in (0, 1)]
    assert len({job.directory for job in jobs}) == len(jobs)
    assert Job("exgrpo", 1, FULL).directory == Job("exgrpo", 1, Budget(**vars(FULL))).directory


def test_paired_runs_differ_in_nothing_but_what_they_compare(cache):
    """Two runs of one seed share seed and budget."""
    a, b = Job("exgrpo", 2, FULL).knobs, Job("highest_entropy", 2, FULL).knobs
    assert {name: value for name,
            value in b.items() if a.get(name) != value} == {"trajectory_selection": "highest_entropy"}


def test_changed_defaults_are_noticed(cache):
    """A run begun with another default is refused unless its own knobs set it; knobs added or gone count for
    nothing."""
    job = Job("rho_25", 0, QUICK)
    job.prepare()
    job.finish(5.0)
    file = job.directory / "job.json"
    note = json.loads(file.read_text())
    assert note["seconds"] == 5.0 and note["recipe"]["config"]["lr"] == Config().lr
    note["recipe"]["config"].update(rho=0.9, offload=False)  # its own knob, and one that there is no more
    del note["recipe"]["config"]["beta"]  # new since
    file.write_text(json.dumps(note))
    job.prepare()
    note["recipe"]["config"].update(lr=1.0)
    file.write_text(json.dumps(note))
    with pytest.raises(ValueError, match="rho_25, seed 0.*other defaults.*'lr'.*Remove it"):
        job.prepare()
    note["recipe"]["config"].update(lr=Config().lr)
    del note["edition"]
    file.write_text(json.dumps(note))
    with pytest.raises(ValueError, match="rho_25, seed 0.*earlier edition.*Remove it"):
        job.prepare()


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
(out / "result.json").write_text("{}")
"""


@pytest.fixture
def scripted(cache, monkeypatch):
    """Jobs whose process is a short script; `hard` is broken, `easy` slow."""
    def command(job, places):
        name = {"easy": "slow", "hard": "broken"}.get(job.name, job.name)
        return [sys.executable, "-c", SCRIPT, str(job.directory), name]

    monkeypatch.setattr(Job, "command", command)
    return cache


def test_jobs_run_once_and_failures_do_not_stop_the_others(scripted):
    """A sampling pass waits for its run; a failure is reported and the rest is done; a second call runs only
    what is left."""
    jobs = [Job("early", 0, QUICK, sampling=True), Job("hard", 1, QUICK), Job("medium", 0, QUICK)]
    failed = run_jobs(jobs, 2, {})
    assert {job.name: "ended with 3" in why for job, why in failed.items()} == {"hard": True}
    assert jobs[0].needs.made and jobs[0].done and jobs[2].done and jobs[2].record()["seconds"] > 0
    order = (scripted / "order").read_text().split()
    assert order.index("on_policy_early") < order.index("early") and len(order) == 4
    run_jobs(jobs, 2, {})
    assert (scripted / "order").read_text().split()[4:] == ["broken"]


def test_ctrl_c_lets_a_run_save_and_the_next_call_continues(scripted, monkeypatch):
    """The process is asked to save, its time is kept, KeyboardInterrupt goes on; the second call finishes the
    job."""
    job = Job("easy", 0, QUICK)

    def interrupt(seconds):
        time.sleep(0.02)
        if (job.directory / "up").exists():
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pool, "time", SimpleNamespace(sleep=interrupt, monotonic=time.monotonic))
        run_jobs([job], 1, {})
    assert (job.directory / "saved").exists() and not job.done
    before = json.loads((job.directory / "job.json").read_text())["seconds"]
    assert before > 0 and run_jobs([job], 1, {}) == {} and job.done and job.record()["seconds"] > before


def test_a_record_stands_for_its_run(scripted, monkeypatch):
    """With the runs themselves gone, their records are enough; the model of a recorded run is made again
    where it is needed; a record made with other defaults is refused; forgotten, a run is made again. Full
    runs are recorded apart."""
    early, medium = Job("early", 0, QUICK, sampling=True), Job("medium", 0, FULL)
    run_jobs([early, medium], 2, {})
    assert medium.record_file.parent == jobs.RECORDS and early.record_file.parent == early.directory
    for job in (medium, early.needs, early):
        kept = job.record_file.read_bytes()
        shutil.rmtree(job.directory)
        job.record_file.parent.mkdir(exist_ok=True, parents=True)
        job.record_file.write_bytes(kept)
    ran = len((scripted / "order").read_text().split())
    run_jobs([early, medium], 2, {})
    assert len((scripted / "order").read_text().split()) == ran
    assert not medium.made and medium.record()["rows"] == [{}]
    early.forget()
    run_jobs([early, medium], 2, {})
    assert (scripted / "order").read_text().split()[ran:] == ["on_policy_early", "early"]
    with monkeypatch.context() as patch:
        patch.setattr(records, "recipe", lambda: {"config": {"lr": 7.0}, "world": {}})
        with pytest.raises(ValueError, match="medium-0.*other defaults.*'lr'.*--fresh"):
            run_jobs([medium], 1, {})
    medium.forget()
    assert not medium.done


def test_git_takes_records():
    """No pattern of .gitignore hides the place of the records."""
    ignored = subprocess.run(["git", "check-ignore", "-q", str(jobs.RECORDS / "exgrpo-0.json.gz")],
                             cwd=jobs.ROOT).returncode
    assert ignored != 0  # 1: not ignored, 128: not a checkout


def test_records_keep_five_digits():
    """Numbers are rounded to significant digits, whatever they are nested in; integers and text stay."""
    assert records.rounded({"a": [0.000123456789, 123456], "b": "x", "c": 1.0}) == {"a": [0.00012346, 123456],
                                                                                    "b": "x", "c": 1.0}


def test_records_of_an_earlier_edition_are_read(cache, capsys):
    """Whatever defaults and knobs made them, their numbers count, with a line; nothing is added to them."""
    budget = Budget(steps=4, eval_every=2, eval_questions=1, sampled_questions=2)
    old = {"seconds": 1.0, "rows": [{"step": 0}],
           "recipe": {"config": {"lr": 7.0, "gone": False}, "world": {}}}
    for name in ("exgrpo", "reinstate"):
        for seed in range(2):
            job = Job(name, seed, budget)
            records.write(job.record_file, old | {"knobs": job.knobs | {"gone": True}})
            assert job.done and job.record()["edition"] == 1
    needed = {"table7": decide.jobs_of(STUDIES["table7"], Data(2, budget))}
    run.check_editions(needed)
    said = capsys.readouterr().out
    assert said == f"recorded by edition 1 of this code (today's is {records.EDITION}): table7\n"
    with pytest.raises(SystemExit, match="table7: edition 1 .*--seeds.*--fresh"):
        run.check_editions({"table7": decide.jobs_of(STUDIES["table7"], Data(3, budget))})
    source = Job("early", 0, budget, sampling=True)  # the knobs of the run behind a sampling pass, too
    knobs = source.knobs | {"model": source.needs.knobs | {"gone": True}}
    records.write(source.record_file, old | {"knobs": knobs})
    assert source.done


# ---------------------------------------------------------------- results


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_is_made_again_from_its_records(name, tmp_path):
    """The committed numbers follow from the committed runs to the last digit, whatever edition made them."""
    stored = json.loads((decide.RESULTS / name / "result.json").read_text())
    data = Data(stored["seeds"], Budget(**stored["budget"]))
    assert data.budget == FULL and all(job.done for job in decide.jobs_of(STUDIES[name], data))
    assert json.loads(json.dumps(decide.write(name, data, tmp_path))) == stored
    pictures = [tmp_path / name / file for file in STUDIES[name].pictures]
    assert pictures and all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)


@pytest.fixture
def made_up(cache):
    """Two seeds of table7's runs, made up: exgrpo learns faster by 0.1 to 0.2; and of a run from another base
    model."""
    data = Data(2, Budget(steps=4, eval_every=2, eval_questions=1, sampled_questions=2))
    for seed in range(2):
        for name in ("exgrpo", "reinstate", "exgrpo_weak"):
            gain = 0.1 if name == "reinstate" else 0.3 + 0.012 * seed
            rows = [{"step": step, "buckets/retired": 400} for step in range(5)]
            for row in rows[::2]:
                value = 0.3 + gain * row["step"] / 4 + (0.1 if name == "exgrpo_weak" else 0)
                row |= {IN: value, OOD: value}
            write_job(Job(name, seed, data.budget), rows)
    return data


def write_job(job: Job, rows: list[dict]) -> None:
    job.prepare()
    (job.directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (job.directory / "result.json").write_text("{}")
    job.finish(60.0)


def test_a_study_by_hand(made_up, tmp_path):
    """The curve rises evenly to 0.3 + gain: its mean height is 0.3 + gain / 2. A minute for each of four
    runs."""
    result = decide.write("table7", made_up, tmp_path)
    assert result["claims"][0]["values"] == pytest.approx([0.1, 0.106])
    assert result["claims"][0]["verdict"] == "agrees" and result["core_seconds"] == 240.0
    assert result["runs"]["exgrpo"]["score_ood"] == pytest.approx([0.45, 0.456])
    assert "table7" in decide.text(result) and "agrees" in decide.text(result)


def test_runs_of_different_base_models_are_no_pairs(made_up):
    """A run that begins elsewhere than another from the same base model is refused; other base models may."""
    job = Job("reinstate", 1, made_up.budget)
    write_job(job, [{**row, IN: row[IN] + 0.01} if IN in row else row for row in job.record()["rows"]])
    with pytest.raises(ValueError, match="different base models.*exgrpo.*reinstate.*0.31"):
        [made_up.rows(name) for name in ("exgrpo", "reinstate")]
    made_up.rows("exgrpo_weak")


def test_the_page_holds_the_results(made_up, tmp_path):
    """README.md gets a row per claim between its markers, the rest stays; a result of other claims is
    refused."""
    decide.write("table7", made_up, tmp_path)
    page = tmp_path / "README.md"
    page.write_text(f"before\n{decide.BEGIN}\nold\n{decide.END}\nafter\n")
    decide.update(page, tmp_path)
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    claim = "putting 10% of the retired questions back every 25 steps hurts"
    assert f"| table7 | {claim} | 48.3 > 45.3 | +0.103 ± 0.038 (2 seeds) | **agrees** |" in text
    assert text.count("not run yet") == sum(len(s.claims) for s in STUDIES.values()) - 1
    file = tmp_path / "table7" / "result.json"
    file.write_text(file.read_text().replace("putting 10%", "something else"))
    with pytest.raises(ValueError, match="other claims"):
        decide.update(page, tmp_path)
    page.write_text("no markers")
    with pytest.raises(ValueError, match="lost its markers"):
        decide.update(page, tmp_path)


def test_the_committed_page_is_what_the_results_say():
    """studies/README.md can be written again from studies/results without a change."""
    page = decide.ROOT / "studies" / "README.md"
    assert decide.table() in page.read_text()


def test_the_command_line():
    """Names, aliases, seeds."""
    assert run.parse(["fig8"]).names == ["table6"] and run.parse(["all"]).names == list(STUDIES)
    assert run.parse(["all"]).seeds == 5 and run.parse(["all", "--quick"]).seeds == 2
    for argv in (["fig99"], ["fig1a", "--seeds", "1"], ["fig1a", "--seeds", "11"]):
        with pytest.raises(SystemExit):
            run.parse(argv)


def test_quick_results_stay_out_of_the_page(made_up, cache, monkeypatch, capsys):
    """With --quick the pictures go to the cache, README.md is not touched, and nothing is trained again."""
    monkeypatch.setattr(run, "QUICK", made_up.budget)
    monkeypatch.setattr(run, "CACHE", cache)
    monkeypatch.setattr(decide, "update", lambda *_: 1 / 0)
    monkeypatch.setattr(run, "run_jobs", lambda *_: 1 / 0)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        assert run.main(["table7", "--quick"]) == 0
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert (cache / "quick" / "table7" / "table7.png").exists() and "agrees" in capsys.readouterr().out

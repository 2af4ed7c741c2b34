"""The studies' machinery: pairing, the cache, interrupted and failed runs, results of made-up runs."""

import json
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from test_measures import sampled

from config import Config
from studies import __main__ as run
from studies import decide, jobs, pool
from studies.claims import STUDIES, Data
from studies.jobs import FULL, QUICK, RUNS, SAMPLINGS, Budget, Job, changes
from studies.measures import IN
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
    assert {name: value for name, value in b.items() if a.get(name) != value} == {"trajectory_selection": "highest_entropy"}


def test_changed_defaults_are_noticed(cache, monkeypatch):
    """A run made with another default is refused, unless its own knobs set it; knobs added since count for nothing."""
    job = Job("rho_25", 0, QUICK)
    job.prepare()
    job.finish(5.0)
    note = json.loads((job.directory / "job.json").read_text())
    assert note["seconds"] == 5.0 and note["recipe"]["config"]["lr"] == Config().lr
    note["recipe"]["config"].update(rho=0.9)  # its own knob
    del note["recipe"]["config"]["beta"]  # new since
    (job.directory / "job.json").write_text(json.dumps(note))
    job.prepare()
    note["recipe"]["config"].update(lr=1.0)
    (job.directory / "job.json").write_text(json.dumps(note))
    with pytest.raises(ValueError, match="rho_25, seed 0.*other defaults.*'lr'.*Remove it"):
        job.prepare()
    assert changes({}, {"config": {"a": 1}}, {}) == {}


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
    """Jobs whose process is a short script; seed 1 of `hard` is broken."""
    def command(job, places):
        name = "broken" if job.name == "hard" and job.seed == 1 else "slow" if job.name == "easy" else job.name
        return [sys.executable, "-c", SCRIPT, str(job.directory), name]

    monkeypatch.setattr(Job, "command", command)
    return cache


def test_jobs_run_once_and_failures_do_not_stop_the_others(scripted):
    """A sampling pass waits for its run; a failure is reported and the rest is done; a second call runs only what is left."""
    jobs = [Job("early", 0, QUICK, sampling=True), Job("hard", 1, QUICK), Job("medium", 0, QUICK)]
    failed = run_jobs(jobs, 2, {})
    assert {job.name: "ended with 3" in why for job, why in failed.items()} == {"hard": True}
    assert jobs[0].needs.made and jobs[0].done and jobs[2].done and jobs[2].seconds > 0
    order = (scripted / "order").read_text().split()
    assert order.index("on_policy_early") < order.index("early") and len(order) == 4
    run_jobs(jobs, 2, {})
    assert (scripted / "order").read_text().split()[4:] == ["broken"]


def test_ctrl_c_lets_a_run_save_and_the_next_call_continues(scripted, monkeypatch):
    """The process is asked to save, its time is kept, KeyboardInterrupt goes on; the second call finishes the job."""
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
    assert before > 0 and run_jobs([job], 1, {}) == {} and job.done and job.seconds > before


def test_a_record_stands_for_its_run(scripted, monkeypatch):
    """With the runs themselves gone, their records are enough; the model of a recorded run is made again where it is needed;
    a record made with other defaults is refused; forgotten, a run is made again. Full runs are recorded apart."""
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
    assert len((scripted / "order").read_text().split()) == ran and not medium.made and medium.rows() == [{}]
    early.forget()
    run_jobs([early, medium], 2, {})
    assert (scripted / "order").read_text().split()[ran:] == ["on_policy_early", "early"]
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "recipe", lambda: {"config": {"lr": 7.0}, "world": {}})
        with pytest.raises(ValueError, match="medium-0.*other defaults.*'lr'.*--fresh"):
            run_jobs([medium], 1, {})
    medium.forget()
    assert not medium.done


def test_git_takes_records():
    """No pattern of .gitignore hides the place of the records."""
    ignored = subprocess.run(["git", "check-ignore", "-q", str(jobs.RECORDS / "exgrpo-0.json.gz")], cwd=jobs.ROOT).returncode
    assert ignored != 0  # 1: not ignored, 128: not a checkout


def test_records_keep_five_digits():
    """Numbers are rounded to significant digits, whatever they are nested in; integers and text stay."""
    assert jobs._rounded({"a": [0.000123456789, 123456], "b": "x", "c": 1.0}) == {"a": [0.00012346, 123456], "b": "x", "c": 1.0}


# ---------------------------------------------------------------- results


@pytest.fixture
def made_up(cache):
    """Two seeds of every run and sampling pass, made up: exgrpo learns faster than anything else by 0.1 to 0.2."""
    budget = Budget(steps=4, eval_every=2, eval_questions=1, sampled_questions=2)
    data = Data(2, budget)
    for seed in range(2):
        for name in RUNS:
            gain = 0.3 + 0.012 * seed if name.startswith("exgrpo") else 0.1
            rows = [{"step": step, "reward/pass_at_1_fresh": gain, "rollout/length": 9.0, "rollout/tokens": 50,
                     "loss/entropy": 0.5, "buckets/questions": 500, "buckets/retired": 400, "replay/gradient_share": 0.2,
                     "time/update": 1.0}
                    for step in range(1, 5)]
            rows = [{"step": 0}, *rows]
            for row in rows[::2]:
                scores = {"pass_at_1": 0.3 + gain * row["step"] / 4, "valid": gain, "shortcut": 0.3 - gain / 2}
                row |= {f"val/{n}/{s}": v for n, v in scores.items() for s in ("arithmetic", "arithmetic-ood")}
            write_job(Job(name, seed, budget), rows, {})
        for name in SAMPLINGS:
            write_job(Job(name, seed, budget, sampling=True), [], sampled())
    return data


def write_job(job: Job, rows: list[dict], result: dict) -> None:
    job.prepare()
    (job.directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (job.directory / "result.json").write_text(json.dumps(result))
    job.finish(60.0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # made-up samples leave a bucket empty
@pytest.mark.parametrize("name", STUDIES)
def test_every_study_writes_its_result(name, made_up, tmp_path):
    """Numbers, verdicts and pictures of each study from made-up runs; a claim of learning agrees, as it was made up."""
    result = decide.write(name, made_up, tmp_path)
    stored = json.loads((tmp_path / name / "result.json").read_text())
    assert len(stored["claims"]) == len(STUDIES[name].claims) and all(len(c["values"]) == 2 for c in stored["claims"])
    assert all((tmp_path / name / file).read_bytes().startswith(b"\x89PNG") for file in STUDIES[name].pictures)
    assert result["core_seconds"] == 60.0 * len(decide.jobs_of(STUDIES[name], made_up))
    if name == "table1":
        number = stored["claims"][0]  # the curve rises evenly to 0.3 + gain: the mean height is 0.3 + gain / 2
        assert number["values"] == pytest.approx([0.1, 0.106]) and number["verdict"] == "agrees"
        assert stored["runs"]["exgrpo"]["score_ood"] == pytest.approx([0.45, 0.456])
    assert name in decide.text(result)


def test_runs_of_different_base_models_are_no_pairs(made_up):
    """A run that begins elsewhere than another from the same base model is refused; other base models may."""
    job = Job("reinstate", 1, made_up.budget)
    rows = [{**row, IN: row[IN] + 0.01} if IN in row else row for row in job.rows()]
    write_job(job, rows, {})
    with pytest.raises(ValueError, match="different base models.*exgrpo.*reinstate.*0.31"):
        [made_up.rows(name) for name in ("exgrpo", "reinstate")]
    made_up.rows("exgrpo_weak")


def test_the_page_holds_the_results(made_up, tmp_path):
    """STUDIES.md gets a row per claim between its markers, the rest stays; a result of other claims is refused."""
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
    """STUDIES.md can be written again from studies/results without a change."""
    page = decide.ROOT / "studies" / "README.md"
    assert decide.table() in page.read_text()


def test_the_command_line(capsys, monkeypatch, cache):
    """Names, aliases, seeds; a study whose jobs are done is written without running anything."""
    assert run.parse(["fig8"]).names == ["table6"] and run.parse(["all"]).names == list(STUDIES)
    assert run.parse(["all"]).seeds == 5 and run.parse(["all", "--quick"]).seeds == 2
    for argv in (["fig99"], ["fig1a", "--seeds", "1"], ["fig1a", "--seeds", "11"], ["fig1a", "--workers", "0"]):
        with pytest.raises(SystemExit):
            run.parse(argv)


def test_quick_results_stay_out_of_the_page(made_up, cache, monkeypatch, capsys):
    """With --quick the pictures go to the cache, STUDIES.md is not touched, and nothing is trained again."""
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

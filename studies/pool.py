"""Run jobs: as many processes at a time as there are cores, with progress, and stopped without loss."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tqdm import tqdm

import studies.jobs
from studies.jobs import ROOT, Job
from worlds.arithmetic import World, draw_sets, rows
from worlds.base_model import built_in

POLL_SECONDS = 1.0
SAVE_SECONDS = 120  # how long an interrupted run may take to finish its step and save
Running = dict[subprocess.Popen, tuple[Job, float]]  # process -> its job, when it started


def make_places(jobs: list[Job]) -> dict[str, str]:
    """Build the worlds that the jobs need, where they are missing, and the questions of the graded reward."""
    for job in jobs:
        if "world" in job.knobs:
            built_in(ROOT / ".cache", job.knobs["world"])
    usual = built_in(ROOT / ".cache")
    graded = studies.jobs.CACHE / "graded"
    graded.mkdir(parents=True, exist_ok=True)
    for name, questions in draw_sets(World()).items():
        source = "arithmetic-ood" if name == "ood" else "arithmetic"
        (graded / f"{name}.jsonl").write_text(rows(questions, source, graded=True))
    return {"world": str(Path(usual["model"]).parent), "graded": str(graded)}


def run_jobs(jobs: list[Job], workers: int, places: dict[str, str]) -> dict[Job, str]:
    """Run what is not done yet, `workers` processes at a time; returns {job: why} for those that failed.

    A job that needs another one's model has that one made first, also where its record is there already.
    Ctrl-C lets every running job finish its step and save, then raises KeyboardInterrupt.
    """
    todo = [job for job in jobs if not job.done]
    jobs = list(dict.fromkeys([*(job.needs for job in todo if job.needs and not job.needs.made), *todo]))
    for job in jobs:
        job.prepare()
    waiting, failed = list(jobs), {}
    running: Running = {}
    bar = tqdm(total=len(jobs), unit="job", smoothing=0)
    try:
        while waiting or running:
            for job in [job for job in waiting if job.needs in failed]:
                waiting.remove(job)
                failed[job] = f"{job.needs.name} failed"
            startable = [job for job in waiting if not job.needs or job.needs.made]
            for job in startable[: workers - len(running)]:
                waiting.remove(job)
                running[_start(job, places)] = job, time.monotonic()
            time.sleep(POLL_SECONDS)
            for process in [process for process in running if process.poll() is not None]:
                job, start = running.pop(process)
                job.finish(time.monotonic() - start)
                if not job.made:
                    failed[job] = f"ended with {process.returncode}, see {job.directory}/log"
                    bar.write(f"{job.name}, seed {job.seed}: {failed[job]}")
            names = [f"{job.name}/{job.seed}" for job, _ in running.values()]
            bar.set_postfix_str(", ".join(names), refresh=sys.stderr.isatty())
            if ended := len(jobs) - len(waiting) - len(running) - bar.n:
                bar.update(ended)
    except BaseException:
        _stop(running)
        raise
    finally:
        bar.close()
    return failed


def _start(job: Job, places: dict[str, str]) -> subprocess.Popen:
    """The job's process, in a session of its own (`_stop` passes Ctrl-C on); its output goes to `log`."""
    # one thread: several processes share the machine
    settings = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "TQDM_DISABLE": "1"}
    with open(job.directory / "log", "a") as log:
        return subprocess.Popen(job.command(places), cwd=ROOT, env=os.environ | settings,
                                stdin=subprocess.DEVNULL,
                                stdout=log, stderr=subprocess.STDOUT, start_new_session=True)


def _stop(running: Running) -> None:
    """Ask every process to save and leave, and end those that do not."""
    if running:
        print("\nstopping: every run finishes its step and saves", file=sys.stderr)
    for process in running:
        process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + SAVE_SECONDS
    for process, (job, start) in running.items():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        job.finish(time.monotonic() - start)

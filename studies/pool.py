"""Run jobs: as many processes at a time as there are cores, with progress, and stopped without loss."""

import contextlib
import os
import signal
import subprocess
import sys
import time

from tqdm import tqdm

from studies.jobs import ROOT, Job

POLL_SECONDS = 1.0
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAVE_SECONDS = 120  # how long an interrupted run may take to finish its step and save
Running = dict[subprocess.Popen, tuple[Job, float]]  # process -> its job, when it started


def run_jobs(jobs: list[Job], workers: int) -> dict[Job, str]:
    """Run jobs, `workers` processes at a time and in this order; returns {job: why} for those that failed.

    Ctrl-C lets every running job save and leave, then raises KeyboardInterrupt; a step of training is undone
    unless its update had begun, answers at the end are given again.
    """
    for job in jobs:
        job.prepare()
    waiting, failed = list(jobs), {}
    running: Running = {}
    bar = tqdm(total=len(jobs), unit="job", smoothing=0)
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                job = waiting.pop(0)
                running[_start(job)] = job, time.monotonic()
            time.sleep(POLL_SECONDS)
            for process in [process for process in running if process.poll() is not None]:
                job, start = running.pop(process)
                job.finish(time.monotonic() - start)
                if not job.made:
                    failed[job] = f"ended with {process.returncode}, see {job.directory}/log"
                    bar.write(f"{job.name}: {failed[job]}")
            names = [job.name for job, _ in running.values()]
            bar.set_postfix_str(", ".join(names), refresh=sys.stderr.isatty())
            if ended := len(jobs) - len(waiting) - len(running) - bar.n:
                bar.update(ended)
    except BaseException:
        _stop(running)
        raise
    finally:
        bar.close()
    return failed


def _start(job: Job) -> subprocess.Popen:
    """The job's process, in a session of its own (`_stop` passes Ctrl-C on); its output goes to `log`."""
    # one thread: several processes share the machine
    settings = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "TQDM_DISABLE": "1"}
    with open(job.directory / "log", "a") as log:
        return subprocess.Popen(job.command, cwd=ROOT, env=os.environ | settings,
                                stdin=subprocess.DEVNULL,
                                stdout=log, stderr=subprocess.STDOUT, start_new_session=True)


def _stop(running: Running) -> None:
    """Ask every process to save and leave, and end those that do not."""
    if running:
        print("\nstopping: every run saves and leaves", file=sys.stderr)
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in STOPS}  # once is enough
    for process in running:
        _signal(process, signal.SIGINT)
    deadline = time.monotonic() + SAVE_SECONDS
    for process in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        _signal(process, signal.SIGKILL)
        process.wait()
    for number, handler in handlers.items():
        signal.signal(number, handler)
    for job, start in running.values():
        job.finish(time.monotonic() - start)


def _signal(process: subprocess.Popen, number: signal.Signals) -> None:
    """Send a signal to a process and to those it started (the one that trains), if they still live."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)

"""What a run writes down: metrics, their copies in TensorBoard and W&B, samples, a model card."""

import dataclasses
import json
import math
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from conftest import ROOT, jsonl, toy_config
from transformers import GenerationConfig

from buffer import Trajectory
from config import Config
from runtime import preflight
from runtime.card import describe_model, model_card, say_unfit
from runtime.console import printable
from runtime.faults import Interrupted
from runtime.run import open_run
from runtime.tracking import Tracker
from tools.convert import INSTALL_DATASETS


@pytest.fixture
def config(tmp_path) -> Config:
    questions = tmp_path / "openr1.parquet"
    questions.touch()
    return toy_config(
        model="org/Model-7B",
        train_files=[str(questions)],
        run_dir=str(tmp_path / "my-run"),
        response_prefix="<think>\n",
        rope_theta=40000.0,
        batch_size=128,
        lr=1e-6,
    )


def made(run_dir: Path, tracker: str = "none", **knobs) -> Tracker:
    """The tracker of a run of 10 steps."""
    return Tracker({"run_dir": str(run_dir), "steps": 10, "tracker": tracker, **knobs})


@pytest.fixture
def tracker(tmp_path) -> Tracker:
    """That of a new run in `tmp_path`."""
    tracker = made(tmp_path)
    tracker.start()
    return tracker


def test_the_card_says_how_the_model_was_made_and_is_asked(config):
    """The card has a head for the hub, the scores, and each knob but paths and the world's."""
    knobs = dataclasses.asdict(config)
    card = model_card(
        knobs, 700, {"pass_at_1/aime": 0.115}, {"pass_at_1/aime": 0.316}, "2026-01-02"
    )
    _, head, body = card.split("---\n", 2)
    assert yaml.safe_load(head) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "base_model": "org/Model-7B",
        "tags": ["exgrpo", "grpo", "rlvr"],
    }
    assert (
        "# my-run: Model-7B trained with ExGRPO" in body and "700 steps on openr1.parquet" in body
    )
    assert "| pass_at_1/aime | 0.115 | 0.316 |" in body
    assert "Ask it as it was trained, on 2026-01-02, the date in its prompts, with" in body
    assert "dtype of the starting model" in body and "world" not in body
    for name in knobs.keys() - {"model", "train_files", "val_files", "run_dir"}:
        assert f"    {name}: {knobs[name]!r}\n" in body


def test_the_baseline_says_what_it_is_and_a_local_model_is_no_hub_name(config, tmp_path):
    """ρ = 0 is not called ExGRPO, and a directory is not given to the hub as `base_model`."""
    card = model_card(
        dataclasses.asdict(config) | dict(rho=0.0, model=str(tmp_path)), 1, {}, {}, None
    )
    assert "trained with on-policy Dr. GRPO" in card and "base_model" not in card


def test_a_base_is_told_what_a_task_may_be(config, tmp_path, capfd):
    """A base below 3% or above 90% is told, unless it is built in or was trained here."""
    scores = {"pass_at_1/hard": 0.02, "pass_at_1/good": 0.5, "pass_at_1/easy": 0.95, "reward/x": 0}
    say_unfit(str(tmp_path), "math", scores)
    hard, easy = capfd.readouterr().err.splitlines()
    assert "pass_at_1/hard is 0.020. Below 3% or above 90% right, change the task" in hard
    assert "pass_at_1/easy is 0.950" in easy
    say_unfit(str(tmp_path), "worlds.arithmetic:reward", scores)
    (tmp_path / "README.md").write_text(model_card(dataclasses.asdict(config), 1, {}, {}, None))
    say_unfit(str(tmp_path), "math", scores)
    assert capfd.readouterr().err == ""


def state(config, step: int, turn_ends=(2,)) -> dict:
    """What a checkpoint says of the model."""
    return {"config": dataclasses.asdict(config), "step": step, "turn_ends": list(turn_ends)}


def test_a_step_without_validation_says_so(config, tokenizer, tmp_path):
    """The card of step 3 has neither the base's scores nor those of step 2 under its name."""
    rows = [{"step": 0, "val/reward/x": 0.25}, {"step": 2, "val/reward/x": 0.5}, {"step": 3}]
    cards = {}
    for step in (2, 3):
        describe_model(tmp_path, state(config, step), tokenizer, rows)
        cards[step] = (tmp_path / "README.md").read_text()
    assert "| reward/x | 0.250 | 0.500 |" in cards[2]
    assert "**Not validated**" in cards[3] and "0.250" not in cards[3] and "0.500" not in cards[3]


def test_generation_follows_validation_not_the_base_model(config, tokenizer, tmp_path):
    """The settings beside the weights replace the base's penalties, and end turns as trained."""
    base = GenerationConfig(repetition_penalty=1.5, top_k=5, do_sample=True, eos_token_id=[1, 2, 3])
    base.save_pretrained(tmp_path)
    describe_model(tmp_path, state(config, 0, [2, 7]), tokenizer, [])
    settings = GenerationConfig.from_pretrained(tmp_path)
    assert (settings.temperature, settings.top_p, settings.do_sample) == (0.6, 1.0, True)
    assert settings.repetition_penalty is None
    assert settings.eos_token_id == [2, 7] and not settings.top_k


def test_a_run_resumed_with_another_validation_file_ends_well(tmp_path, capsys, device):
    """A score that the first validation did not have is nan in the table and no error."""
    tracker = made(tmp_path)
    tracker.start(json.dumps({"step": 0, "val/pass_at_1/a": 0.25}) + "\n")
    tracker.log(1, {"val/pass_at_1/a": 0.5, "val/pass_at_1/b": 0.75})
    tracker.finish()
    assert "nan    0.750" in capsys.readouterr().out and (tmp_path / "curve.png").exists()
    result = {"base": {"pass_at_1/a": 0.25}, "trained": {"pass_at_1/a": 0.5, "pass_at_1/b": 0.75}}
    assert json.loads((tmp_path / "result.json").read_text()) == result


def test_what_is_no_number_is_null(tmp_path, tracker):
    """NaN is null in metrics.jsonl, NaN when read again, and then the same text as before."""
    tracker.log(1, {"loss/grad_norm": math.nan, "loss/ratio_max": math.inf, "loss/entropy": 0.5})
    text = (tmp_path / "metrics.jsonl").read_text()
    row = json.loads(text, parse_constant=pytest.fail)
    assert row == {"step": 1, "loss/grad_norm": None, "loss/ratio_max": None, "loss/entropy": 0.5}
    assert tracker.text() == text
    again = made(tmp_path)
    again.start(text)
    assert math.isnan(again.rows[0]["loss/grad_norm"]) and again.rows[0]["loss/entropy"] == 0.5
    assert again.text() == (tmp_path / "metrics.jsonl").read_text() == text


# ---- the console ---------------------------------------------------------------------------------


def after_a_step(replayed: int, left: int, **more) -> dict:
    """The metrics of a step of 100 questions that the console shows."""
    metrics = {
        "reward/pass_at_1": 0.25,
        "reward/mean": 0.25,
        "rollout/length": 12,
        "loss/entropy": 0.5,
        "fresh/silent": 0.75,
        "reward/timeouts": 0.0,
        "replay/questions": replayed,
        "buckets/questions": 3,
        "buckets/retired": 100 - left,
        "buckets/left": left,
        "time/step": 2.0,
    }
    if replayed:
        metrics |= {"replay/silent": 0.125, "replay/ratio": 1.07}
    return metrics | more


def console(run_dir: Path, capsys, *steps: dict, text: str = "") -> list[str]:
    """The lines of a run in batches of 8 that goes on from the rows of `text`."""
    tracker = made(run_dir, batch_size=8)
    tracker.start(text)
    for step, metrics in enumerate(steps, start=1):
        tracker.step(step, metrics)
    return capsys.readouterr().out.splitlines()


def test_a_step_is_a_line(tmp_path, capsys):
    """By hand; what a step that replayed nothing does not have is a dash.

    The mean reward stands there where rewards are not 0 or 1.
    """
    partial = after_a_step(4, left=98, **{"reward/mean": 0.375})
    without, said, with_replay = console(tmp_path, capsys, after_a_step(0, left=99), partial)
    assert without == (
        "step    1  batch 0.250  len 12  entropy 0.500  silent 0.75 –  replayed 0  w* –  "
        "buffer 3  retired 1  2.0 s"
    )
    assert with_replay == (
        "step    2  batch 0.250  reward 0.375  len 12  entropy 0.500  silent 0.75 0.12  "
        "replayed 4  w* 1.07  buffer 3  retired 2  2.0 s"
    )
    assert said == "replay starts: questions come back in step 2"  # and nothing after a resume
    text = (tmp_path / "metrics.jsonl").read_text()
    assert len(console(tmp_path, capsys, partial, text=text)) == 1


def test_a_batch_that_is_hardly_graded_is_told(tmp_path, capsys):
    """More than half of time-outs and deaths is a warning below the step's line."""
    steps = [after_a_step(0, left=99, **{"reward/timeouts": late}) for late in (0.0, 0.5, 0.75)]
    *lines, warning = console(tmp_path, capsys, *steps)
    assert len(lines) == 3 and warning.startswith("warning: 75% of the new responses score 0")


# ---- TensorBoard and W&B -------------------------------------------------------------------------


def row(step: int, life: int) -> dict:
    """Metrics of a step as a process writes them, one of them of a skipped step."""
    return {"loss/entropy": step + life / 8, "loss/grad_norm": math.nan if step == 2 else 1.0}


def first_life(run_dir: Path, tracker: str) -> None:
    """A process that has made a checkpoint after step 3, and ends after step 5 without a word."""
    first = made(run_dir, tracker, rho=0.5)
    first.start()
    for step in range(6):
        first.log(step, row(step, 1))
        if step == 3:
            (run_dir / "checkpoint").write_text(first.text())


def second_life(run_dir: Path, tracker: str) -> list[tuple]:
    """(step, entropy) of all that counts, after a process that goes on from there to step 6."""
    time.sleep(1.1)  # TensorBoard reads files in the order of the second in which they were begun
    second = made(run_dir, tracker, rho=0.5)
    second.start((run_dir / "checkpoint").read_text())
    for step in range(4, 7):
        second.log(step, row(step, 2))
    second.close()
    entropies = [(r["step"], r["loss/entropy"]) for r in second.rows]
    assert len(entropies) == 7
    return entropies


def points(run_dir: Path) -> dict[str, list[tuple[int, float]]]:
    """{metric: (step, value) of every point} as TensorBoard itself reads run_dir/tensorboard."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(
        str(run_dir / "tensorboard"), size_guidance={"scalars": 0}
    ).Reload()
    return {
        name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]
    }


def test_tensorboard_has_every_point_once(tmp_path):
    """After a crash and a resume the points are those of metrics.jsonl, NaN included."""
    pytest.importorskip("tensorboard", reason=preflight.INSTALL_TRACKER["tensorboard"])
    first_life(tmp_path, "tensorboard")
    entropies = second_life(tmp_path, "tensorboard")
    found = points(tmp_path)
    assert found["loss/entropy"] == entropies
    assert [step for step, value in found["loss/grad_norm"] if math.isnan(value)] == [2]
    assert len(found["loss/grad_norm"]) == 7


def records(file: Path) -> list:
    """What W&B has written offline: after 7 bytes records, each with a head of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data = file.read_bytes()[7:]
    assert len(data) < 2**15  # longer files have padding
    found = []
    while data:
        end = 7 + int.from_bytes(data[4:6], "little")
        found.append(Record.FromString(data[7:end]))
        data = data[end:]
    return found


def test_wandb_goes_on_under_its_id_and_has_every_step_once(tmp_path, monkeypatch):
    """By the real library, offline: a resumed process leaves the whole run, for `wandb sync`."""
    pytest.importorskip("wandb", reason=preflight.INSTALL_TRACKER["wandb"])
    monkeypatch.setenv("WANDB_MODE", "offline")
    life = "from test_tracking import *\nfirst_life(Path(sys.argv[1]), 'wandb')\nos._exit(1)"
    here = os.pathsep.join(str(ROOT / part) for part in (".", "tests", "tests/runtime"))
    command = [sys.executable, "-c", life, str(tmp_path)]
    subprocess.run(command, env=os.environ | {"PYTHONPATH": here}, check=False, timeout=120)
    entropies = second_life(tmp_path, "wandb")
    files = sorted(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == 2 and files[0].name == files[1].name  # one id
    found = []
    for record in records(files[1]):
        for item in record.history.item:
            if (item.key or item.nested_key[0]) == "loss/entropy":
                found.append((record.history.step.num, json.loads(item.value_json)))
    assert found == entropies


def test_a_missing_library_is_named_with_its_command(monkeypatch):
    """The error comes before anything is loaded, with the pins of the requirements files."""
    monkeypatch.setattr(preflight, "find_spec", lambda name: None)
    for tracker, command in preflight.INSTALL_TRACKER.items():
        why = f"tracker={tracker} needs a library that is not installed: {command}"
        with pytest.raises(ValueError, match=why):
            toy_config(tracker=tracker)
    commands = [*preflight.INSTALL_TRACKER.values(), INSTALL_DATASETS]
    extras = (ROOT / "requirements.txt").read_text()
    assert all(f"# extra: {command} " in extras for command in commands)


class Recorder:
    closed = False

    def close(self):
        self.closed = True


def test_nothing_waits_for_a_tracker_after_an_exception(tmp_path):
    """A run that ends well, or is interrupted, lets the tracker finish; one that fails does not."""
    knobs = dataclasses.asdict(toy_config()) | {"run_dir": str(tmp_path)}
    for error in (None, Interrupted, ValueError):
        recorder = Recorder()
        with suppress(ValueError), open_run(knobs) as run:
            run.tracker.writer = recorder
            if error:
                raise error
        assert recorder.closed == (error is not ValueError)


# ---- samples.jsonl, and text that somebody else wrote --------------------------------------------

HOSTILE = "a|`$x^$<img>\x1b[2J\u202e\ud800\n# b"


def group(question: str, rewards: list[float], has_star: bool = False) -> SimpleNamespace:
    """A group whose responses say `question`, a space and their number."""
    said = [
        Trajectory(
            np.array([i], np.int32), np.zeros(1, np.float32), reward=r, named_rewards={"odd": 0.5}
        )
        for i, r in enumerate(rewards)
    ]
    question = SimpleNamespace(text=question, answer="2")
    if has_star:
        return SimpleNamespace(question=question, star=said[0], new=said[1:])
    return SimpleNamespace(question=question, star=None, new=said)


GROUPS = [
    group("q0", [0, 1, 1]),
    group("q1", [1, 0, 0], has_star=True),
    group("q2", [1, 0, 0]),
    group("q3", [1, 1, 0]),
]


def written(run_dir: Path) -> list[tuple]:
    rows = jsonl(run_dir / "samples.jsonl")
    return [(r["step"], r["text"], r["rewards"]["score"], r["replayed"]) for r in rows]


def test_a_few_responses_of_a_step_are_kept(tmp_path, tracker):
    """The first right and wrong ones and the first o* are kept, at most one of a kind a group."""
    tracker.sample(1, GROUPS, lambda ids: f"\x1b[31m{ids[0]}")
    assert written(tmp_path) == [
        (1, "q0", 0, False),
        (1, "q0", 1, False),
        (1, "q1", 1, True),
        (1, "q2", 1, False),
    ]
    (first, *_) = jsonl(tmp_path / "samples.jsonl")
    assert (first["text"], first["gold"], first["response"]) == ("q0", "2", "\x1b[31m0")
    assert first["rewards"] == {"score": 0, "odd": 0.5}


def test_samples_follow_the_checkpoint(tmp_path, tracker):
    """A run that goes on from step 2 keeps the lines up to it, and writes each later step once."""
    for step in range(1, 5):
        tracker.sample(step, GROUPS, str)
        tracker.log(step, {"loss/entropy": 0.5})
    whole, checkpoint = written(tmp_path), "".join(tracker.text().splitlines(keepends=True)[:2])
    with open(tmp_path / "samples.jsonl", "a") as file:
        file.write('{"step": 5, "ques')  # killed
    second = made(tmp_path)
    second.start(checkpoint, 2)
    assert written(tmp_path) == whole[:8]
    for step in (3, 4):
        second.sample(step, GROUPS, str)
    assert written(tmp_path) == whole


def test_no_name_costs_a_run(tmp_path, capsys, config, tokenizer, tracker):
    """Table, curves, example and card show markup and control characters as text."""
    scores = {f"val/pass_at_1/{HOSTILE}": 0.25, "val/pass_at_1/$": 0.5, "val/pass_at_1/$\\frac$": 1}
    for step in (0, 1):
        tracker.log(step, scores)
    tracker.keep_example(HOSTILE)
    tracker.finish()
    said = capsys.readouterr().out + (tmp_path / "example.txt").read_text()
    assert "note" not in said and "\x1b" not in said and r"\x1b[2J\u202e\ud800" in said
    assert (tmp_path / "curve.png").stat().st_size > 5000
    describe_model(tmp_path, state(config, 1), tokenizer, tracker.rows)
    card = (tmp_path / "README.md").read_text()
    assert r"| pass_at_1/a\|\`\$x^\$\<img\>\\x1b\[2J\\u202e\\ud800 \# b | 0.250 | 0.250 |" in card


@pytest.mark.parametrize(
    "text, shown",
    [
        ("plain é 数\n\tline", "plain é 数\n\tline"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("a\rb\x9b", r"a\rb\x9b"),
        ("\u202e\u2066\u200b", r"\u202e\u2066\u200b"),
        ("1\u00a0000 \u2028", "1\u00a0000 \\u2028"),
    ],
)
def test_what_steers_a_terminal_is_shown_instead(text, shown):
    """Control and bidirectional characters are escaped, and letters of any script stay."""
    assert printable(text) == shown
    shown.encode()

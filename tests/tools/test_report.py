"""The report page: its numbers against independent ones, its errors, and it in Chromium."""

import html
import json
import math
import re
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import plain_scores, toy_config, write_jsonl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from buffer import Trajectory
from data import fingerprint, load_questions, load_tokenizer
from exgrpo import Experience
from policy import Policy
from runtime.checkpoint import Checkpoints
from runtime.tracking import Tracker
from sampler import bucket_weights
from tools import report as report_module
from tools.report import columns, describe, differing, main, read_metrics, said
from tools.stored import pieces
from worlds.arithmetic import World
from worlds.base_model import build_model, build_tokenizer

HOSTILE = """</script><img src=x onerror="document.title='run'">\u2028&lt;"""
QUESTIONS = ["3a+4b*2c-5", HOSTILE, "1a+1b+1c+1"]
VALID, FLAWED, BARE = "a3+4=7b7*2=4c4-5=9#9", "a3+4=8b8*2=6c6-5=1#1", "#9"
ROWS = [
    {
        f"val/pass_at_1/{HOSTILE}": 0.25,
        f"val/reward/{HOSTILE}": 0.375,
        "val/pass_at_1/a": 0.5,
        "val/reward/a": 0.5,
        "val/valid/a": 0.25,
    }
] + [
    {
        "reward/pass_at_1": 0.1 * i,
        "reward/mean": 0.2 * i,
        "reward/worked": 0.5,
        "reward/worked/count": 16,
        "loss/entropy": math.nan if i == 2 else 1 / i,
        "rollout/length": 20 + i,
        "replay/ratio": i % 2,
        "replay/questions": i % 2,
        "replay/gradient_share": 0.1 * (i % 2),
        "buckets/retired": i,
        "buckets/k=1": i,
        "buckets/k=2": 9 - i,
        "buckets/k=4": int(i > 1),
        "replay/from_k=1": i % 2,
        "fresh/k=0": 2 * i,
        "fresh/k=4": 1,
        "replay/k=1": i % 2,
        "time/rollout": 1.0,
        "time/update": 0.5,
        "time/step": 1.5,
    }
    for i in range(1, 5)
]


def sample(step: int, text: str, score: float, replayed: bool = False) -> dict:
    return {
        "step": step,
        "text": HOSTILE + "\ud800\x1b[2J",
        "gold": HOSTILE + " is right",
        "response": text,
        "finished": True,
        "rewards": {"score": score, HOSTILE: math.nan},
        "replayed": replayed,
    }


SAMPLES = [
    sample(1, "early", 1.0),
    sample(4, "wrong\u202e", 0.0),
    sample(4, "5 - 9", 1.0),
    sample(4, "<b>" + "x" * 1_000_000, 1.0, True),
]


def save_run(directory: Path, rho: float = 0.5) -> Path:
    """A run directory after four steps, two questions buffered and one retired.

    With rho 0 it has neither these nor samples. Its model is like no other.
    """
    files = directory.parent / f"{directory.name} files"
    tokenizer = build_tokenizer()
    tokenizer.add_tokens([HOSTILE])
    build_model(World(hidden=32, layers=1, heads=1, intermediate=32), tokenizer).save_pretrained(
        files
    )
    tokenizer.save_pretrained(files)
    rows = [
        {
            "data_source": "x",
            "prompt": [{"role": "user", "content": q}],
            "reward_model": {"ground_truth": "9"},
        }
        for q in QUESTIONS
    ]
    config = toy_config(
        model=str(files),
        train_files=[write_jsonl(files / "train.jsonl", rows)],
        reward="worlds.arithmetic:reward",
        run_dir=str(directory),
        max_prompt_length=100,
        batch_size=2,
        rho=rho,
        steps=9,
    )
    tokenizer = load_tokenizer(config, config.model)
    questions, _ = load_questions(config.train_files, config, tokenizer)
    tracker = Tracker(asdict(config))
    checkpoints, experience = Checkpoints(asdict(config)), Experience(config, questions)
    checkpoints.check_origins(questions=fingerprint(questions))
    policy = Policy(config, torch.device("cpu"))
    with torch.no_grad():
        for p in policy.module.parameters():
            p.mul_(1.5)  # not the model that the run began with
    tracker.start()
    for step, row in enumerate(ROWS):
        tracker.log(step, row)
    if rho:
        for q, k, texts in ((0, 3, (VALID, FLAWED, BARE)), (1, 5, (HOSTILE,))):
            ids = [
                np.array([*tokenizer(t)["input_ids"], tokenizer.eos_token_id], dtype=np.int32)
                for t in texts
            ]
            experience.buffer.add(
                q, k, [Trajectory(t, np.full(len(t), -0.5, dtype=np.float32), 2, 1.0) for t in ids]
            )
        experience.buffer.retire(2)
        write_jsonl(directory / "samples.jsonl", SAMPLES)
        with open(directory / "samples.jsonl", "a") as file:
            file.write('{"step": 5')
    state = {"experience": experience.state_dict()}
    checkpoints.save(4, policy.shards(), state, experience.buffer.save, tracker.text())
    return directory


@pytest.fixture(scope="module")
def runs(device, tmp_path_factory) -> list[Path]:
    """Two runs, with replay and without."""
    return [
        save_run(tmp_path_factory.mktemp(name) / "run", rho)
        for name, rho in (("replay", 0.5), ("on-policy", 0.0))
    ]


@pytest.fixture(scope="module")
def described(runs, device) -> dict:
    return describe(runs[0], read_metrics(runs[0]), 40, device)


@pytest.fixture(scope="module")
def report(runs, tmp_path_factory) -> Path:
    """The page about both runs."""
    output = tmp_path_factory.mktemp("report") / "report.html"
    main([str(runs[0]), str(runs[1]), "--output", str(output)])
    return output


# ---- what is on it ----


def test_scores_are_those_of_the_checkpoint_and_the_chosen_one_has_the_lowest_mean_entropy(
    described, runs, tokenizer
):
    """Entropies, w* and NLL of every token are those of an ordinary forward pass."""
    files = runs[0].parent / "run files"
    lm = AutoModelForCausalLM.from_pretrained(files, dtype=torch.float32)
    with torch.no_grad():
        for p in lm.parameters():
            p.mul_(1.5)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTIONS[0]}], add_generation_prompt=True
    )["input_ids"]
    asked = described["browser"]["questions"][0]
    assert (asked["text"], asked["k"], described["browser"]["step"]) == (QUESTIONS[0], 3, 4)
    for text, shown in zip((VALID, FLAWED, BARE), asked["responses"], strict=True):
        ids = [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]
        logprobs, entropies = (x.detach().numpy() for x in plain_scores(lm, prompt, ids))
        np.testing.assert_allclose(shown["entropies"], entropies, atol=2e-4)
        np.testing.assert_allclose(shown["now"], logprobs, atol=1e-4)
        assert set(shown["past"]) == {-0.5}
        means = entropies.mean(), 0.5, -logprobs.mean(), np.exp(logprobs + 0.5).mean(), 2
        names = ("entropy", "nll_then", "nll_now", "ratio", "step")
        assert [shown[name] for name in names] == pytest.approx(means, abs=1e-4)
    means = [r["entropy"] for r in asked["responses"]]
    assert [r["chosen"] for r in asked["responses"]] == [m == min(means) for m in means]
    assert len(set(means)) == 3


def test_steps_are_judged_where_they_stand(described):
    """Each written step has its tokens and its verdict by hand, and the chain has its own."""
    responses = described["browser"]["questions"][0]["responses"]
    assert [(r["verdict"], r["steps"], r["special"]) for r in responses] == [
        ("flawless chain", [[0, 6, True], [6, 12, True], [12, 18, True]], [20]),
        ("flawed chain", [[0, 6, False], [6, 12, True], [12, 18, True]], [20]),
        ("bare answer", [], [2]),
    ]


def test_pieces_join_to_the_text():
    """A character of several bytes comes with its last token, and stripped spaces are kept."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({c: i for i, c in enumerate([*alphabet, "<end>"])}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    bytewise = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>")
    texts, special = pieces(bytewise, bytewise("né 1€\n😀")["input_ids"] + [bytewise.eos_token_id])
    assert texts == ["n", "", "é", " ", "1", "", "", "€", "\n", "", "", "", "😀", "<end>"]
    assert special == [13]

    core = Tokenizer(models.WordLevel({"▁a": 0, "▁b": 1, "c": 2, "<unk>": 3}, unk_token="<unk>"))
    core.decoder = decoders.Metaspace()
    spaced = PreTrainedTokenizerFast(tokenizer_object=core)
    assert pieces(spaced, [0, 1, 2, 1])[0] == ["a", " b", "c", " b"]


def test_metrics_that_are_no_numbers_are_gaps(described):
    """NaN, text and infinities become None, and so does w* where nothing was replayed."""
    assert described["metrics"]["loss/entropy"] == [None, 1.0, None, pytest.approx(1 / 3), 0.25]
    assert described["metrics"]["replay/ratio"] == [None, 1.0, None, 1.0, None]
    odd = {"loss/entropy": "<b>", "time/plan": math.inf, "rollout/length": 10**400}
    gaps = {name: [None] for name in odd}
    assert columns([{"step": 1} | odd]) == {"step": [1], "metrics": gaps}


def test_the_knobs_in_which_runs_differ():
    """Each has a value a run, a dash where it is not known; run_dir, which always differs, is out.

    A run without a checkpoint has no knobs, and one of another version may lack some.
    """
    runs = [
        {"rho": 0.5, "val_files": ["a"], "run_dir": "runs/a", "seed": 0},
        {},
        {"rho": 0.0, "val_files": ["a"], "run_dir": "runs/b", "seed": 0, "mu": 0.5},
    ]
    described = [{"all_knobs": knobs} for knobs in runs]
    assert differing(described) == [["rho", "0.5", "–", "0.0"], ["mu", "–", "–", "0.5"]]
    assert differing(described[:2]) == []


def test_the_page_holds_everything_and_refers_to_nothing(report, runs):
    """The page is one file of two scripts, and hostile text cannot end its data."""
    before, data, after = re.split(r'(?<=id="data">)(.*?)(?=</script>)', report.read_text())
    rest = before + after
    assert rest.count("<script") == rest.count("</script>") == 2
    assert not re.search(r"<(img|link|iframe)|\b(src|href|action)=|url\(|@import", rest)
    data = json.loads(data)
    assert [run["name"] for run in data["runs"]] == [str(run) for run in runs]
    assert data["runs"][0]["browser"]["questions"][1]["text"] == HOSTILE
    assert "the run is on-policy" in data["runs"][1]["browser"]["missing"]
    assert ["rho", "0.5", "0.0"] in data["differing"]


def test_what_the_model_said_is_in_order_and_fits(runs, tmp_path, monkeypatch):
    """Right ones come first, half a line is none, and too much text leaves steps out."""
    shown = said(runs[0])
    assert [s["kind"] for s in shown] == ["right", "right", "wrong", "o*"]
    assert shown[1]["response"] == "5 - 9"
    assert shown[1]["rewards"] == {"score": 1.0, HOSTILE: None}
    assert said(runs[1]) == []
    lines = [json.dumps(sample(step, "t" * 10, 1.0)) for step in range(1, 9)]
    (tmp_path / "samples.jsonl").write_text("\n".join([*lines, lines[0][:20]]))
    assert [s["step"] for s in said(tmp_path)] == [*range(1, 9)]
    each = len(HOSTILE) + 5 + 10
    monkeypatch.setattr(report_module, "MOST_TEXT", 4 * each)
    assert [s["step"] for s in said(tmp_path)] == [2, 4, 6, 8]
    monkeypatch.setattr(report_module, "MOST_TEXT", 1)
    assert [s["step"] for s in said(tmp_path)] == [8]


# ---- errors ----


@pytest.mark.parametrize(
    "metrics, flags, said",
    [
        (None, [], "has no metrics.jsonl: name the run_dir"),
        ('{"step": 0', [], "is empty"),
        ('{"step": 0}\n{\n', [], "metrics.jsonl, line 2: not JSON"),
        ('{"step": 0}\n', ["--questions", "0"], "--questions must be at least 1"),
        ('{"step": 0}\n', ["--output", "no/such/out.html"], "in a directory that is there"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, metrics, flags, said):
    """Each error is one sentence, and nothing is written."""
    if metrics:
        (tmp_path / "metrics.jsonl").write_text(metrics)
    with pytest.raises(ValueError, match=said):
        main([str(tmp_path), "--output", str(tmp_path / "out.html"), *flags])
    assert not (tmp_path / "out.html").exists()


def test_a_run_without_responses_says_why(runs, device, tmp_path):
    """A missing checkpoint, other questions than in training, and a missing model are named."""

    def missing(run: Path) -> str:
        return describe(run, [{"step": 0}], 40, device)["browser"]["missing"]

    (tmp_path / "new").mkdir()
    assert "no whole checkpoint yet" in missing(tmp_path / "new")
    run = save_run(tmp_path / "run")
    assert [describe(r, [{"step": 0}], 40, device)["known"] for r in (tmp_path / "new", run)] == [
        False,
        True,
    ]
    train = tmp_path / "run files" / "train.jsonl"
    train.write_text(train.read_text().replace('"9"', '"8"'))
    assert "not the questions that the run was trained on" in missing(run)
    train.unlink()
    assert "is not there" in missing(run)
    shutil.copy(runs[0].parent / "run files" / "train.jsonl", train)
    (tmp_path / "run files" / "config.json").unlink()
    assert "there is no model in" in missing(run)


# ---- in a browser ----

BROWSERS = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
BROWSER = next((path for path in BROWSERS if path), None)
HIDDEN = re.compile(r'<section class="replay"[^>]*?(hidden="")?>')


def opened(page: Path, tmp_path: Path) -> str:
    """The page as Chromium has it after the scripts, of which none says anything."""
    # Chromium shows half a character, but its dump of a page would end at one.
    copy = tmp_path / "report.html"
    copy.write_text(page.read_text().replace("\\ud800", ""))
    flags = f"""
        --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run
        --user-data-dir={tmp_path}
        --enable-logging=stderr --log-level=0
        --virtual-time-budget=5000 --dump-dom
    """
    command = [BROWSER, *flags.split(), copy.as_uri()]
    dump = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120)
    assert "CONSOLE" not in dump.stderr
    return dump.stdout


@pytest.mark.skipif(
    BROWSER is None, reason="no chromium on the PATH (Debian: apt-get install chromium)"
)
def test_the_page_opens_and_hostile_text_stays_text(report, runs, tmp_path):
    """Chromium shows curves, stored responses and hostile text, of which nothing ran.

    The chance of a bucket is that of sampler.py, with K = 4. Mean rewards stand there where they
    are not Pass@1, numbers of rewards do not. An on-policy run has no empty parts about replay.
    """
    dump = opened(report, tmp_path)
    assert dump.count("<article") >= 3
    assert "<td>rho</td><td>0.5</td><td>0.0</td>" in dump
    assert "<img" not in dump and "<title>Training report</title>" in dump
    assert f">right: {html.escape(HOSTILE, quote=False)} is right</div>" in dump
    shown = {int(k): float(p) for k, p in re.findall(r'data-k="(\d+)" data-p="([\d.]+)"', dump)}
    assert shown == pytest.approx(dict(zip((1, 2, 4), bucket_weights([1, 2, 4], 4))))
    titles = html.unescape(" ".join(re.findall("<h3>(.*?)</h3>", dump)))
    assert "reward/mean" in titles and f"val/reward/{HOSTILE}" in titles
    assert "val/reward/a" not in titles and "/count" not in titles
    assert HIDDEN.findall(dump) == [""] * 3

    main([str(runs[1]), "--output", str(tmp_path / "on-policy.html")])
    dump = opened(tmp_path / "on-policy.html", tmp_path)
    assert "Fresh groups" in dump and HIDDEN.findall(dump) == ['hidden=""'] * 3

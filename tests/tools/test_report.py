"""The report page: its numbers against independent ones, its errors, and it in Chromium."""

import html
import json
import math
import re
import shutil
import subprocess
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import plain_scores, write_jsonl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from buffer import ReplayBuffer
from data import Question
from sampler import bucket_weights
from tools import report as report_module
from tools.report import columns, describe, differing, main, page, read_metrics, said
from tools.stored import judge, newest_checkpoint, pieces, stored_responses

HOSTILE = """</script><img src=x onerror="document.title='run'">\u2028&lt;"""


@pytest.fixture(scope="module")
def described(finished_run, device) -> dict:
    return describe(finished_run, read_metrics(finished_run), 40, device)


@pytest.fixture(scope="module")
def hostile(described) -> dict:
    """A run with hostile text wherever text stands, and rewards that are not 0 or 1."""
    run = deepcopy(described)
    run["browser"]["questions"][0]["text"] = HOSTILE
    run["browser"]["questions"][0]["responses"][0]["tokens"][0] = HOSTILE
    for sample in run["said"]:
        sample |= {"text": HOSTILE + "\ud800\x1b[2J", "gold": HOSTILE + " is right"}
    metrics = run["metrics"]
    numbers = metrics["reward/pass_at_1"]
    half = [number and number / 2 for number in numbers]
    metrics |= {f"val/pass_at_1/{HOSTILE}": numbers, f"val/reward/{HOSTILE}": half}
    metrics |= {"reward/mean": half, "reward/worked": half, "reward/worked/count": numbers}
    return run


@pytest.fixture(scope="module")
def on_policy(described) -> dict:
    """The same run as if rho had been 0."""
    knobs = {"all_knobs": described["all_knobs"] | {"rho": 0.0}}
    knobs["knobs"] = described["knobs"] | {"rho": 0.0}
    return described | knobs | {"name": "on-policy", "browser": {"missing": "the run is on-policy"}}


# ---- what is on it ----


def test_scores_are_those_of_the_checkpoint_and_the_chosen_one_has_the_lowest_mean_entropy(
    described, finished_run, tokenizer
):
    """Entropies, w* and NLL of every token are those of an ordinary forward pass."""
    lm = AutoModelForCausalLM.from_pretrained(finished_run / "model", dtype=torch.float32)
    buffer = ReplayBuffer.load(newest_checkpoint(finished_run) / "buffer.safetensors")
    several = 0
    for asked in described["browser"]["questions"]:
        turns = [{"role": "user", "content": asked["text"]}]
        prompt = tokenizer.apply_chat_template(turns, add_generation_prompt=True)["input_ids"]
        stored = buffer.trajectories(asked["id"])
        for t, shown in zip(stored, asked["responses"], strict=True):
            logprobs, entropies = (
                x.detach().numpy() for x in plain_scores(lm, prompt, t.token_ids)
            )
            np.testing.assert_allclose(shown["entropies"], entropies, atol=2e-4)
            np.testing.assert_allclose(shown["now"], logprobs, atol=1e-4)
            np.testing.assert_allclose(shown["past"], t.logprobs, atol=1e-5)
            ratio = np.exp(logprobs - t.logprobs).mean()
            means = entropies.mean(), -t.logprobs.mean(), -logprobs.mean(), ratio, t.step
            names = ("entropy", "nll_then", "nll_now", "ratio", "step")
            assert [shown[name] for name in names] == pytest.approx(means, abs=1e-4)
        means = [r["entropy"] for r in asked["responses"]]
        assert [r["entropy"] for r in asked["responses"] if r["chosen"]] == [min(means)]
        several += len(set(means)) > 1
    assert several and described["browser"]["step"] == 3


@pytest.mark.parametrize(
    "said, verdict",
    [
        ("a3+4=7b7*2=4c4-5=9#9", ([[0, 6, True], [6, 12, True], [12, 18, True]], "flawless chain")),
        ("a3+4=8b8*2=6c6-5=1#1", ([[0, 6, False], [6, 12, True], [12, 18, True]], "flawed chain")),
        ("#9", ([], "bare answer")),
    ],
)
def test_steps_are_judged_where_they_stand(said, verdict):
    """Each written step has its tokens and its verdict by hand, and the chain has its own."""
    row = {"prompt": [{"role": "user", "content": "3a+4b*2c-5"}]}
    question = Question(0, "3a+4b*2c-5", np.zeros(0), "9", "x", row)
    assert judge(question, [*said, "<eos>"], [len(said)]) == verdict


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


def test_metrics_that_are_no_numbers_are_gaps():
    """NaN, text and infinities become None, and so does w* where nothing was replayed."""
    rows = [
        {"step": 1, "loss/entropy": "<b>", "time/plan": math.inf, "replay/questions": 0},
        {"step": 2, "loss/entropy": math.nan, "time/plan": 10**400, "replay/ratio": 1.5},
    ]
    rows[0]["replay/ratio"] = 0.0
    found = columns(rows)["metrics"]
    assert found["loss/entropy"] == found["time/plan"] == [None, None]
    assert found["replay/ratio"] == [None, 1.5]


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


def test_the_page_holds_everything_and_refers_to_nothing(hostile, on_policy):
    """The page is one file of two scripts, and hostile text cannot end its data."""
    text = page([hostile, on_policy])
    before, data, after = re.split(r'(?<=id="data">)(.*?)(?=</script>)', text)
    rest = before + after
    assert rest.count("<script") == rest.count("</script>") == 2
    assert not re.search(r"<(img|link|iframe)|\b(src|href|action)=|url\(|@import", rest)
    data = json.loads(data)
    assert data["runs"] == json.loads(json.dumps([hostile, on_policy]))
    assert ["rho", "0.5", "0.0"] in data["differing"]


def test_what_the_model_said_is_in_order_and_fits(tmp_path, monkeypatch):
    """Right ones come first, half a line is none, and too much text leaves steps out."""
    assert said(tmp_path) == []
    samples = []
    for step, score in [(4, 0.0), (4, 0.6), (1, 1.0), (2, 1.0), (3, 1.0), (4, math.nan)]:
        rewards = {"score": score, HOSTILE: math.nan}
        sample = {"step": step, "text": "q", "response": "nine chars", "rewards": rewards}
        samples.append(sample | {"replayed": math.isnan(score)})
    write_jsonl(tmp_path / "samples.jsonl", samples)
    with open(tmp_path / "samples.jsonl", "a") as file:
        file.write('{"step": 5')
    shown = said(tmp_path)
    assert [s["kind"] for s in shown] == ["right"] * 4 + ["wrong", "o*"]
    assert shown[3]["rewards"] == {"score": 0.6, HOSTILE: None}
    for most, steps in ((44, [2, 4, 4, 4]), (1, [4, 4, 4])):
        monkeypatch.setattr(report_module, "MOST_TEXT", most)
        assert [s["step"] for s in said(tmp_path)] == steps


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


def test_a_run_without_responses_says_why(finished_run, device, tmp_path):
    """No checkpoint, an on-policy run, other questions, and missing files are named."""
    new = describe(tmp_path, [{"step": 0}], 40, device)
    assert "no whole checkpoint yet" in new["browser"]["missing"] and not new["known"]
    last = newest_checkpoint(finished_run)
    state = json.loads((last / "state.json").read_text())

    def refused(why: str, checkpoint: Path = last, questions=state["questions"], **knobs) -> None:
        changed = state | {"questions": questions, "config": state["config"] | knobs}
        with pytest.raises((OSError, ValueError), match=why):
            stored_responses(tmp_path, checkpoint, changed, 40, device)

    refused("not the questions that the run was trained on", questions="others")
    refused("is not there", train_files=[str(tmp_path / "train.jsonl")])
    refused("there is no model in", model=str(tmp_path))
    ReplayBuffer().save(tmp_path / "buffer.safetensors")
    refused("empty: the run is on-policy", tmp_path, rho=0.0)


# ---- in a browser ----

BROWSERS = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
BROWSER = next((path for path in BROWSERS if path), None)
HIDDEN = re.compile(r'<section class="replay"[^>]*?(hidden="")?>')


def opened(text: str, tmp_path: Path) -> str:
    """The page as Chromium has it after the scripts, of which none says anything."""
    # Chromium shows half a character, but its dump of a page would end at one.
    copy = tmp_path / "report.html"
    copy.write_text(text.replace("\\ud800", ""))
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
def test_the_page_opens_and_hostile_text_stays_text(hostile, on_policy, tmp_path):
    """Chromium shows curves, stored responses and hostile text, of which nothing ran.

    The chance of a bucket is that of sampler.py, with K = 8. Mean rewards stand there where they
    are not Pass@1, numbers of rewards do not. An on-policy run has no empty parts about replay.
    """
    dump = opened(page([hostile, on_policy]), tmp_path)
    assert dump.count("<article") >= 3
    assert "<td>rho</td><td>0.5</td><td>0.0</td>" in dump
    assert "<img" not in dump and "<title>Training report</title>" in dump
    assert f">right: {html.escape(HOSTILE, quote=False)} is right</div>" in dump
    shown = {int(k): float(p) for k, p in re.findall(r'data-k="(\d+)" data-p="([\d.]+)"', dump)}
    filled = [k for k in range(1, 8) if hostile["metrics"][f"buckets/k={k}"][-1]]
    assert shown == pytest.approx(dict(zip(filled, bucket_weights(filled, 8))))
    titles = html.unescape(" ".join(re.findall("<h3>(.*?)</h3>", dump)))
    assert "reward/mean" in titles and f"val/reward/{HOSTILE}" in titles
    assert "val/reward/arithmetic" not in titles and "/count" not in titles
    assert HIDDEN.findall(dump) == [""] * 3

    dump = opened(page([on_policy]), tmp_path)
    assert "Fresh groups" in dump and HIDDEN.findall(dump) == ['hidden=""'] * 3

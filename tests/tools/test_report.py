"""The report page: its numbers against independent ones, its errors, and the page itself in headless
Chromium."""

import asyncio
import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import plain_scores
from transformers import AutoModelForCausalLM

from buffer import Trajectory
from config import Config
from data import fingerprint, load_questions, load_tokenizer
from exgrpo import Experience
from policy import Policy
from runtime.checkpoint import Checkpoints
from runtime.tracking import Tracker
from sampler import bucket_weights
from tools import report as report_module
from tools.report import columns, describe, main, read_metrics, said
from tools.stored import pieces
from worlds.arithmetic import World, judge_steps
from worlds.base_model import build_model, build_tokenizer

HOSTILE = """</script><img src=x onerror="document.title='run'">\u2028&lt;"""
QUESTIONS = ["3a+4b*2c-5", HOSTILE, "1a+1b+1c+1"]
VALID, FLAWED, BARE = "a3+4=7b7*2=4c4-5=9#9", "a3+4=8b8*2=6c6-5=1#1", "#9"
ROWS = [{f"val/pass_at_1/{HOSTILE}": 0.25, "val/pass_at_1/a": 0.5, "val/valid/a": 0.25}] + [
    {"reward/pass_at_1": 0.1 * i, "loss/entropy": math.nan if i == 2 else 1 / i, "rollout/length": 20 + i,
     "replay/ratio": i % 2, "replay/questions": i % 2, "replay/gradient_share": 0.1 * (i % 2),
     "buckets/retired": i,
     "buckets/k=1": i, "buckets/k=2": 9 - i, "buckets/k=3": int(i > 1), "replay/from_k=1": i % 2,
     "fresh/k=0": 2 * i, "fresh/k=4": 1, "replay/k=1": i % 2, "fresh/signal": 4 * i, "time/rollout": 1.0,
     "time/update": 0.5, "time/step": 1.5} for i in range(1, 5)]
ALIKE = "1" * 100  # two questions of the same beginning and end


def sample(step: int, text: str, score: float, replayed: bool = False) -> dict:
    return {"step": step, "question": HOSTILE + "\ud800\x1b[2J", "text": text, "finished": True,
            "rewards": {"score": score, HOSTILE: math.nan}, "replayed": replayed}


SAMPLES = [sample(1, "early", 1.0), sample(4, "wrong\u202e", 0.0), sample(4, "5 - 9", 1.0),
           sample(4, "<b>" + "x" * 1_000_000, 1.0, True)]


def save_run(directory: Path, rho: float = 0.5) -> Path:
    """A run directory after four steps: two buffered questions (none with rho 0), one retired, a model like
    no other."""
    files = directory.parent / f"{directory.name} files"
    tokenizer = build_tokenizer()
    tokenizer.add_tokens([HOSTILE])
    build_model(World(hidden=32, layers=1, heads=1, intermediate=32), tokenizer).save_pretrained(files)
    tokenizer.save_pretrained(files)
    rows = [{"data_source": "x", "prompt": [{"role": "user", "content": q}],
             "reward_model": {"ground_truth": "9"}}
            for q in QUESTIONS]
    (files / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = Config(model=str(files), train_files=[str(files / "train.jsonl")],
                    reward="worlds.arithmetic:reward",
                    run_dir=str(directory), max_prompt_length=100, batch_size=2, rho=rho, steps=9)
    tokenizer = load_tokenizer(config, config.model)
    questions, _ = load_questions(config.train_files, config, tokenizer)
    tracker = Tracker(config.run_dir, config.steps)
    checkpoints, experience = Checkpoints(asdict(config)), Experience(config, questions)
    checkpoints.check_questions(fingerprint(questions))
    policy = Policy(config, config.model, torch.device("cpu"))
    with torch.no_grad():
        for p in policy.module.parameters():
            p.mul_(1.5)  # not the model that the run began with
    tracker.start()
    for step, row in enumerate(ROWS):
        tracker.log(step, row)
    if rho:
        for q, k, texts in ((0, 3, (VALID, FLAWED, BARE)), (1, 5, (HOSTILE,))):
            ids = [np.array([*tokenizer(t)["input_ids"], tokenizer.eos_token_id],
                            dtype=np.int32) for t in texts]
            experience.buffer.add(q, k,
                                  [Trajectory(t, np.full(len(t), -0.5, dtype=np.float32), 2) for t in ids])
        experience.buffer.retire(2)
    if rho:
        lines = "".join(json.dumps(s) + "\n" for s in SAMPLES)
        (directory / "samples.jsonl").write_text(lines + '{"step": 5')
    state = {"experience": experience.state_dict()}
    checkpoints.save(4, state, policy.tensors(), experience.buffer.save, tracker.text())
    return directory


@pytest.fixture(scope="module")
def runs(device, tmp_path_factory) -> list[Path]:
    """Two runs, with replay and without."""
    return [save_run(tmp_path_factory.mktemp(name) / "run", rho) for name,
            rho in (("replay", 0.5), ("on-policy", 0.0))]


@pytest.fixture(scope="module")
def described(runs, device) -> dict:
    return describe(runs[0], read_metrics(runs[0]), 40, device)


@pytest.fixture(scope="module")
def report(runs, tmp_path_factory) -> Path:
    """The page about both runs."""
    output = tmp_path_factory.mktemp("report") / "report.html"
    main([str(runs[0]), str(runs[1]), str(runs[0]), "--output", str(output)])
    return output


# ---- what is on it ----


def test_scores_are_those_of_the_checkpoint_and_the_chosen_one_has_the_lowest_mean_entropy(described, runs,
                                                                                           tokenizer):
    """Entropies, w* and NLL of every token against an ordinary forward pass of the checkpoint's weights."""
    files = runs[0].parent / "run files"
    lm = AutoModelForCausalLM.from_pretrained(files, dtype=torch.float32)
    with torch.no_grad():
        for p in lm.parameters():
            p.mul_(1.5)
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": QUESTIONS[0]}],
                                           add_generation_prompt=True)["input_ids"]
    asked = described["browser"]["questions"][0]
    assert asked["text"] == QUESTIONS[0] and asked["k"] == 3 and described["browser"]["step"] == 4
    for text, shown in zip((VALID, FLAWED, BARE), asked["responses"], strict=True):
        ids = [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]
        logprobs, entropies = (x.detach().numpy() for x in plain_scores(lm, prompt, ids))
        np.testing.assert_allclose(shown["entropies"], entropies, atol=2e-4)
        np.testing.assert_allclose(shown["now"], logprobs, atol=1e-4)
        assert set(shown["past"]) == {-0.5}
        assert shown["entropy"] == pytest.approx(entropies.mean(), abs=1e-4)
        assert (shown["nll_then"], shown["nll_now"]) == (0.5, pytest.approx(-logprobs.mean(), abs=1e-4))
        assert shown["ratio"] == pytest.approx(np.exp(logprobs + 0.5).mean(), abs=1e-4) and shown["step"] == 2
    means = [r["entropy"] for r in asked["responses"]]
    assert [r["chosen"] for r in asked["responses"]] == [m == min(means) for m in means]
    assert len(set(means)) == 3 and described["planned"] == 9


def test_steps_are_judged_where_they_stand(described):
    """The tokens of each written step with the verdict worked out by hand, and the verdict on the chain."""
    valid, flawed, bare = described["browser"]["questions"][0]["responses"]
    assert valid["steps"] == [[0, 6, True], [6, 12, True],
                              [12, 18, True]] and valid["verdict"] == "flawless chain"
    assert flawed["steps"] == [[0, 6, False], [6, 12, True],
                               [12, 18, True]] and flawed["verdict"] == "flawed chain"
    assert bare["steps"] == [] and bare["verdict"] == "bare answer" and bare["special"] == [2]
    steps = judge_steps("3a+4b*2", "so a3+4=7, not b7*3=1 or c1+1=2")
    assert [(m[0], m.start(), ok) for m, ok in steps] == [("a3+4=7", 3, True), ("b7*3=1", 15, False),
                                                          ("c1+1=2", 25, False)]


def test_pieces_join_to_the_text():
    """A character of several bytes comes with its last token; spaces that a decoder takes from the first
    token are kept."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({c: i for i, c in enumerate([*alphabet, "<end>"])}, []))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    bytewise, text = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>"), "né 1€\n😀"
    texts, special = pieces(bytewise, bytewise(text)["input_ids"] + [bytewise.eos_token_id])
    assert texts == ["n", "", "é", " ", "1", "", "", "€", "\n", "", "", "", "😀", "<end>"] and special == [13]
    lone = bytewise("é")["input_ids"][:1]
    assert pieces(bytewise, lone * 6)[0] and "".join(pieces(bytewise, lone * 6)[0]) == "\ufffd" * 6

    core = Tokenizer(models.WordLevel({"▁a": 0, "▁b": 1, "c": 2, "<unk>": 3}, unk_token="<unk>"))
    core.decoder = decoders.Metaspace()
    assert pieces(PreTrainedTokenizerFast(tokenizer_object=core), [0, 1, 2, 1])[0] == ["a", " b", "c", " b"]


def test_metrics_that_are_no_numbers_are_gaps(described):
    """NaN, text and infinities become None; so does w* where nothing was replayed; other metrics are left
    out."""
    assert described["metrics"]["loss/entropy"] == [None, 1.0, None, pytest.approx(1 / 3), 0.25]
    assert described["metrics"]["replay/ratio"] == [None, 1.0, None, 1.0, None]
    odd = columns([{"step": 1, "loss/entropy": "<b>", "time/plan": math.inf, "rollout/length": 10**400,
                    "other": 1}])
    assert odd == {"step": [1],
                   "metrics": {"loss/entropy": [None], "time/plan": [None], "rollout/length": [None]}}


class Scripts(HTMLParser):
    """The tags of a page, what they refer to, and the text of its scripts."""

    def __init__(self, text: str):
        super().__init__()
        self.tags, self.references, self.scripts = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.references += [value for name, value in attributes if name in ("src", "href", "action", "data")]
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.tags and self.tags[-1] == "script":
            self.scripts[-1] += data


def test_the_page_holds_everything_and_refers_to_nothing(report, runs):
    """One file; two scripts, the data and the program; hostile text cannot end the data; a run named twice
    appears once."""
    page = Scripts(report.read_text())
    assert page.tags.count("script") == 2 == len(page.scripts)
    assert not page.references and "img" not in page.tags
    assert "url(" not in report.read_text() and "@import" not in report.read_text()
    data = json.loads(page.scripts[0])
    assert [run["name"] for run in data["runs"]] == [str(run) for run in runs]
    assert data["runs"][0]["browser"]["questions"][1]["text"] == HOSTILE
    assert "the run is on-policy" in data["runs"][1]["browser"]["missing"]


def test_what_the_model_said_is_in_order_and_fits(runs, tmp_path, monkeypatch):
    """Right ones first, half a line is none; too much text leaves steps out."""
    shown = said(runs[0])
    assert [(s["step"], s["kind"]) for s in shown] == [(1, "right"), (4, "right"), (4, "wrong"), (4, "o*")]
    assert shown[1]["text"] == "5 - 9" and shown[1]["rewards"] == {"score": 1.0, HOSTILE: None}
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


def test_what_cannot_be_read_is_named(tmp_path, capsys):
    """No metrics.jsonl, none in it yet, a line that is no row, and impossible flags end with a sentence and
    nothing written."""
    def said(*argv: str) -> str:
        with pytest.raises(SystemExit):
            main([*argv, "--output", str(tmp_path / "out.html")] if "--output" not in argv else [*argv])
        assert not (tmp_path / "out.html").exists()
        return capsys.readouterr().err

    run, file = str(tmp_path), tmp_path / "metrics.jsonl"
    assert "has no metrics.jsonl: name the run_dir" in said(run)
    file.write_text('{"step": 0')
    assert "is empty" in said(run)
    for line in ("{", "[1]", '{"step": "1"}', "[" * 100_000, '{"loss": 1}'):
        file.write_text('{"step": 0}\n' + line + "\n")
        assert "metrics.jsonl, line 2: not " in said(run)
    file.write_text('{"step": 0}\n')
    assert "--questions must be at least 1" in said(run, "--questions", "0")
    assert "in a directory that is there" in said(run, "--output", str(tmp_path / "no" / "out.html"))


def test_a_run_without_responses_says_why(runs, device, tmp_path):
    """No checkpoint yet, other questions than in training, a model that is gone, and knobs of another
    version."""
    def missing(run: Path) -> str:
        return describe(run, [{"step": 0}], 40, device)["browser"]["missing"]

    (tmp_path / "new").mkdir()
    assert "no whole checkpoint yet" in missing(tmp_path / "new")
    run = save_run(tmp_path / "run")
    assert [describe(r, [{"step": 0}], 40, device)["known"] for r in (tmp_path / "new", run)] == [False, True]
    train = tmp_path / "run files" / "train.jsonl"
    train.write_text(train.read_text().replace('"9"', '"8"'))
    assert "not the questions that the run was trained on" in missing(run)
    train.unlink()
    assert "no such file" in missing(run)
    shutil.copy(runs[0].parent / "run files" / "train.jsonl", train)
    (tmp_path / "run files" / "config.json").unlink()
    assert "there is no model in" in missing(run)


# ---- in a browser ----

FLAGS = ("--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
         "--disable-background-networking --disable-sync "
         "--disable-component-update --disable-dev-shm-usage --remote-debugging-port=0").split()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    """The address of a headless Chromium's DevTools."""
    pytest.importorskip("aiohttp", reason="aiohttp, which comes with vLLM, speaks to Chromium")
    binary = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if binary is None:
        pytest.skip("no chromium on the PATH (Debian: apt-get install chromium)")
    profile = tmp_path_factory.mktemp("profile")
    process = subprocess.Popen([binary, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
                               stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        file, deadline = profile / "DevToolsActivePort", time.monotonic() + 60
        while not (file.exists() and file.read_text().count("\n")):
            assert process.poll() is None and time.monotonic() < deadline, "Chromium did not start"
            time.sleep(0.1)
        yield f"http://127.0.0.1:{file.read_text().split()[0]}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


PICK = "(s => { s.value = %d; s.dispatchEvent(new Event('change')) })(document.getElementById('question'))"


class Tab:
    """A page in Chromium, over the DevTools protocol. events: everything it reported, in order."""

    def __init__(self, socket):
        self.socket, self.numbers, self.events = socket, itertools.count(1), []

    async def call(self, method: str, **parameters) -> dict:
        number = next(self.numbers)
        await self.socket.send_json({"id": number, "method": method, "params": parameters})
        while (message := await self.socket.receive_json(timeout=60)).get("id") != number:
            self.events.append(message)
        assert "error" not in message, message
        return message["result"]

    async def open(self, file: Path) -> None:
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=file.as_uri())
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(await self.socket.receive_json(timeout=60))
        # charts draw when laid out
        await self.js("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")

    async def js(self, expression: str):
        """The value of an expression in the page."""
        result = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True,
                                 returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def key(self, key: str) -> None:
        code = {"ArrowDown": 40, "ArrowRight": 39, "ArrowLeft": 37}[key]
        for kind in ("rawKeyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                            windowsVirtualKeyCode=code)

    def troubles(self) -> list:
        """Console messages, exceptions and log entries, all of which a good page lacks."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [e for e in self.events if e.get("method") in kinds]

    def requests(self) -> list[str]:
        sent = [e for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [e["params"]["request"]["url"] for e in sent]


def visit(address: str, file: Path, visitor) -> None:
    """Open the page in a new tab and run the coroutine function `visitor(tab)` on it."""
    import aiohttp

    async def go():
        async with aiohttp.ClientSession() as session:
            async with session.put(f"{address}/json/new?about:blank") as reply:
                target = await reply.json(content_type=None)
            async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                tab = Tab(socket)
                await tab.open(file)
                await visitor(tab)

    asyncio.run(go())


def test_a_question_is_picked_and_its_tokens_appear(chromium, report):
    """No console message, no request but the page; arrow keys pick the second question, its tokens and o*
    show; charts too."""
    async def visitor(tab):
        tokens = "[...document.querySelectorAll('.tokens')].map(p => p.textContent)"
        assert await tab.js(tokens) == [VALID + "<eos>", FLAWED + "<eos>", BARE + "<eos>"]
        assert await tab.js("document.querySelectorAll('.chosen').length") == 1
        assert await tab.js("[...document.querySelectorAll('.step')].map(s => s.className)") == \
            ["step valid"] * 3 + ["step flawed"] + ["step valid"] * 2
        shares = ("[...document.querySelectorAll('.token')]"
                  ".map(t => Number(t.style.getPropertyValue('--share')))")
        assert 0 <= min(await tab.js(shares)) < max(await tab.js(shares)) <= 1
        assert await tab.js("document.querySelectorAll('figure svg').length") == 12  # 8 curves, 3 of k, time
        await tab.js("document.getElementById('question').focus()")
        await tab.key("ArrowDown")
        assert await tab.js(tokens) == [HOSTILE + "<eos>"]
        assert await tab.js("document.querySelector('#asked .question').textContent") == HOSTILE
        await tab.js("document.querySelectorAll('.token')[1].click()")
        assert "token 2 of" in await tab.js("document.getElementById('token').textContent")
        x, y = await tab.js("(e => { e.scrollIntoView({ block: 'center' });"
                            "const { x, y, width, height } = e.getBoundingClientRect();"
                            "return [x + width / 2, y + height / 2] })(document.querySelector('.token'))")
        await tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)  # the mouse rests on a token
        read = await tab.js("document.getElementById('token').textContent")
        assert "token 1 of" in read
        values = dict(re.findall(r"(log π_past|log π_θ|w\*|f|weight) (-?[\d.e-]+)", read))
        w = math.exp(float(values["log π_θ"]) - float(values["log π_past"]))
        assert values["log π_past"] == "-0.500" and float(values["w*"]) == pytest.approx(w, abs=2e-3)
        assert float(values["f"]) == pytest.approx(w / (w + 0.1), abs=2e-3)
        assert float(values["weight"]) == pytest.approx(0.1 * w / (w + 0.1) ** 2, abs=2e-3)
        assert tab.troubles() == [] and tab.requests() == [report.as_uri()]

    visit(chromium, report, visitor)


def test_another_run_is_picked(chromium, report):
    """The second run has no stored responses: the reason takes their place. Its chart is read with the arrow
    keys."""
    async def visitor(tab):
        await tab.js("document.getElementById('run').focus()")
        await tab.key("ArrowDown")
        assert "the run is on-policy" in await tab.js("document.getElementById('rule').textContent")
        assert await tab.js("document.getElementById('browser').offsetHeight") == 0
        await tab.js("new Promise(done => setTimeout(done, 100))")
        await tab.js("document.querySelector('#parts svg').focus()")
        for _ in range(2):
            await tab.key("ArrowLeft")
        read = await tab.js("document.querySelector('#parts .read').innerText")
        assert "step 2" in read and "retired 2" in read and "k=2: 7" in read
        assert tab.troubles() == []

    visit(chromium, report, visitor)


MOVE = ("((id, value) => { const e = document.getElementById(id); e.value = value; "
        "e.dispatchEvent(new Event('input')); e.dispatchEvent(new Event('change')) })(%s, %s)")
BARS = "[...document.querySelectorAll('#p-bars i')].map(e => [Number(e.dataset.k), Number(e.dataset.p)])"


def test_sliders_show_the_right_chances_and_weights(chromium, report, described):
    """Each moved: p_k over the buckets of the step equals the sampler's, the mean weight that of the loss."""
    async def moved(tab, name, value, shown):
        await tab.js(MOVE % (json.dumps(name), json.dumps(value)))
        assert await tab.js(f"document.querySelector('#{name} + output')?.textContent") == shown

    async def visitor(tab):
        assert await tab.js(BARS) == chances((1, 2, 3), 0.5, 1.0)
        await moved(tab, "p-mu", 0.123, "0.12")
        assert await tab.js(BARS) == chances((1, 2, 3), 0.12, 1.0)
        await moved(tab, "p-sigma", 0.3, "0.3")
        assert await tab.js(BARS) == chances((1, 2, 3), 0.12, 0.3)
        await moved(tab, "p-step", 0, "1")  # k = 3 is empty there
        assert await tab.js(BARS) == chances((1, 2), 0.12, 0.3)
        bars = await tab.js("document.getElementById('p-bars').innerText")
        assert "of 1, drawn –" in bars and "of 8, drawn –" in bars  # nothing was replayed in step 2
        mean = "Number(document.getElementById('f-note').dataset.mean)"
        responses = [r for q in described["browser"]["questions"] for r in q["responses"]]
        w = np.exp(np.concatenate([np.subtract(r["now"], r["past"]) for r in responses]))
        assert await tab.js(mean) == pytest.approx(np.mean(0.1 * w / (w + 0.1) ** 2))
        await moved(tab, "beta", 0, "1")
        assert await tab.js(mean) == pytest.approx(np.mean(w / (w + 1) ** 2))
        tokens = "[...document.querySelectorAll('[data-tokens]')].map(e => Number(e.dataset.tokens))"
        assert sum(await tab.js(tokens)) == len(w)
        assert tab.troubles() == []

    def chances(ks, mu, sigma):
        return [[k, pytest.approx(p)] for k, p in zip(ks, bucket_weights(ks, 4, mu, sigma))]

    visit(chromium, report, visitor)


def test_the_right_answers_of_any_step_stand_in_full(chromium, report):
    """The last step's at once, the right one first; an earlier one's by the slider; hostile text as text."""
    async def visitor(tab):
        texts = "[...document.querySelectorAll('.said.text')].map(e => e.textContent)"
        assert await tab.js(texts) == [s["text"] for s in (SAMPLES[2], SAMPLES[1], SAMPLES[3])]
        assert (await tab.js("document.querySelector('.said').textContent")).startswith(HOSTILE)
        await tab.js(MOVE % ('"said-step"', 0))
        assert await tab.js(texts) == ["early"] and tab.troubles() == []

    visit(chromium, report, visitor)


def test_charts_name_runs_and_show_what_is_there(tmp_path, chromium, device):
    """Runs are named beside their colours; a single point is a dot; shares, named rewards that are such too,
    stay in 0 to 1; a read-out has no value of another step; questions that look alike have numbers."""
    rows = [[{"step": 0, "val/pass_at_1/a": 1.0, "val/valid/a": 0.5, "val/pass_at_1/b": 1.0},
             {"step": 3, "reward/pass_at_1": 0.0}],
            [{"step": 2, "reward/pass_at_1": 1.0, "reward/polite": 1.0, "reward/words": 120.0}]]
    page = [dict(describe(tmp_path / name / "run", r, 9, device), name=f"runs/{name}/run")
            for name, r in zip("xy", rows)]
    response = {"step": 1, "tokens": ["1"], "special": [], "steps": [], "verdict": None, "entropies": [0.1],
                "past": [0], "now": [0], "entropy": 0.1, "ratio": 1, "nll_then": 0, "nll_now": 0,
                "chosen": True}
    asked = [{"id": i, "text": ALIKE, "answer": "", "source": "", "k": 1, "responses": [response]}
             for i in (7, 9)]
    page[0]["browser"] = {"step": 1, "rule": "entropy", "K": 8, "buffered": 2, "questions": asked}
    (tmp_path / "page.html").write_text(report_module.page(page))

    async def visitor(tab):
        cards = "[...document.querySelectorAll('#curves figure')].map(e => e.innerText)"
        batch, validation, *_ = await tab.js(cards)
        assert "x/run" in batch and "y/run" in batch and "x/run" in validation and "y/run" not in validation
        every = "[...document.querySelectorAll('#curves %s')].map(e => %s)"
        read = every % (".read", "[...e.children].map(c => c.innerText)")
        assert await tab.js(read) == [["step 3", "0", "–"], ["step 0", "1 / 0.500"], ["step 0", "1"],
                                      ["step 2", "1"], ["step 2", "120"]]
        assert await tab.js(every % ("figure", "e.querySelectorAll('circle').length")) == [2, 2, 1, 1, 1]
        marks = every % ("figure", "[...e.querySelectorAll('text[text-anchor=end]')]"
                                   ".map(t => Number(t.textContent))")
        *shares, words = await tab.js(marks)
        assert all(0 <= min(of) and max(of) == 1 for of in shares) and min(words) < 120 < max(words)
        options = await tab.js("[...document.querySelectorAll('#question option')].map(e => e.textContent)")
        assert len(set(options)) == 2 and options[0].startswith("7: 111")
        assert tab.troubles() == []

    visit(chromium, tmp_path / "page.html", visitor)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(chromium, report, scheme):
    """At a width of 360 pixels nothing sticks out and charts use the width; light and dark follow the
    reader's system."""
    async def visitor(tab):
        await tab.call("Emulation.setEmulatedMedia",
                       features=[{"name": "prefers-color-scheme", "value": scheme}])
        await tab.call("Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=2,
                       mobile=True)
        await tab.js("new Promise(done => setTimeout(done, 200))")
        assert await tab.js("innerWidth") == 360
        for question in (0, 1):
            await tab.js(PICK % question)
            assert await tab.js("document.documentElement.scrollWidth") == 360
            edges = ("[...document.querySelectorAll('.card, select, svg')]"
                     ".map(e => e.getBoundingClientRect().right)")
            assert max(await tab.js(edges)) <= 360
        hint = "document.querySelector('.hint').offsetHeight > 0"
        assert await tab.js(hint) and await tab.js("document.querySelector('.scroll').scrollWidth") > 360
        widths = "[...document.querySelectorAll('svg')].map(e => e.clientWidth)"
        assert min(await tab.js(widths)) > 250
        paper, ink = [sum(map(int, color[4:-1].split(","))) / 3 for color in
                      await tab.js("(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))")]
        assert (paper > 200 and ink < 80) if scheme == "light" else (paper < 60 and ink > 180)
        assert tab.troubles() == []

    visit(chromium, report, visitor)


def test_hostile_text_runs_nothing(chromium, report):
    """It appears as text in metrics, questions and tokens; and even markup that got in could neither run nor
    load."""
    async def visitor(tab):
        assert HOSTILE in await tab.js("document.body.textContent")
        for question in (0, 1):
            await tab.js(PICK % question)
        assert await tab.js("document.querySelectorAll('img, main script').length") == 0
        assert tab.troubles() == []
        await tab.js(f"document.querySelector('main').insertAdjacentHTML('beforeend', {json.dumps(HOSTILE)})")
        await tab.js("new Promise(done => setTimeout(done, 200))")
        assert await tab.js("document.images.length") == 1
        assert tab.troubles() != []  # Chromium reports what it refused
        assert await tab.js("document.title") == "Training report"
        failed = [e["params"] for e in tab.events if e.get("method") == "Network.loadingFailed"]
        assert [event["blockedReason"] for event in failed] == ["csp"]

    visit(chromium, report, visitor)

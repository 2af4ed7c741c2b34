"""docs/own-task.md works as it stands: its numbered steps, in order, in a fresh copy.

Only the runs on three seeds are made on one, as they take as long as all the rest.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT, free_port, jsonl
from transformers import AutoModelForCausalLM, AutoTokenizer

BREAK = "==== next step ===="
TRAP = "trap 'jobs -p | xargs -r kill' EXIT"  # a server must not outlive a failure
VLLM = importlib.util.find_spec("vllm") is not None


def steps() -> list[str]:
    """The code blocks of the numbered sections, the server's only where vLLM is installed."""
    numbered = re.split(r"^## (?=\d)|^## ", (ROOT / "docs" / "own-task.md").read_text(), flags=re.M)
    blocks = [
        "\n".join(re.findall(r"^```\n(.*?)^```", part, flags=re.M | re.S))
        for part in numbered
        if part[0].isdigit()
    ]
    assert "vllm" in blocks[-1]
    assert len(blocks) == 9
    return blocks if VLLM else blocks[:-1]


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> tuple[Path, list[str]]:
    """The directory in which the steps were run by one shell, and what each of them printed."""
    directory = tmp_path_factory.mktemp("clone")
    for file in ROOT.glob("*.py"):
        shutil.copy(file, directory)
    for folder in ("worlds", "verifier", "runtime", "tools", "configs"):
        shutil.copytree(ROOT / folder, directory / folder)
    # These belong to this process's own group and engines.
    foreign = ("VLLM_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(foreign)
    }
    environment |= {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    blocks = steps()
    if VLLM:  # the server answers beside the runs of the step before, as it has no need of them
        server = blocks.pop()
        blocks[-1] = f"({TRAP}\n{server}) > /dev/null & serving=$!\n{blocks[-1]}\nwait $serving"
    script = f"\necho '{BREAK}'\n".join(blocks).replace("8000", free_port())
    assert "for seed in 1 2 3;" in script
    script = script.replace("for seed in 1 2 3;", "for seed in 1;")
    with open(directory / "script.log", "w") as log:
        shell = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", f"{TRAP}\n{script}"],
            cwd=directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            timeout=900,
        )
    logs = [log.read_text()[-4000:] for log in directory.glob("*.log")]
    assert shell.returncode == 0, "\n".join([shell.stdout[-3000:], *logs])
    return directory, shell.stdout.split(BREAK)


@pytest.mark.slow
def test_the_guide_runs_to_its_end(done):
    """The steps leave a table of both models, their difference on the same questions, a page."""
    directory, printed = done
    assert len(printed) == 8
    row = r"\| digits \(Pass@1\) \| [\d.]+ \[[\d., ]+\] \| [\d.]+ \[[\d., ]+\] \|"
    difference = r"\| digits \| [+-][\d.]+ \[.*\] of 25 \|"
    heads = {6: "| runs/before | runs/after |", 7: "| on-policy | ExGRPO |"}
    for step, head in heads.items():
        text = printed[step]
        assert head in text and re.search(row, text) and re.search(difference, text)
    assert "differs" not in printed[6]
    assert "3 runs" in printed[7]
    assert "the same command with --resume goes on" in printed[5] and "resumed from" in printed[5]
    replayed = jsonl(directory / "runs/rho0.5-1/metrics.jsonl")
    assert any(row.get("replay/questions") for row in replayed)
    assert (directory / "report.html").stat().st_size > 10_000


@pytest.mark.slow
def test_the_share_of_silent_questions_is_as_the_page_says(done):
    """The command says what the page shows below it, but for rounding of another processor."""
    page = (ROOT / "docs" / "own-task.md").read_text()
    shown = re.search(r"^# (\d+% are never right, .+)$", page, flags=re.M)[1]
    form = re.sub(r"\d+%", r"\\d+%", shown)
    assert re.search(f"^{form}$", (done[0] / "script.log").read_text(), flags=re.M)


@pytest.mark.slow
@pytest.mark.skipif(not VLLM, reason="vLLM is not installed")
def test_the_server_answers(done):
    """With the guide's flags the server says what transformers makes of the same model."""
    (choice,) = json.loads((done[0] / "reply.json").read_text())["choices"]
    directory = done[0] / "runs/digits/step-4"
    tokenizer = AutoTokenizer.from_pretrained(directory)
    chat = [{"role": "user", "content": "3a+4b+5c+9d+2e+6"}]
    ids = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=False
    )
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    said = model.generate(ids, do_sample=False, max_new_tokens=48)[0, ids.shape[1] :]
    assert choice["message"]["content"] == tokenizer.decode(said, skip_special_tokens=True) != ""

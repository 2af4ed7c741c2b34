"""The least that a step of SmolLM2-135M could cost: vLLM alone, then a bare forward, backward and AdamW.

Run and timed by the section `real` of bench/__main__.py, in a process of its own; prints JSON at the end.
"""

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from bench.step import COIN, MAX_TOKENS, RESPONSES
from bench.update import bare_update
from config import Config
from data import load_questions, load_tokenizer
from rollout import make_engine
from runtime import ranks


def main() -> None:
    """Answer the questions of a step by vLLM's own loop, then learn those tokens in two optimiser steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--questions", required=True)
    parser.add_argument("--batch", type=int, required=True, help="questions of a step")
    parser.add_argument("--longest_prompt", type=int, required=True)
    args = parser.parse_args()
    config = Config(model=args.model, train_files=[args.questions], reward=COIN, dtype="float32",
                    max_prompt_length=args.longest_prompt, max_response_length=MAX_TOKENS)
    device, tokenizer = ranks.setup(), load_tokenizer(config, args.model)
    questions, _ = load_questions(config.train_files, config, tokenizer)
    drawn = np.random.default_rng(0).choice(len(questions), args.batch, replace=False)
    prompts = [questions[i].prompt_ids for i in drawn for _ in range(RESPONSES)]
    engine = make_engine(config, args.model, tokenizer.eos_token_id, device)
    generation, responses = generate(engine.llm, tokenizer.eos_token_id, prompts)
    del engine
    lm = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation="packed")
    optimizer = torch.optim.AdamW(lm.train().parameters(), lr=1e-6)
    pairs = list(zip(prompts, responses, strict=True))
    bare_update(lm, optimizer, pairs[:RESPONSES], torch.float32, packed=True)  # warm-up
    start = time.perf_counter()
    for half in (pairs[: len(pairs) // 2], pairs[len(pairs) // 2 :]):
        bare_update(lm, optimizer, half, torch.float32, packed=True)
    update = time.perf_counter() - start
    print(json.dumps({"tokens": sum(map(len, responses)), "generation": generation, "update": update}),
          flush=True)


def generate(llm, eos_token_id: int, prompts: list[np.ndarray]) -> tuple[float, list[np.ndarray]]:
    """Seconds of vLLM's own `generate`, and the responses, at temperature 1."""
    from vllm import SamplingParams

    def ask(prompts: list[np.ndarray]) -> list:
        params = [SamplingParams(temperature=1.0, max_tokens=MAX_TOKENS, seed=i, detokenize=False,
                                 stop_token_ids=[eos_token_id]) for i in range(len(prompts))]
        return llm.generate([{"prompt_token_ids": p.tolist()} for p in prompts], params, use_tqdm=False)

    ask(prompts[:1])  # warm-up
    start = time.perf_counter()
    outputs = ask(prompts)
    seconds = time.perf_counter() - start
    return seconds, [np.array(o.outputs[0].token_ids, np.int32) for o in outputs]


if __name__ == "__main__":
    main()

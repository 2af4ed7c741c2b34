"""Evaluation (Sec. 5.1): Pass@1 and Avg@k per data_source, by the engine and the verifier that training uses.

    python eval.py --model runs/default/model --data test.jsonl
    torchrun --nproc_per_node=8 eval.py --model DIR --data valid.parquet --samples 32 --max_tokens 8192
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np

import parallel
from arithmetic import JUDGES
from config import Config, knob
from data import Question, Request, load_questions, load_tokenizer, sample_seed
from grading import Grader, drop_unreadable, rollout

NO_JUDGES: Mapping[str, Callable[[str, str], bool]] = MappingProxyType({})


def evaluate(engine, grader: Grader, questions: list[Question], *, temperature: float, max_tokens: int, samples: int = 1,
             seed: int = 0, judges: Mapping[str, Callable[[str, str], bool]] = NO_JUDGES) -> dict[str, float]:
    """Mean reward of `samples` responses a question, per data_source (a collective).

    Returns `pass_at_1/<source>` (the mean over samples too: Avg@k for k samples), `length/<source>` in tokens,
    `truncated/<source>`, and with judges of the reasoning, {name: (question, response) -> bool}, `<name>/<source>`.
    Seeds do not depend on the step, so two models are compared on the same random numbers.
    """
    requests = [[Request(q.prompt_ids, sample_seed("eval", seed, q.id, i)) for i in range(samples)] for q in questions]
    graded = rollout(engine, grader, questions, requests, temperature, max_tokens)
    values = defaultdict(list)
    for question, pairs in zip(questions, graded):
        for response, reward in pairs:
            values[f"pass_at_1/{question.source}"].append(reward)
            values[f"length/{question.source}"].append(len(response.token_ids))
            values[f"truncated/{question.source}"].append(not response.finished)
            for name, judge in judges.items():
                values[f"{name}/{question.source}"].append(judge(question.text, grader.text(response.token_ids)))
    return {name: float(np.mean(v)) for name, v in values.items()}


@dataclass
class EvalConfig:
    """The knobs of `eval.py`."""

    model: str = knob("", "Hugging Face directory.")
    data: list[str] = knob([], "Parquet or JSONL files in the verl-LUFFY layout.")
    samples: int = knob(1, "Responses per question: 1 is Pass@1, k is Avg@k [32 for AIME and AMC].")
    temperature: float = knob(0.6, "Sampling temperature, top-p 1 [0.6]; 0: greedy.")
    max_tokens: int = knob(8192, "Longest response; at most what the model's positions leave after the longest prompt [8192].")
    max_prompt_length: int = knob(1024, "Longer prompts are dropped with a count.")
    rope_theta: float = knob(0.0, "Override of the model's RoPE base; 0: as the model has it [40000 for Qwen2.5-Math].")
    max_position_embeddings: int = knob(0, "Override of the model's positions; 0: as the model has it [16384 for Qwen2.5-Math].")
    reward: str = knob("", "'math' or 'module:function'; empty: the built-in world's for its questions, else math.")
    require_box: bool = knob(True, "Without a \\boxed{} the reward is 0.")
    prompt_template: str = knob("chat", "'chat' or a text with {question}.")
    response_prefix: str = knob("", "Text that ends every prompt [paper: '<think>\\n'].")
    engine: Literal["auto", "vllm", "hf"] = knob("auto", "Generation engine.")
    dtype: Literal["float32", "bfloat16"] = knob("float32", "Weights of the engine.")
    memory: float = knob(0.8, "GPU memory fraction of vLLM.")
    seed: int = knob(0, "Seed of the samples.")
    trust_remote_code: bool = knob(False, "Run Python code shipped with the model directory.")


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Evaluate a model directory from the command line; prints and returns the means per data_source."""
    from transformers import HfArgumentParser

    from policy import model_config
    from reward import Verifier
    from rollout import make_engine

    e = HfArgumentParser(EvalConfig, allow_abbrev=False, description=__doc__).parse_args_into_dataclasses(argv)[0]
    if not e.model or not e.data or e.samples < 1:
        raise ValueError("eval.py needs --model DIR, --data FILE and --samples of at least 1")
    device = parallel.setup()
    config = Config(model=e.model, train_files=e.data, max_prompt_length=e.max_prompt_length, reward=e.reward or "math",
                    require_box=e.require_box, prompt_template=e.prompt_template, response_prefix=e.response_prefix,
                    rope_theta=e.rope_theta, max_position_embeddings=e.max_position_embeddings, engine=e.engine,
                    rollout_dtype=e.dtype, rollout_memory=e.memory, trust_remote_code=e.trust_remote_code)
    tokenizer = load_tokenizer(config, e.model)
    questions, counts = load_questions(e.data, config, tokenizer)
    config.max_prompt_length = max(len(q.prompt_ids) for q in questions)
    positions = model_config(config, e.model).max_position_embeddings
    config.max_response_length = max_tokens = min(e.max_tokens, positions - config.max_prompt_length)
    if not e.reward and all(q.source.startswith("arithmetic") for q in questions):
        config.reward = "arithmetic:reward"
    judges = JUDGES if config.reward == "arithmetic:reward" else NO_JUDGES
    with Verifier(config.verify_workers, config.verify_timeout, config.reward) as verifier:
        readable = drop_unreadable(questions, verifier)
        counts["answers unreadable"] = len(questions) - len(readable)
        engine = make_engine(config, e.model, tokenizer.eos_token_id, device)
        scores = evaluate(engine, Grader(config, tokenizer, verifier), readable, temperature=e.temperature,
                          max_tokens=max_tokens, samples=e.samples, seed=e.seed, judges=judges)
    if parallel.rank() == 0:
        about = {"model": e.model, "samples": e.samples, "max_tokens": max_tokens, "questions": counts}
        print(json.dumps(about | scores, indent=1))
    parallel.barrier()
    return scores


if __name__ == "__main__":
    main()

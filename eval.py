"""Evaluation (Sec. 5.1): Pass@1 and Avg@k per data_source, by the engine and the verifier that training uses.

    python eval.py --model runs/default/model --data test.jsonl
    torchrun --nproc_per_node=8 eval.py --model DIR --data valid.parquet arc_c.parquet --avg_samples 32 --output runs/A/eval
    python eval.py --compare runs/A/eval/scores.json runs/B/eval/scores.json

With --output every response is kept in responses.jsonl, and a command that is repeated generates only what is missing.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from config import Config, knob
from data import Question, Request, load_questions, load_tokenizer, sample_seed
from grading import Grader, drop_unreadable, rollout
from reward import last_box
from runtime import ranks
from scores import benchmark, compare, means, statistics
from worlds.arithmetic import JUDGES

NO_JUDGES: Mapping[str, Callable[[str, str], bool]] = MappingProxyType({})
SMALL = ("AIME24", "AIME25", "AMC")  # Avg@32 in the paper, the others are Pass@1
SAVE_EVERY = 2048  # responses generated between two writes of --output


def evaluate(engine, grader: Grader, questions: list[Question], *, temperature: float, max_tokens: int, samples: int = 1,
             seed: int = 0, judges: Mapping[str, Callable[[str, str], bool]] = NO_JUDGES) -> dict[str, float]:
    """Mean reward of `samples` responses a question, per data_source (a collective).

    Returns `pass_at_1/<source>` (the mean over samples too: Avg@k for k samples), `length/<source>` in tokens,
    `truncated/<source>`, and with judges of the reasoning, {name: (question, response) -> bool}, `<name>/<source>`.
    Seeds do not depend on the step, so two models are compared on the same random numbers.
    """
    wanted = [(q, i) for q in questions for i in range(samples)]
    return means(respond(engine, grader, wanted, temperature=temperature, max_tokens=max_tokens, seed=seed, judges=judges))


def respond(engine, grader: Grader, wanted: list[tuple[Question, int]], *, temperature: float, max_tokens: int, seed: int,
            judges: Mapping[str, Callable[[str, str], bool]] = NO_JUDGES, texts: bool = False) -> list[dict]:
    """A record of the response to every (question, sample number), with its text where asked for (a collective)."""
    requests = [[Request(q.prompt_ids, sample_seed("eval", seed, q.id, i))] for q, i in wanted]
    graded = rollout(engine, grader, [q for q, _ in wanted], requests, temperature, max_tokens)
    records = []
    for (question, number), [(response, reward)] in zip(wanted, graded):
        record = {"source": question.source, "question": _key(question), "sample": number, "reward": reward,
                  "length": len(response.token_ids), "truncated": not response.finished}
        if judges:
            text = grader.text(response.token_ids)
            record["judged"] = {name: judge(question.text, text) for name, judge in judges.items()}
        if texts:
            record |= {"text": question.text, "gold": question.answer, "response": grader.text(response.token_ids)}
            if grader.config.reward == "math" and grader.config.require_box:
                record["answer"] = last_box(grader.piece(question, response.token_ids) or "")
        records.append(record)
    return records


# ---- --output: every response on disk ---------------------------------------------------------------


def _key(question: Question) -> str:
    """Names a question by what is asked, of which benchmark, and the right answer."""
    parts = repr((question.source, question.prompt_ids.tolist(), question.answer))
    return blake2b(parts.encode(), digest_size=8).hexdigest()


def respond_and_keep(directory: str, settings: dict, engine, grader: Grader, wanted: list[tuple[Question, int]], **options):
    """`respond`, but what `directory` holds is not generated again, and the rest is added to it (a collective).

    ValueError where it holds responses made with other settings, or by other weights.
    """
    path, main = Path(directory) / "responses.jsonl", ranks.rank() == 0
    records, changed = ranks.gather(_open(path, settings) if main else None)[0]
    if changed:
        raise ValueError(f"{directory} holds responses that were made with other settings: {changed}. Choose another --output.")
    missing = [(q, i) for q, i in wanted if (_key(q), i) not in records]
    for start in range(0, len(missing), SAVE_EVERY):
        new = respond(engine, grader, missing[start : start + SAVE_EVERY], texts=True, **options)
        records |= {(r["question"], r["sample"]): r for r in new}
        if main:
            with open(path, "a") as file:
                file.write("".join(json.dumps(r) + "\n" for r in new))
            print(f"{directory}: {len(wanted) - len(missing) + start + len(new)} of {len(wanted)} responses", flush=True)
    return [records[_key(q), i] for q, i in wanted]


def _open(path: Path, settings: dict) -> tuple[dict, dict]:
    """The records saved so far by (question, sample), without a last line that was cut off, and changed settings."""
    path.parent.mkdir(parents=True, exist_ok=True)
    about = path.with_name("settings.json")
    old = json.loads(about.read_text()) if about.exists() else settings
    changed = {name: f"{old.get(name)!r} -> {value!r}" for name, value in settings.items() if old.get(name) != value}
    if not changed:
        about.write_text(json.dumps(settings, indent=1))
    text = path.read_text() if path.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.with_suffix(".tmp").write_text(whole)
        os.replace(path.with_suffix(".tmp"), path)
    return {(r["question"], r["sample"]): r for r in map(json.loads, whole.splitlines())}, changed


# ---- the command ------------------------------------------------------------------------------------


@dataclass
class EvalConfig:
    """The knobs of `eval.py`."""

    model: str = knob("", "Hugging Face directory.")
    data: list[str] = knob([], "Parquet or JSONL files in the verl-LUFFY layout.")
    samples: int = knob(1, "Responses per question: 1 is Pass@1, k is Avg@k.")
    avg_samples: int = knob(0, "Responses per question of AIME and AMC, by data_source; 0: as `samples` [32].")
    output: str = knob("", "Directory for every response (responses.jsonl, continued if there) and scores.json.")
    compare: list[str] = knob([], "Print a table of these scores.json files, and evaluate nothing.")
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
    """Evaluate a model directory from the command line; prints all scores and returns the means per data_source."""
    from transformers import HfArgumentParser

    from model import model_config
    from reward import Verifier
    from rollout import make_engine

    e = HfArgumentParser(EvalConfig, allow_abbrev=False, description=__doc__).parse_args_into_dataclasses(argv)[0]
    if e.compare:
        print(compare(e.compare))
        return {}
    if not e.model or not e.data or e.samples < 1 or min(e.avg_samples, e.temperature) < 0:
        raise ValueError("eval.py needs --model DIR, --data FILE, --samples of at least 1; nothing may be negative")
    device = ranks.setup(hang_timeout=0)  # many samples of long responses may take hours
    config = Config(model=e.model, train_files=e.data, max_prompt_length=e.max_prompt_length, reward=e.reward or "math",
                    require_box=e.require_box, prompt_template=e.prompt_template, response_prefix=e.response_prefix,
                    rope_theta=e.rope_theta, max_position_embeddings=e.max_position_embeddings, engine=e.engine,
                    rollout_dtype=e.dtype, rollout_memory=e.memory, trust_remote_code=e.trust_remote_code)
    tokenizer = load_tokenizer(config, e.model)
    questions, counts = load_questions(e.data, config, tokenizer)
    config.max_prompt_length = max(len(q.prompt_ids) for q in questions)
    positions = model_config(config, e.model).max_position_embeddings
    config.max_response_length = max_tokens = min(e.max_tokens, positions - config.max_prompt_length)
    if max_tokens < 1:
        raise ValueError(f"no room for a response: the longest prompt takes {config.max_prompt_length} of {positions} positions. "
                         "Lower --max_prompt_length (longer prompts are dropped), or set --max_position_embeddings")
    if not e.reward and all(q.source.startswith("arithmetic") for q in questions):
        config.reward = "worlds.arithmetic:reward"
    options = {"temperature": e.temperature, "max_tokens": max_tokens, "seed": e.seed,
               "judges": JUDGES if config.reward == "worlds.arithmetic:reward" else NO_JUDGES}
    with Verifier(config.verify_workers, config.verify_timeout, config.reward) as verifier:
        readable = drop_unreadable(questions, verifier)
        counts["answers unreadable"] = len(questions) - len(readable)
        if not readable:
            raise ValueError(f"{', '.join(e.data)}: the verifier can read none of the answers; is --reward the right one?")
        samples = {q.source: e.avg_samples if e.avg_samples and benchmark(q.source) in SMALL else e.samples for q in readable}
        wanted = [(q, i) for q in readable for i in range(samples[q.source])]
        engine, grader = make_engine(config, e.model, tokenizer.eos_token_id, device), Grader(config, tokenizer, verifier)
        if e.output:
            records = respond_and_keep(e.output, _settings(e, config), engine, grader, wanted, **options)
        else:
            records = respond(engine, grader, wanted, texts=True, **options)
    scores = means(records)
    if ranks.rank() == 0:
        about = {"model": e.model, "samples": e.samples, "max_tokens": max_tokens, "questions": counts}
        print(text := json.dumps(about | scores | statistics(records), indent=1))
        if e.output:
            (Path(e.output) / "scores.json").write_text(text)
    ranks.barrier()
    return scores


def _settings(e: EvalConfig, config: Config) -> dict:
    """Whatever a response and its reward depend on, the weights by name, size and time of their files."""
    free = ("data", "samples", "avg_samples", "output", "compare", "engine", "memory")
    weights = [[f.name, f.stat().st_size, f.stat().st_mtime_ns] for f in sorted(Path(e.model).glob("*.safetensors"))]
    settings = {k: v for k, v in asdict(e).items() if k not in free}
    return settings | {"reward": config.reward, "max_tokens": config.max_response_length, "weights": weights}


if __name__ == "__main__":
    ranks.run(main)

r"""Evaluation (Sec. 5.1): Pass@1 and Avg@k per data_source, by training's engine and verifier.

    python eval.py --model DIR --data test.jsonl --eval_questions 100
    torchrun --shutdown-timeout 600 --nproc_per_node=8 eval.py --config configs/own-model.yaml \
        --model DIR --data valid.parquet --avg_samples 32 --output runs/A/eval
    python -m tools.compare runs/A/eval runs/B/eval

The scores are JSON on stdout. What people read is on stderr: three responses and, with several
samples, how many questions have 0, 1, ... right ones. Questions are asked in blocks. With --output
each block is kept in responses.jsonl as it ends, and a command that is repeated generates only what
is missing. A record: see `_record`.
"""

import json
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from config import Config, fill_in, ready
from runtime.faults import or_refuse
from runtime.flags import parse
from runtime.preflight import missing

BLOCK = 512  # responses of an engine, which has as many at a time; what a kill costs at most
# The knobs that a response and its reward depend on.
DECISIVE = (
    "model",
    "max_response_length",
    "eval_temperature",
    "seed",
    "reward",
    "require_box",
    "grader",
    "verify_timeout",
    "prompt_template",
    "response_prefix",
    "dtype",
    "rope_theta",
    "max_position_embeddings",
)


@dataclass
class EvalConfig:
    """Evaluate a model: Pass@1 and Avg@k per data_source (Sec. 5.1).

    --config FILE [FILE ...] reads YAML files, those of training too, whose other knobs do not
    count; later files win, and flags over all. What training has, too, has its default here.
    """

    model: str = ""  # a Hugging Face directory, or a name of the hub
    data: list[str] = field(default_factory=list)  # Parquet or JSONL files of questions
    val_files: list[str] = field(default_factory=list)  # the files where data is empty
    output: str = ""  # directory of scores.json and responses.jsonl; one that is there goes on
    samples: int = 1  # responses to each question: 1 is Pass@1, k is Avg@k
    avg_samples: int = 0  # responses to each question of AIME and AMC (32); 0: as samples
    eval_questions: int = 0  # of each source; 0: all
    eval_temperature: float = 0.6  # at top-p 1; 0: greedy
    seed: int = 0  # of every sample
    max_response_length: int = 8192  # tokens, or what the model's positions leave
    max_prompt_length: int = 1024  # tokens; questions with longer prompts are dropped and counted
    prompt_template: str = "chat"  # the tokenizer's, or a text with {question}
    # what ends every prompt; auto: by the model's name, as in train.py
    response_prefix: str | None = None
    # base of RoPE; 0: the model's own; auto: by the model's name, as in train.py
    rope_theta: float | None = None
    # positions of the model; 0: its own; auto: by the model's name, as in train.py
    max_position_embeddings: int | None = None
    reward: str = "math"  # Math-Verify, or "module:function" of yours
    require_box: bool = True  # an answer without \boxed{} is wrong
    # official: Math-Verify alone on all that follows the thought, for published numbers
    grader: Literal["strict", "official"] = "strict"
    verify_timeout: float = 5.0  # seconds that grading an answer may take before it scores 0
    # what generates; auto: vLLM where it is installed, else Hugging Face
    engine: Literal["auto", "vllm", "hf"] = "auto"
    dtype: Literal["float32", "bfloat16"] = "bfloat16"  # what the engine computes in
    rollout_tp: int = 1  # ranks of a node that share a vLLM engine
    rollout_memory: float = 0.8  # vLLM's share of GPU memory, weights included

    difficulty = "success"  # what a reward counts as, for reward.py; nothing is stored here

    def __post_init__(self):
        fill_in(self)
        self.data = self.data or self.val_files
        problems = [*missing(self, self.data)]
        if not self.model or not self.data:
            problems.append("eval.py needs --model DIR and --data FILE (see --help)")
        if problems:
            raise ValueError("\n".join(problems))

    def samples_of(self, source: str) -> int:
        """Responses to each question of a data_source."""
        return self.avg_samples if self.avg_samples and benchmark(source) in SMALL else self.samples


def parse_command(argv: list[str] | None = None) -> EvalConfig:
    """The command's knobs; SystemExit or ValueError say what is wrong."""
    return parse(EvalConfig, argv, {*Config.__dataclass_fields__})


def command_line() -> EvalConfig:
    """The command's knobs, where the reward works."""
    config = parse_command()
    ready(config, config.data)
    return config


# A wrong command line is refused here, before the imports that take seconds.
COMMAND = or_refuse(command_line) if __name__ == "__main__" else None

import numpy as np
from tqdm import tqdm

from buffer import Trajectory
from data import Question, first_of_each_source, load_questions, load_tokenizer, readable
from model import model_config
from reward import Grader, make_verifier
from rollout import make_engine, roll_out
from runtime import ranks
from runtime.card import say_unfit
from runtime.chat import turn_ends
from runtime.faults import Interrupted, last_word, once, say, watchdog
from runtime.responses import (
    add,
    in_short,
    judged_numbers,
    model_files,
    open_kept,
    question_key,
    row_key,
)
from runtime.rundir import claim
from sampler import sample_seed
from verifier.forms import last_box
from worlds.benchmarks import SMALL, benchmark, reward_of, statistics


def validate(engine, grader: Grader, tests: list[Question]) -> dict:
    """`val/<score>/<source>` from one response to each test question (a collective).

    The seeds depend on the question's id alone: steps and models are compared on the same random
    numbers, where they are asked the same questions.
    """
    records = respond(engine, grader, [(q, 0) for q in tests], seed=0, texts=False)
    return {f"val/{name}": value for name, value in means(records).items()}


def respond(
    engine, grader: Grader, wanted: list[tuple[Question, int]], seed: int, texts: bool
) -> list[dict]:
    """The record of a response to every (question, sample number), a collective.

    texts: whether it holds the texts of question and response.
    """
    questions = [q for q, _ in wanted]
    seeds = [[sample_seed("eval", seed, q.id, number)] for q, number in wanted]
    rollouts = roll_out(engine, grader, questions, seeds, grader.config.eval_temperature)
    grader.warn(questions, rollouts)
    return [
        _record(*pair, trajectory, grader, texts) for pair, [trajectory] in zip(wanted, rollouts)
    ]


def respond_in_blocks(engine, grader: Grader, questions: list[Question], kept: dict) -> list[dict]:
    """The records of all samples of the questions, on rank 0, else [] (a collective).

    Only those that are not in `kept` are generated. With --output the records of a block are on the
    disk before the next one begins.
    """
    config = grader.config
    rank_0 = ranks.rank() == 0
    there = ranks.gather(set(kept))[0]
    wanted = [(q, i) for q in questions for i in range(config.samples_of(q.source))]
    missing = [(q, i) for q, i in wanted if (question_key(q), i) not in there]
    size = BLOCK * ranks.world_size() // config.rollout_tp
    bar = tqdm(total=len(missing), unit="response", disable=not rank_0)
    for first in range(0, len(missing), size):
        start = time.monotonic()
        new = respond(engine, grader, missing[first : first + size], config.seed, texts=rank_0)
        if rank_0 and config.output:
            add(Path(config.output), new)
        kept |= {(r["question"], r["sample"]): r for r in new}
        tokens = sum(r["length"] for r in new)
        bar.set_postfix_str(f"{tokens / (time.monotonic() - start):.0f} tokens/s")
        bar.update(len(new))
    bar.close()
    return [kept[question_key(q), i] for q, i in wanted] if rank_0 else []


def _record(
    question: Question, number: int, trajectory: Trajectory, grader: Grader, texts: bool
) -> dict:
    """One response as plain values, by its question, sample number and named rewards."""
    config = grader.config
    record = {
        "source": question.source,
        "question": question_key(question),
        "sample": number,
        "reward": trajectory.reward,
        "success": trajectory.is_success,
        "length": len(trajectory.token_ids),
        "truncated": not trajectory.finished,
        "timeout": "timeouts" in trajectory.named_rewards,
    }
    # Decoding takes time where responses are long, so it is done only where it is asked for.
    if texts:
        text = grader.text(trajectory.token_ids)
        record |= {"text": question.text, "gold": question.answer, "response": text}
        record["row"] = row_key(question)
    parts = {f"reward_{name}": value for name, value in trajectory.named_rewards.items()}
    parts.pop("reward_timeouts", None)
    record["judged"] = parts | judged_numbers(trajectory.judged)
    if texts and config.reward == "math" and config.require_box:
        record["answer"] = last_box(grader.piece(question, trajectory.token_ids) or "")
    return record


def means(records: list[dict]) -> dict:
    """`pass_at_1/<source>` (share of successes; Avg@k for k samples), `reward/...` and so on.

    A further reward, `reward_<name>/<source>`, is averaged over the responses that have it. Their
    number is `reward_<name>/<source>/count`.
    """
    values = defaultdict(list)
    for r in records:
        named = {name: r[name] for name in ("reward", "length", "truncated", "timeout")}
        for name, value in ({"pass_at_1": r["success"]} | named | r["judged"]).items():
            values[f"{name}/{r['source']}"].append(value)
    found = {name: float(np.mean(v)) for name, v in values.items()}
    for name, v in values.items():
        if name.startswith("reward_"):
            found[f"{name}/count"] = len(v)
    return found


def main(argv: list[str] | None = None) -> dict:
    """Evaluate a model directory by the command line: print all scores, return their means."""
    config = COMMAND or parse_command(argv)
    device = ranks.setup(hang_timeout=0)  # many samples of long responses may take hours
    rank_0 = ranks.rank() == 0
    tokenizer = load_tokenizer(config, config.model)
    ends = turn_ends(config.model, tokenizer)
    questions, counts = load_questions(config.data, config, tokenizer)
    if counts.get("repeated") and config.samples == 1 and not config.avg_samples:
        raise ValueError(
            f"{', '.join(config.data)}: {counts['repeated']} rows repeat a question. How "
            "often each is asked is said by --avg_samples 32 (for AIME and AMC alone) or by "
            "--samples 32; --avg_samples 1 asks all of them once"
        )
    config.reward = reward_of(questions, config.reward)
    _fit_positions(config, questions)
    with claim(config.output), make_verifier(config) as verifier:
        kept = {}
        if config.output and rank_0:
            settings = {name: getattr(config, name) for name in DECISIVE}
            settings |= {"turn_ends": ends, "reward_identity": verifier.identity}
            settings["files"] = model_files(Path(config.model))
            kept = open_kept(Path(config.output), settings)
        questions, of_answers = readable(questions, verifier.check_golds)
        counts |= of_answers
        questions = first_of_each_source(questions, config.eval_questions)
        engine = make_engine(config, ends, device)
        watchdog.enter("evaluation")
        try:
            records = respond_in_blocks(
                engine, Grader(config, tokenizer, verifier, ends), questions, kept
            )
        except Interrupted:
            if rank_0:
                kept_in = config.output or "nothing"
                said = f"interrupted: {kept_in} is kept, the same command goes on from there"
                say(said)
                last_word(said)
            return {}
    scores = ranks.gather(means(records))[0]
    if rank_0:
        said = {"model": config.model, "max_response_length": config.max_response_length}
        said |= {"questions": counts} | scores | statistics(records)
        say_unfit(config.model, config.reward, scores)
        text = json.dumps(said, indent=1)
        print(text)
        if config.output:
            (Path(config.output) / "scores.json").write_text(text)
        say(in_short(records))
    ranks.barrier()
    return scores


def _fit_positions(config: EvalConfig, questions: list[Question]) -> None:
    """Cut the limits to the longest prompt and what it leaves; ValueError if that is nothing."""
    config.max_prompt_length = longest = max(len(q.prompt_ids) for q in questions)
    positions = model_config(config).max_position_embeddings
    if longest >= positions:
        raise ValueError(
            f"no room for a response: the longest prompt takes {longest} of {positions} "
            "positions. Lower --max_prompt_length, or set --max_position_embeddings"
        )
    if config.max_response_length > positions - longest:
        config.max_response_length = positions - longest
        once(
            f"note: responses have {positions - longest} tokens, which the model's positions leave"
        )


if __name__ == "__main__":
    ranks.run(main)

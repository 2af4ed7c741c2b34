r"""Evaluation (Sec. 5.1): Pass@1 and Avg@k per data_source, by training's engine and verifier.

    python eval.py --model DIR --data test.jsonl --eval_questions 100
    torchrun --nproc_per_node=8 eval.py --config configs/own-model.yaml \
        --model DIR --data valid.parquet --avg_samples 32 --output runs/A/eval
    python -m tools.compare runs/A/eval runs/B/eval

The scores are JSON on stdout. With --output they are in scores.json, and every response is a line
of responses.jsonl.
"""

import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tqdm import tqdm

from config import Config, parse_config
from data import Question, first_of_each_source, load_tokenizer, read_questions
from reward import Grader, make_verifier
from rollout import make_engine, roll_out
from runtime import ranks
from runtime.tables import write_jsonl
from sampler import seed_for

BLOCK = 512  # responses of an engine between two ticks of the progress bar
# The benchmarks of Table 1, by the letters and digits of their data_source in lower case.
AVERAGES = {
    "in_distribution": {
        "AIME24": r"aime(20)?(24)?",
        "AIME25": r"aime(20)?25",
        "AMC": r"amc(20)?(23)?",
        "MATH-500": r"math(500)?",
        "Minerva": r"minerva(math)?",
        "OlympiadBench": r"olympiad(bench)?",
    },
    "out_of_distribution": {
        "ARC-c": r"arcc(hallenge)?",
        "GPQA-Diamond": r"gpqa(diamond)?",
        "MMLU-Pro": r"mmlupro",
    },
}


@dataclass
class EvalConfig(Config):
    """Evaluate a model: Pass@1 and Avg@k per data_source (Sec. 5.1).

    --config FILE [FILE ...] reads YAML files, those of training too; later files win, and flags
    over all. What only training reads does not count here.
    """

    data: list[str] = field(default_factory=list)  # files of questions; none: val_files
    output: str = ""  # directory of scores.json and responses.jsonl
    samples: int = 1  # responses to each question: 1 is Pass@1, k is Avg@k
    avg_samples: int = 0  # responses to each question of AIME and AMC (32); 0: as samples
    rollout_memory: float = 0.8  # vLLM's share of GPU memory, weights included

    MAY_BE_ZERO = Config.MAY_BE_ZERO | {"avg_samples"}
    NOT_FROM_FILES = {"eval_questions", "rollout_memory", "train_files"}

    def is_small(self, question: Question) -> bool:
        """Whether a question is of AIME or AMC, by the name of its data_source."""
        return re.search("aime|amc", question.source.lower()) is not None

    def samples_of(self, question: Question) -> int:
        """How many responses to a question are asked for."""
        if self.avg_samples and self.is_small(question):
            return self.avg_samples
        return self.samples


def validate(engine, grader: Grader, val_questions: list[Question]) -> tuple[dict, str]:
    """`val/<score>/<source>` from one response to each question, and an example (a collective).

    The seeds depend on the question alone: steps and models are compared on the same random
    numbers.
    """
    records = respond(engine, grader, [(q, 0) for q in val_questions], seed=0)
    scores = {f"val/{name}": value for name, value in means(records).items()}
    example = ""
    for record in records[:1]:
        example = "{text}   right: {gold}\n{response}   reward: {reward:g}".format(**record)
    return scores, example


def respond(engine, grader: Grader, wanted: list[tuple[Question, int]], seed: int) -> list[dict]:
    """The record of a response to every (question, sample number), a collective."""
    questions = [q for q, _ in wanted]
    seeds = [[seed_for("eval", seed, q.id, number)] for q, number in wanted]
    rollouts = roll_out(engine, grader, questions, seeds, grader.config.eval_temperature)
    records = []
    for (q, number), [response] in zip(wanted, rollouts):
        records.append({"sample": number, **grader.record(q, response)})
    return records


def means(records: list[dict]) -> dict[str, float]:
    """`pass_at_1/<source>` (share of successes; Avg@k for k samples), `reward/<source>` and so on.

    A further reward is averaged over the responses that have it.
    """
    values = defaultdict(list)
    for record in records:
        source = record["source"]
        values[f"pass_at_1/{source}"].append(record["success"])
        for name, value in record.items():
            if isinstance(value, int | float) and name not in ("sample", "success"):
                values[f"{name}/{source}"].append(value)
    return {name: float(np.mean(of)) for name, of in values.items()}


def statistics(records: list[dict]) -> dict:
    """What a table needs beside the means, per data_source, and the two averages of Table 1.

    A data_source has `questions`, `samples` (responses to a question) and `interval` (95%, of
    Pass@1). Of an average `average_of/<group>` names the benchmarks that are in it.
    """
    sources = defaultdict(lambda: defaultdict(list))
    for record in records:
        sources[record["source"]][record["text"]].append(record["success"])
    result: dict = {}
    scores = defaultdict(list)  # of each benchmark; one under two data_sources has one weight
    for source, questions in sources.items():
        right = list(questions.values())
        result[f"questions/{source}"] = len(right)
        result[f"samples/{source}"] = len(right[0])
        result[f"interval/{source}"] = interval(right)
        of_questions = [np.mean(of_question) for of_question in right]
        scores[benchmark(source)].append(np.mean(of_questions))
    for group, members in AVERAGES.items():
        there = [name for name in members if name in scores]
        if there:
            members_scores = [np.mean(scores[name]) for name in there]
            result[f"average/{group}"] = float(np.mean(members_scores))
            result[f"average_of/{group}"] = there
    return result


def benchmark(source: str) -> str | None:
    """The benchmark of Table 1 that a data_source names, or None."""
    plain = re.sub("[^a-z0-9]", "", source.rpartition("/")[2].lower())
    for members in AVERAGES.values():
        for name, pattern in members.items():
            if re.fullmatch(pattern, plain):
                return name
    return None


def interval(right: list[list[bool]]) -> list[float]:
    """Wilson's 95% interval of Pass@1; the question is the unit, as its responses depend on it."""
    from scipy.stats import binomtest  # takes seconds to import

    number = len(right)
    successes = sum(np.mean(of_question) for of_question in right)
    found = binomtest(round(successes), number).proportion_ci(method="wilson")
    return [float(found.low), float(found.high)]


def main() -> None:
    """Evaluate a model by the command line: print all scores."""
    config = parse_config(cls=EvalConfig)
    output = Path(config.output)
    if config.output and output.exists():
        raise ranks.Refusal(f"{output} is there already: choose another --output, or remove it")
    device = ranks.setup()
    tokenizer, stop_ids = load_tokenizer(config)
    with make_verifier(config) as verifier:
        files = config.data or config.val_files
        if not files:
            raise ranks.Refusal("eval.py needs --data FILE")
        questions, counts = read_questions(files, config, tokenizer, verifier.check_golds)
        questions = first_of_each_source(questions, config.eval_questions)
        wanted = []
        for q in questions:
            wanted += [(q, number) for number in range(config.samples_of(q))]
        if config.avg_samples and not any(map(config.is_small, questions)):
            raise ranks.Refusal("--avg_samples fits no data_source: none holds aime or amc")
        grader = Grader(config, tokenizer, verifier, stop_ids)
        engine = make_engine(config, stop_ids, device)
        records = []
        size = BLOCK * ranks.world_size()
        starts = range(0, len(wanted), size)
        for start in tqdm(starts, disable=ranks.rank() > 0):
            block = wanted[start : start + size]
            records += respond(engine, grader, block, config.seed)
    if ranks.rank() == 0:
        scores = {"model": config.model, "rows": counts} | means(records) | statistics(records)
        text = json.dumps(scores, indent=1)
        print(text)
        if config.output:
            output.mkdir(parents=True)
            (output / "scores.json").write_text(text + "\n")
            write_jsonl(output / "responses.jsonl", records)


if __name__ == "__main__":
    ranks.run(main)

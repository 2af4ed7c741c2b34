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

from config import Config, parse_config
from data import Question, first_of_each_source, load_tokenizer, read_questions
from reward import Grader
from rollout import make_engine, roll_out
from runtime import ranks
from runtime.tables import write_jsonl
from sampler import seed_for

# The nine benchmarks of Table 1: patterns of the letters and digits that follow the last `/` of a
# data_source, in lower case.
AVERAGES = {
    "in_distribution": (
        r"aime(20)?(24|25)?"
        r"|amc(20)?(23)?"
        r"|math(500)?"
        r"|minerva(math)?"
        r"|olympiad(bench)?"
    ),
    "out_of_distribution": (
        r"arcc(hallenge)?"
        r"|gpqa(diamond)?"
        r"|mmlupro"
    ),
}


@dataclass
class EvalConfig(Config):
    """Evaluate a model: Pass@1 and Avg@k per data_source (Sec. 5.1).

    --config FILE [FILE ...] reads YAML files, those of training too; later files win, and flags
    over all. A file's eval_questions and rollout_memory are for training and do not count here.
    """

    data: list[str] = field(default_factory=list)  # files of questions; none: val_files
    output: str = ""  # directory of scores.json and responses.jsonl
    samples: int = 1  # responses to each question: 1 is Pass@1, k is Avg@k
    avg_samples: int = 0  # responses to each question of AIME and AMC (32); 0: as samples
    rollout_memory: float = 0.8  # vLLM's share of GPU memory, weights included

    NOT_FROM_FILES = {"eval_questions", "rollout_memory"}

    def samples_of(self, question: Question) -> int:
        """How many responses to a question are asked for."""
        is_small = re.search("aime|amc", question.source.lower())
        return self.avg_samples if is_small and self.avg_samples else self.samples


def validate(engine, grader: Grader, val_questions: list[Question]) -> dict:
    """`val/<score>/<source>` from one response to each question (a collective).

    The seeds depend on the question alone: steps and models are compared on the same random
    numbers.
    """
    records = respond(engine, grader, val_questions, [1] * len(val_questions))
    return {f"val/{name}": value for name, value in means(records).items()}


def respond(
    engine, grader: Grader, questions: list[Question], samples: list[int], seed: int = 0
) -> list[dict]:
    """The records of so many responses to each question (a collective)."""
    seeds = []
    for q, number in zip(questions, samples):
        seeds.append([seed_for("eval", seed, q.id, i) for i in range(number)])
    temperature = grader.config.eval_temperature
    records = []
    for q, responses in zip(questions, roll_out(engine, grader, questions, seeds, temperature)):
        records += [grader.record(q, response) for response in responses]
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
            if isinstance(value, int | float) and name != "success":
                values[f"{name}/{source}"].append(value)
    return {name: float(np.mean(of)) for name, of in values.items()}


def statistics(records: list[dict]) -> dict:
    """What a table needs beside the means, per data_source, and the two averages of Table 1.

    A data_source has `questions`, `samples` (responses to a question) and `interval`, which is
    Wilson's 95% interval of Pass@1. Its unit is the question, since responses to the same question
    are not independent. In an average each data_source counts alike, and `average_of/<group>` names
    those that are in it.
    """
    from scipy.stats import binomtest  # takes seconds to import

    sources = defaultdict(lambda: defaultdict(list))
    for record in records:
        sources[record["source"]][record["text"], record["gold"]].append(record["success"])
    result: dict = {}
    scores = defaultdict(dict)  # of each average: {data_source: Pass@1}
    for source, questions in sources.items():
        right = list(questions.values())
        result[f"questions/{source}"] = len(right)
        result[f"samples/{source}"] = len(right[0])
        of_questions = [np.mean(of_question) for of_question in right]
        found = binomtest(round(sum(of_questions)), len(of_questions))
        result[f"interval/{source}"] = list(found.proportion_ci(method="wilson"))
        plain = re.sub("[^a-z0-9]", "", source.rpartition("/")[2].lower())
        for group, pattern in AVERAGES.items():
            if re.fullmatch(pattern, plain):
                scores[group][source] = np.mean(of_questions)
    for group, own in scores.items():
        result[f"average/{group}"] = float(np.mean(list(own.values())))
        result[f"average_of/{group}"] = list(own)
    return result


def main() -> None:
    """Evaluate a model by the command line: print all scores."""
    config = parse_config(cls=EvalConfig)
    output = Path(config.output)
    if config.output and output.exists():
        raise ranks.Refusal(f"{output} is there already: choose another --output, or remove it")
    device = ranks.setup()
    tokenizer, stop_ids = load_tokenizer(config)
    with Grader(config, tokenizer, stop_ids) as grader:
        files = config.data or config.val_files
        questions, counts = read_questions(files, config, tokenizer, grader)
        questions = first_of_each_source(questions, config.eval_questions)
        samples = [config.samples_of(q) for q in questions]
        if config.avg_samples and config.avg_samples not in samples:
            raise ranks.Refusal("--avg_samples fits no data_source: none holds aime or amc")
        engine = make_engine(config, stop_ids, device)
        records = respond(engine, grader, questions, samples, config.seed)
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

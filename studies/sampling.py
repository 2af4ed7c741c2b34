"""A sampling pass: K responses to each of N training questions, graded, judged, and scored by the model that made them.

    python -m studies.sampling --model DIR --world .cache/arithmetic-... --out DIR --questions 800 --seed 0

Writes `result.json`: for every response its question, the question's k, reward, the judge's verdicts, the mean entropy and
the mean NLL of its tokens (the log of its perplexity), and its length. Fig. 1b, 1c, Table 12 and `official` read it.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from config import Config
from data import Request, load_questions, load_tokenizer, sample_seed
from exgrpo import SUCCESS
from grading import Grader, rollout
from policy import Policy
from reward import Verifier
from rollout import make_engine
from runtime import ranks
from worlds.arithmetic import JUDGES


def sample(model: str, world: str, questions: int, seed: int) -> dict:
    """{"num_rollouts": K, "columns": {name: a value per response}} for a seeded choice of the world's training questions."""
    device = ranks.setup()
    config = Config(model=model, train_files=[f"{world}/train.jsonl"], reward="worlds.arithmetic:reward", seed=seed)
    tokenizer = load_tokenizer(config, model)
    everything, _ = load_questions(config.train_files, config, tokenizer)
    chosen = np.random.default_rng([seed, 4]).permutation(len(everything))[:questions]
    chosen = [everything[i] for i in chosen]
    requests = [[Request(q.prompt_ids, sample_seed("study", seed, q.id, i)) for i in range(config.num_rollouts)] for q in chosen]
    with Verifier(config.verify_workers, config.verify_timeout, config.reward) as verifier:
        engine, grader = make_engine(config, model, tokenizer.eos_token_id, device), Grader(config, tokenizer, verifier)
        graded = rollout(engine, grader, chosen, requests, config.temperature, config.max_response_length)
    scores = iter(Policy(config, model, device).score([(q.prompt_ids, r.token_ids) for q, pairs in zip(chosen, graded)
                                                       for r, _ in pairs]))
    rows = []
    for question, responses in zip(chosen, graded):
        k = sum(reward > SUCCESS for _, reward in responses)
        for response, reward in responses:
            logprobs, entropies = next(scores)
            verdicts = {name: int(judge(question.text, grader.text(response.token_ids))) for name, judge in JUDGES.items()}
            rows.append({"question": question.id, "k": k, "reward": reward, **verdicts, "length": len(response.token_ids),
                         "entropy": round(float(entropies.mean()), 6), "nll": round(-float(logprobs.mean()), 6)})
    return {"num_rollouts": config.num_rollouts, "columns": {name: [row[name] for row in rows] for name in rows[0]}}


def main() -> None:
    """Sample as the command line says and write result.json."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="model directory")
    parser.add_argument("--world", required=True, help="directory of the built-in world")
    parser.add_argument("--out", required=True, help="where result.json goes")
    parser.add_argument("--questions", type=int, default=800, help="how many training questions")
    parser.add_argument("--seed", type=int, default=0, help="chooses questions and samples")
    args = parser.parse_args()
    result = sample(args.model, args.world, args.questions, args.seed)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "result.json.tmp").write_text(json.dumps(result))
    (out / "result.json.tmp").replace(out / "result.json")


if __name__ == "__main__":
    ranks.run(main)

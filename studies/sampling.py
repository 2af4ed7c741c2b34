"""A sampling pass: K responses to each of N training questions, graded, judged, scored by the model itself.

    python -m studies.sampling --model DIR --world .cache/arithmetic-... --out DIR --questions 800 --seed 0

Writes `result.json`: for every response its question, the question's k, reward, what the judges say, the mean
entropy and the mean NLL of its tokens (the log of its perplexity), and its length. Fig. 1b, 1c, Table 12 and
`official` read it.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from config import Config
from data import load_questions, load_tokenizer, sample_seed
from policy import Policy
from reward import SUCCESS, Grader, make_verifier
from rollout import make_engine, roll_out
from runtime import ranks
from studies.records import replace
from worlds.arithmetic import JUDGES


def sample(model: str, world: str, questions: int, seed: int) -> dict:
    """{"num_rollouts": K, "columns": {name: a value per response}} of some training questions."""
    device = ranks.setup()
    files, reward = [f"{world}/train.jsonl"], "worlds.arithmetic:reward"
    config = Config(model=model, train_files=files, reward=reward, seed=seed)
    tokenizer = load_tokenizer(config, model)
    everything, _ = load_questions(config.train_files, config, tokenizer)
    rng = np.random.default_rng(sample_seed("sampled questions", seed))
    order = rng.permutation(len(everything))
    chosen = [everything[i] for i in order[:questions]]
    seeds = [[sample_seed("study", seed, q.id, i) for i in range(config.num_rollouts)] for q in chosen]
    with make_verifier(config) as verifier:
        engine = make_engine(config, model, tokenizer.eos_token_id, device)
        grader = Grader(config, tokenizer, verifier)
        groups = roll_out(engine, grader, chosen, seeds, config.temperature)
    flat = [(q, t) for q, group in zip(chosen, groups) for t in group]
    scores = Policy(config, model, device).score([(q.prompt_ids, t.token_ids) for q, t in flat])
    k = {q.id: sum(t.reward > SUCCESS for t in group) for q, group in zip(chosen, groups)}
    rows = []
    for (q, t), (logprobs, entropies) in zip(flat, scores):
        judged = {name: int(judge(q.text, grader.text(t.token_ids))) for name, judge in JUDGES.items()}
        rows.append({"question": q.id, "k": k[q.id], "reward": t.reward, **judged, "length": len(t.token_ids),
                     "entropy": round(float(entropies.mean()), 6), "nll": round(-float(logprobs.mean()), 6)})
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {"num_rollouts": config.num_rollouts, "columns": columns}


def main() -> None:
    """Sample as the command line says and write result.json."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="model directory")
    parser.add_argument("--world", required=True, help="directory of the built-in world")
    parser.add_argument("--out", required=True, type=Path, help="where result.json goes")
    parser.add_argument("--questions", type=int, default=800, help="how many training questions")
    parser.add_argument("--seed", type=int, default=0, help="chooses questions and samples")
    args = parser.parse_args()
    result = sample(args.model, args.world, args.questions, args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    if ranks.rank() == 0:
        replace(args.out / "result.json", json.dumps(result).encode())


if __name__ == "__main__":
    ranks.run(main)

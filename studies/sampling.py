"""A sampling pass: K responses of a base model to each of some training questions, graded, judged, scored.

    python -m studies.sampling --run_dir DIR --world hard --world_seed 3

`numbers.json` holds a value per response in columns: its question, reward, what the judges say, mean entropy
and mean NLL of its tokens, length.
"""

import json
from pathlib import Path

import numpy as np

from config import Config, parse_config
from data import load_questions, load_tokenizer, sample_seed, with_built_in_world
from policy import Policy
from reward import Grader, make_verifier
from rollout import make_engine, roll_out
from runtime import ranks
from studies import processor
from studies.records import replace
from studies.unit import base_hash, check_base
from worlds.arithmetic import JUDGES

QUESTIONS, QUICK = 800, 40


def sample(config: Config, questions: int) -> dict[str, list]:
    """{column: a value per response} of the first `questions` training questions of a seeded order."""
    device = ranks.setup()
    tokenizer = load_tokenizer(config, config.model)
    everything, _ = load_questions(config.train_files, config, tokenizer)
    order = np.random.default_rng(sample_seed("sampled questions", config.seed)).permutation(len(everything))
    chosen = [everything[i] for i in order[:questions]]
    seeds = [[sample_seed("study", config.seed, q.id, i) for i in range(config.num_rollouts)] for q in chosen]
    with make_verifier(config) as verifier:
        engine = make_engine(config, config.model, tokenizer.eos_token_id, device)
        grader = Grader(config, tokenizer, verifier)
        groups = roll_out(engine, grader, chosen, seeds, config.temperature)
        if verifier.timeouts:
            raise RuntimeError(f"{verifier.timeouts} answers were not graded in time: run it again")
    flat = [(q, t) for q, group in zip(chosen, groups) for t in group]
    scores = Policy(config, config.model, device).score([(q.prompt_ids, t.token_ids) for q, t in flat])
    rows = []
    for (q, t), (logprobs, entropies) in zip(flat, scores):
        judged = {name: int(judge(q.text, grader.text(t.token_ids))) for name, judge in JUDGES.items()}
        rows.append({"question": q.id, "reward": t.reward, **judged, "length": len(t.token_ids),
                     "entropy": round(float(entropies.mean()), 6), "nll": round(-float(logprobs.mean()), 6)})
    return {name: [row[name] for row in rows] for name in rows[0]}


def main() -> None:
    """Sample as the command line says and write numbers.json."""
    processor.as_asked()
    config = with_built_in_world(parse_config())
    check_base(Path(config.run_dir), base := base_hash(config.model))
    columns = sample(config, QUICK if config.eval_questions else QUESTIONS)
    about = {"base": base, "columns": columns}
    replace(Path(config.run_dir) / "numbers.json", json.dumps(about).encode())


if __name__ == "__main__":
    ranks.run(main)

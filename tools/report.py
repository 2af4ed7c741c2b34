"""One self-contained HTML page about runs: curves, buckets, replay, time, stored responses by token.

    python -m tools.report runs/default runs/baseline --output report.html

A RUN is the run_dir of a training run, finished or not. The curves come from its metrics.jsonl. The stored
responses come from its newest whole checkpoint and are scored anew by the policy of that checkpoint, so they
are what the next step would choose o* from. Start this where the run was started: it may name relative paths.

The page is report.html beside this file with the data put in as JSON. It loads nothing. What models,
questions and paths say may be hostile: the page inserts it as text only, and lets no script run but its own.
"""

import argparse
import base64
import hashlib
import json
import math
from datetime import datetime
from itertools import zip_longest
from pathlib import Path

import numpy as np
import torch

from buffer import ReplayBuffer, Trajectory
from data import Question, fingerprint, load_questions, load_tokenizer
from exgrpo import Experience
from runtime import ranks
from runtime.checkpoint import directories, problem
from tools.export import configuration, load_policy
from worlds.arithmetic import judge_steps, takes_shortcut, valid_chain

TEMPLATE = Path(__file__).with_suffix(".html")
SHOWN = ("reward/pass_at_1", "val/pass_at_1/", "val/valid/", "loss/entropy", "rollout/length", "replay/ratio",
         "replay/gradient_share", "replay/token_share", "buckets/",
         "time/")  # beginnings of the metrics shown


# ---- curves ---------------------------------------------------------------------------------------


def read_metrics(run: Path) -> list[dict]:
    """The rows of RUN/metrics.jsonl but for a line still being written; ValueError says what is wrong."""
    file = run / "metrics.jsonl"
    if not file.is_file():
        raise ValueError(f"{run} has no metrics.jsonl: name the run_dir of a training run")
    rows = []
    for number, line in enumerate(file.read_text().split("\n")[:-1], start=1):
        try:
            rows.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{file}, line {number}: not JSON: {error}") from error
        if not isinstance(rows[-1], dict) or type(rows[-1].get("step")) is not int:
            raise ValueError(f"{file}, line {number}: not a row of metrics, whose `step` is a whole number")
    if not rows:
        raise ValueError(f"{file} is empty: the first row comes after the first validation")
    return rows


def number(value) -> float | None:
    """A finite number with six digits; None for anything else, NaN included (JSON has none)."""
    try:
        value = float(f"{value:.6g}")
    except (TypeError, ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def columns(rows: list[dict]) -> dict:
    """{"step": [...], "metrics": {name: a value or None per row}}; w* is None where nothing was replayed."""
    metrics = {}
    for name in sorted({name for row in rows for name in row if name.startswith(SHOWN)}):
        known = [not name.startswith("replay/") or row.get("replay/questions") != 0 for row in rows]
        metrics[name] = [number(row.get(name)) if there else None for row, there in zip(rows, known)]
    return {"step": [row["step"] for row in rows], "metrics": metrics}


# ---- stored responses -----------------------------------------------------------------------------


def newest_checkpoint(run: Path) -> Path:
    """The newest checkpoint of a run that is whole; ValueError where there is none."""
    for path in reversed(directories(run / "checkpoints")):
        if problem(path) is None:
            return path
    raise ValueError("the run has no whole checkpoint yet")


def spread(buffer: ReplayBuffer, limit: int) -> list[int]:
    """Up to `limit` buffered questions, from every bucket in turn those with the most stored responses."""
    def stored(question: int) -> int:
        return len(buffer.trajectories(question))

    ordered = [sorted(ids, key=stored, reverse=True) for _, ids in sorted(buffer.buckets.items())]
    return [q for turn in zip_longest(*ordered) for q in turn if q is not None][:limit]


def stored_responses(run: Path, checkpoint: Path, state: dict, limit: int, device: torch.device) -> dict:
    """Up to `limit` buffered questions with their stored responses, scored by the checkpoint's policy.

    ValueError or OSError where files that the run used are not there, or no longer what they were.
    """
    config = configuration(state["config"], run)
    buffer = ReplayBuffer.load(checkpoint / "buffer.safetensors")
    if not len(buffer):
        why = "" if config.rho else ": the run is on-policy (rho = 0)"
        raise ValueError(f"the replay buffer is empty{why}")
    tokenizer = load_tokenizer(config, config.model)
    questions, _ = load_questions(config.train_files, config, tokenizer)
    if fingerprint(questions) != state["questions"]:
        raise ValueError(f"{', '.join(config.train_files)}: not the questions that the run was trained on")
    policy, ids = load_policy(config, checkpoint, device), spread(buffer, limit)
    stored = [(q, t) for q in ids for t in buffer.trajectories(q)]
    scores = policy.score([(questions[q].prompt_ids, t.token_ids) for q, t in stored])
    rule, experience = config.trajectory_selection, Experience(config, questions)
    experience.buffer = buffer
    mean = policy.mean_nll if rule == "nll" else policy.mean_entropy  # as train.py has it
    stars = experience.choose(ids, mean, np.random.default_rng(0))[0]
    judged = config.reward.startswith("worlds.arithmetic:")
    shown = {q: [] for q in ids}
    for (q, t), score in zip(stored, scores):
        about = response(t, *score, tokenizer, questions[q] if judged else None)
        star = rule != "random" and np.array_equal(t.token_ids, stars[q].token_ids)
        shown[q].append({"chosen": star} | about)
    described = [{"text": questions[q].text, "answer": questions[q].answer, "source": questions[q].source,
                  "k": buffer.num_success(q), "responses": shown[q]} for q in ids]
    return {"step": state["step"], "rule": rule, "K": config.num_rollouts, "buffered": len(buffer),
            "questions": described}


def response(t: Trajectory, logprobs: np.ndarray, entropies: np.ndarray, tokenizer,
             judged: Question | None) -> dict:
    """What the page shows of a stored response; logprobs and entropies (T,) are the policy's of now.

    judged: its question, where the built-in world's judge knows valid steps from flawed ones.
    """
    ratios = np.exp(logprobs.astype(np.float64) - t.logprobs)  # w*, (T,)
    texts, special = pieces(tokenizer, t.token_ids.tolist())
    steps, verdict = judge(judged.text, texts, special) if judged else ([], None)
    return {
        "step": t.step, "tokens": texts, "special": special, "steps": steps, "verdict": verdict,
        "entropies": [number(e) for e in entropies.round(4)], "ratios": [number(w) for w in ratios.round(4)],
        "entropy": number(entropies.mean(dtype=np.float64)), "ratio": number(ratios.mean()),
        "nll_then": number(-t.logprobs.mean(dtype=np.float64)),
        "nll_now": number(-logprobs.mean(dtype=np.float64)),
    }


def judge(question: str, texts: list[str], special: list[int]) -> tuple[list, str]:
    """The written steps as [first token, one after the last, valid], and what the chain as a whole is."""
    kept = ["" if i in special else text for i, text in enumerate(texts)]
    plain, starts = "".join(kept), np.cumsum([0, *map(len, kept)])  # starts (T + 1,), in `plain`
    steps = []
    for match, ok in judge_steps(question, plain):
        first, last = np.searchsorted(starts, [match.start(), match.end() - 1], side="right") - 1
        steps.append([int(first), int(last) + 1, ok])
    if takes_shortcut(question, plain):
        return steps, "bare answer"
    return steps, "flawless chain" if valid_chain(question, plain) else "flawed chain"


def pieces(tokenizer, ids: list[int]) -> tuple[list[str], list[int]]:
    """The text of every token (a split character comes with its last one), and the places of special ones."""
    texts, special, all_special = [], [], set(tokenizer.all_special_ids)
    start = done = 0  # ids[start:done] are the tokens before: some tokenizers look back for spaces
    for i, token in enumerate(ids):
        if token in all_special:
            special.append(i)
            texts.append(tokenizer.decode([token]))
            start = done = i + 1
            continue
        before, after = tokenizer.decode(ids[start:done]), tokenizer.decode(ids[start : i + 1])
        # a character has at most four bytes
        if after.endswith("\ufffd") and i - done < 3 and i + 1 < len(ids):
            texts.append("")
            continue
        texts.append(after[len(before) :])
        start, done = done, i + 1
    return texts, special


# ---- the page -------------------------------------------------------------------------------------


def describe(run: Path, rows: list[dict], limit: int, device: torch.device) -> dict:
    """What the page says about a run; `browser` holds `missing`, a sentence, where no response is shown."""
    planned = None
    try:
        checkpoint = newest_checkpoint(run)
        state = json.loads((checkpoint / "state.json").read_text())
        planned = state["config"]["steps"]
        browser = stored_responses(run, checkpoint, state, limit, device)
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: no memory beside a run going on, say
        browser = {"missing": f"No stored responses: {error}."}
        print(f"{run}: {browser['missing']}")
    return {"name": str(run), "planned": planned, **columns(rows), "browser": browser}


def page(runs: list[dict]) -> str:
    """The HTML page: the template with the data, and the hash of the one script that may run."""
    template = TEMPLATE.read_text()
    script = template.split("<script>")[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    data = {"written": f"{datetime.now():%Y-%m-%d %H:%M}", "runs": runs}
    text = json.dumps(data, allow_nan=False,
                      separators=(",", ":"))  # ASCII: U+2028 and U+2029 are escaped too
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return template.replace("{{script hash}}", digest, 1).replace("{{data}}", text, 1)


def main(argv: list[str] | None = None) -> None:
    """Write the page for the runs on the command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run_dir of a training run")
    parser.add_argument("--output", type=Path, default=Path("report.html"), help="the page [report.html]")
    parser.add_argument("--questions", type=int, default=40, help="buffered questions of a run to show [40]")
    args = parser.parse_args(argv)
    runs = list({run.resolve(): run for run in args.runs}.values())
    try:
        metrics = [read_metrics(run) for run in runs]
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if args.questions < 1:
        parser.error(f"--questions must be at least 1, got {args.questions}")
    if args.output.is_dir() or not args.output.parent.is_dir():
        parser.error(f"--output {args.output}: must be a file in a directory that is there")
    device = ranks.setup(hang_timeout=0)
    described = [describe(run, rows, args.questions, device) for run, rows in zip(runs, metrics)]
    args.output.write_text(page(described))
    print(f"{args.output}: {len(runs)} runs, {args.output.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    ranks.run(main)

"""What the report page shows of a run's checkpoint: stored responses, scored anew by its policy."""

import math
from pathlib import Path

import numpy as np
import torch
from tokenizers.decoders import DecodeStream

from buffer import ReplayBuffer, Trajectory
from data import Question, fingerprint, load_questions, load_tokenizer
from exgrpo import Experience
from runtime.checkpoint import directories, problem
from tools.export import configuration, load_policy
from worlds.arithmetic import judge_steps, takes_shortcut, valid_chain


def number(value) -> float | None:
    """A finite number with six digits; None for anything else, NaN included (JSON has none)."""
    try:
        value = float(f"{value:.6g}")
    except (TypeError, ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def newest_checkpoint(run: Path) -> Path:
    """The newest checkpoint of a run that is whole; ValueError where there is none."""
    for path in reversed(directories(run / "checkpoints")):
        if problem(path) is None:
            return path
    raise ValueError("the run has no whole checkpoint yet")


def stored_responses(
    run: Path, checkpoint: Path, state: dict, limit: int, device: torch.device
) -> dict:
    """Up to `limit` buffered questions, evenly from all buckets, and their stored responses.

    The policy of the checkpoint scores them. ValueError or OSError where the buffer is empty, or
    files that the run used are not there, or no longer what they were.
    """
    config = configuration(state["config"], run)
    buffer = ReplayBuffer.load(checkpoint / "buffer.safetensors")
    if not len(buffer):
        why = "" if config.rho else ": the run is on-policy (rho = 0)"
        raise ValueError(f"the replay buffer is empty{why}")
    tokenizer = load_tokenizer(config, config.model)
    questions, _ = load_questions(config.train_files, config, tokenizer)
    if fingerprint(questions) != state["questions"]:
        raise ValueError(
            f"{', '.join(config.train_files)}: not the questions that the run was trained on"
        )
    policy = load_policy(config, checkpoint, device)
    by_bucket = [q for _, ids in sorted(buffer.buckets.items()) for q in ids]
    ids = by_bucket[:: math.ceil(len(by_bucket) / limit)]
    stored = [(questions[q], t) for q in ids for t in buffer.trajectories(q)]
    scores = policy.score([(q.prompt_ids, t.token_ids) for q, t in stored])
    rule = config.trajectory_selection
    experience = Experience(config, questions)
    experience.buffer = buffer
    mean = policy.mean_nll if rule == "nll" else policy.mean_entropy
    entropies = mean(experience.candidates(ids))
    choices = experience.choose(state["step"], ids, entropies)
    stars = {choice.question: choice.star for choice in choices}
    judged = config.reward.startswith("worlds.arithmetic:")
    shown = {q: [] for q in ids}
    for (q, t), score in zip(stored, scores):
        star = rule != "random" and t is stars[q.id]
        about = response(t, *score, tokenizer, q if judged else None)
        shown[q.id].append({"chosen": star} | about)
    return {
        "step": state["step"],
        "rule": rule,
        "buffered": len(buffer),
        "questions": [
            {
                "id": q,
                "text": questions[q].text,
                "answer": questions[q].answer,
                "source": questions[q].source,
                "k": buffer.bucket_of(q),
                "responses": shown[q],
            }
            for q in ids
        ],
    }


def response(
    t: Trajectory, logprobs: np.ndarray, entropies: np.ndarray, tokenizer, judged: Question | None
) -> dict:
    """What the page shows of a stored response.

    logprobs, entropies: (T,), by the policy of the checkpoint. judged: the response's question
    where the built-in world's judge can tell valid steps from flawed ones, else None. In the result
    `past` and `now` are log π_past and log π_θ of every token, from which the page works out w*, f
    and the weight.
    """
    ratios = np.exp(logprobs.astype(np.float64) - t.logprobs)  # w*, (T,)
    texts, special = pieces(tokenizer, t.token_ids.tolist())
    steps, verdict = judge(judged, texts, special) if judged else ([], None)
    return {
        "step": t.step,
        "tokens": texts,
        "special": special,
        "steps": steps,
        "verdict": verdict,
        "entropies": [number(e) for e in entropies.round(4)],
        "past": [number(p) for p in t.logprobs.round(5)],
        "now": [number(p) for p in logprobs.round(5)],
        "entropy": number(entropies.mean(dtype=np.float64)),
        "ratio": number(ratios.mean()),
        "nll_then": number(-t.logprobs.mean(dtype=np.float64)),
        "nll_now": number(-logprobs.mean(dtype=np.float64)),
    }


def judge(question: Question, texts: list[str], special: list[int]) -> tuple[list, str]:
    """The written steps as [first token, one after the last, valid], and a verdict on all."""
    asked = question.row["prompt"][-1]["content"]
    kept = ["" if i in special else text for i, text in enumerate(texts)]
    plain = "".join(kept)
    starts = np.cumsum([0, *map(len, kept)])  # (T + 1,), where each token begins in `plain`
    steps = []
    for match, ok in judge_steps(asked, plain):
        first, last = np.searchsorted(starts, [match.start(), match.end() - 1], side="right") - 1
        steps.append([int(first), int(last) + 1, ok])
    if takes_shortcut(plain):
        return steps, "bare answer"
    valid = valid_chain(asked, plain, question.answer)
    return steps, "flawless chain" if valid else "flawed chain"


def pieces(tokenizer, ids: list[int]) -> tuple[list[str], list[int]]:
    """The text of every token, and the places of special ones.

    A character that is split over several tokens comes with the last of them.
    """
    stream = DecodeStream(skip_special_tokens=False)
    all_special = set(tokenizer.all_special_ids)
    texts = []
    special = []
    for i, token in enumerate(ids):
        text = stream.step(tokenizer.backend_tokenizer, token)  # None where more has to come
        texts.append(text or "")
        if token in all_special:
            special.append(i)
    return texts, special

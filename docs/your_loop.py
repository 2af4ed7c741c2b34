"""ExGRPO in one file: a loop of your own around exgrpo.py, buffer.py, sampler.py and loss.py.

    python docs/your_loop.py       # trains the built-in model for twelve steps, in half a minute

One process, one model, padded tensors, nothing to resume: the whole method and no more. Read it
from `main` on, step through it, or copy what stands between a trainer and the four files. train.py
is the same loop with engines, several ranks, checkpoints and a small entropy bonus.

If your trainer has tensors (N, T) and a response mask, pass `logprobs[mask]` to `policy_loss` and
repeat each response's values over its tokens: `advantages[:, None].expand_as(mask)[mask]`. The
losses of micro-batches can be added if `num_responses` counts the whole mini-batch. Under DDP or
FSDP, which average gradients, it counts the responses of all ranks, and the loss is multiplied by
the number of ranks.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).parent.parent))

from buffer import Trajectory
from exgrpo import Experience, Group, Knobs, Plan
from loss import policy_loss
from worlds.arithmetic import World, answer_of, draw_training, is_right

BASE = Path(__file__).parent.parent / "worlds/base"
TOKENIZER = AutoTokenizer.from_pretrained(BASE)
EOS = TOKENIZER.eos_token_id
STEPS = 12
TEMPERATURE = 1.0  # of sampling; all log-probs and entropies are taken at the same
L_MAX = 72  # tokens of the longest response, by which the loss divides


@dataclass
class Question:
    """The id and the prompt are what `Experience` asks for."""

    id: int
    prompt_ids: np.ndarray  # int32 (P,)
    text: str


def read_questions() -> list[Question]:
    """Those of the built-in world, with the chat template around them."""
    questions = []
    for id, text in enumerate(draw_training(World())):
        turns = [{"role": "user", "content": text}]
        ids = TOKENIZER.apply_chat_template(turns, add_generation_prompt=True)["input_ids"]
        questions.append(Question(id, np.array(ids, np.int32), text))
    return questions


# ---- one padded forward pass, for everything -----------------------------------------------------


def scores(model, sequences: list[tuple]) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies (R,) of the tokens of all responses, one response after another.

    sequences: N pairs of prompt ids and response ids.
    """
    rows = [np.concatenate(sequence) for sequence in sequences]
    batch = TOKENIZER.pad({"input_ids": rows}, padding_side="right", return_tensors="pt")
    logits = model(**batch).logits[:, :-1].float()  # (N, L - 1, V)
    log_p = (logits / TEMPERATURE).log_softmax(-1)
    targets = batch["input_ids"][:, 1:]  # (N, L - 1)
    logprobs = log_p.gather(-1, targets[..., None])[..., 0]  # (N, L - 1)
    entropies = -(log_p.exp() * log_p).sum(-1)  # (N, L - 1)
    is_response = batch["attention_mask"][:, 1:].bool()
    for row, (prompt_ids, _) in zip(is_response, sequences):
        row[: len(prompt_ids) - 1] = False  # place i scores token i + 1
    return logprobs[is_response], entropies[is_response]


@torch.no_grad()
def split_scores(model, sequences: list[tuple]) -> list[tuple]:
    """The same without gradient, response by response: float32 (T,), (T,)."""
    lengths = [len(response_ids) for _, response_ids in sequences]
    logprobs, entropies = [of_all.split(lengths) for of_all in scores(model, sequences)]
    return [(a.numpy(), b.numpy()) for a, b in zip(logprobs, entropies)]


# ---- what stands between a trainer and the four files --------------------------------------------


def mean_entropies(model, sequences: list[tuple]) -> list[float]:
    """Lines 9-12: the mean entropy of each stored response under π_θ."""
    if not sequences:
        return []
    return [float(entropies.mean()) for _, entropies in split_scores(model, sequences)]


def roll_out(model, experience: Experience, plan: Plan) -> list[list[Trajectory]]:
    """Lines 21-24: K new responses to a question, or K - 1 beside an o*, and their rewards."""
    asked = [experience.questions[q] for q in plan.question_ids]
    counts = [len(seeds) for seeds in experience.seeds(plan)]  # K or K - 1
    prompts = []
    for question, count in zip(asked, counts):
        prompts += [question.prompt_ids] * count
    batch = TOKENIZER.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
    options = {"do_sample": True, "temperature": TEMPERATURE, "top_k": 0, "pad_token_id": EOS}
    ids = model.generate(**batch, **options, max_new_tokens=L_MAX)
    sequences = []
    for prompt_ids, tokens in zip(prompts, ids[:, batch["input_ids"].shape[1] :].numpy()):
        ends = np.flatnonzero(tokens == EOS)
        length = ends[0] + 1 if len(ends) else L_MAX
        sequences.append((prompt_ids, tokens[:length].astype(np.int32)))
    old_logprobs = [logprobs for logprobs, _ in split_scores(model, sequences)]  # later: π_past
    made = zip(sequences, old_logprobs)
    rollouts = []
    for question, count in zip(asked, counts):
        new = []
        for _ in range(count):
            (_, response_ids), logprobs = next(made)
            text = TOKENIZER.decode(response_ids, skip_special_tokens=True)
            reward = float(is_right(text, answer_of(question.text)))
            finished = bool(response_ids[-1] == EOS)
            new.append(Trajectory(response_ids, logprobs, plan.step, reward, finished))
        rollouts.append(new)
    return rollouts


def loss_of(model, groups: list[Group], clip_eps: float | None) -> Tensor:
    """Line 31: Eq. 4 over a mini-batch."""
    trajectories = [t for group in groups for t in group.trajectories]
    prompts = [group.question.prompt_ids for group in groups for _ in group.trajectories]
    replayed = np.concatenate([group.replayed for group in groups])
    advantages = np.concatenate([group.advantages for group in groups])
    lengths = [len(t.token_ids) for t in trajectories]
    logprobs, _ = scores(model, [(p, t.token_ids) for p, t in zip(prompts, trajectories)])
    loss, _, _ = policy_loss(
        logprobs,
        torch.tensor(np.concatenate([t.logprobs for t in trajectories])),
        torch.tensor(np.repeat(advantages, lengths)),
        torch.tensor(np.repeat(replayed, lengths)),
        max_length=L_MAX,
        num_responses=len(trajectories),
        clip_eps=clip_eps,
    )
    return loss


def main() -> None:
    """Algorithm 1, with replay from the second step on."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # more threads only slow down such a tiny model
    model = AutoModelForCausalLM.from_pretrained(BASE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4.5e-4, eps=1e-10)
    experience = Experience(Knobs(batch_size=16, start_threshold=-1), read_questions())
    for step in range(STEPS):  # line 2
        drawn = experience.draw(step)  # 4-8: which stored questions return
        entropies = mean_entropies(model, experience.candidates(drawn))  # 9-12: of possible o*
        plan = experience.plan(step, drawn, entropies)  # 13-18: each one's o*, and fresh ones
        groups = experience.form_groups(plan, roll_out(model, experience, plan))  # 21-24
        experience.store(plan, groups)  # 25-30, 32: the only line that changes the experience
        for mini_batch in experience.mini_batches(step, experience.with_advantages(groups)):
            loss_of(model, mini_batch, plan.clip_eps).backward()  # 31
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            optimizer.step()
            optimizer.zero_grad()
        right = sum(group.num_success for group in groups)
        buffer = experience.buffer
        print(
            f"step {step}: {right} of {16 * 8} right, {len(plan.stars)} questions replayed,"
            f" {len(buffer)} in E, {len(buffer.retired)} retired"
        )


if __name__ == "__main__":
    main()

"""ExGRPO in one file: a loop of your own around exgrpo.py, buffer.py, sampler.py and loss.py.

    python docs/your_loop.py       # trains the built-in model for twelve steps, in under a minute

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
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).parent.parent))

from buffer import Trajectory
from exgrpo import Experience, Group, Knobs
from loss import policy_loss
from worlds.arithmetic import answer_of, draw_training, is_right

BASE = Path(__file__).parent.parent / "worlds/base"
TOKENIZER = AutoTokenizer.from_pretrained(BASE)
EOS = TOKENIZER.eos_token_id
STEPS = 12
L_MAX = 72  # tokens of the longest response, by which the loss divides


def read_questions() -> list[SimpleNamespace]:
    """Those of the built-in world; the id and the prompt are what `Experience` asks for."""
    questions = []
    for id, text in enumerate(draw_training()):
        turns = [{"role": "user", "content": text}]
        ids = TOKENIZER.apply_chat_template(turns, add_generation_prompt=True)["input_ids"]
        prompt_ids = np.array(ids, np.int32)  # (P,)
        questions.append(SimpleNamespace(id=id, prompt_ids=prompt_ids, text=text))
    return questions


# ---- one padded forward pass, for everything -----------------------------------------------------


def scores(model, sequences: list[tuple]) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies (R,) of the tokens of all responses, one response after another.

    sequences: N pairs of prompt ids and response ids.
    """
    rows = [np.concatenate(sequence) for sequence in sequences]
    batch = TOKENIZER.pad({"input_ids": rows}, padding_side="right", return_tensors="pt")
    logits = model(**batch).logits[:, :-1].float()  # (N, L - 1, V)
    log_p = logits.log_softmax(-1)  # at the temperature of sampling, which is 1 here
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
    logprobs, entropies = scores(model, sequences)
    of_each = zip(logprobs.split(lengths), entropies.split(lengths))
    return [(p.numpy(), h.numpy()) for p, h in of_each]


# ---- what stands between a trainer and the four files --------------------------------------------


def mean_entropies(model, candidates: list[list[tuple]]) -> list[list[float]]:
    """Lines 9-12: of each drawn question, the mean entropy of its stored responses under π_θ."""
    means = []
    for sequences in candidates:
        scored = split_scores(model, sequences) if sequences else []
        means.append([float(entropies.mean()) for _, entropies in scored])
    return means


def generate(model, prompts: list[np.ndarray]) -> list[np.ndarray]:
    """A response to each prompt, as ids int32 (T,) that end with EOS or are L_MAX long."""
    batch = TOKENIZER.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
    ids = model.generate(**batch, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=L_MAX)
    start = batch["input_ids"].shape[1]
    responses = []
    for tokens in ids[:, start:].numpy():
        ends = np.flatnonzero(tokens == EOS)
        length = ends[0] + 1 if len(ends) else L_MAX
        responses.append(tokens[:length].astype(np.int32))
    return responses


def roll_out(model, step: int, plan: list[Group], experience: Experience) -> list[list[Trajectory]]:
    """Lines 21-24: K new responses to a question, or K - 1 beside an o*, and their rewards."""
    asked = []  # of each response the place in the plan
    for place, seeds in enumerate(experience.seeds(step, plan)):
        asked += [place] * len(seeds)
    prompts = [plan[place].question.prompt_ids for place in asked]
    responses = generate(model, prompts)
    scored = split_scores(model, [*zip(prompts, responses)])
    rollouts = [[] for _ in plan]
    for place, response_ids, (logprobs, _) in zip(asked, responses, scored):
        text = TOKENIZER.decode(response_ids, skip_special_tokens=True)
        reward = float(is_right(text, answer_of(plan[place].question.text)))
        finished = bool(response_ids[-1] == EOS)
        # The log-probs are π_old now, and π_past once the response is stored.
        new = Trajectory(response_ids, logprobs, step, reward, finished)
        rollouts[place].append(new)
    return rollouts


def loss_of(model, groups: list[Group], clip_eps: float | None) -> Tensor:
    """Line 31: Eq. 4 over a mini-batch."""
    sequences = []
    of_tokens = []  # of each response in (T,): π_old or π_past, the advantage, is it replayed
    for group in groups:
        for t, advantage, star in zip(group.trajectories, group.advantages, group.replayed):
            sequences.append((group.question.prompt_ids, t.token_ids))
            of_tokens.append(np.broadcast_arrays(t.logprobs, advantage, star))
    logprobs, _ = scores(model, sequences)
    old_logprobs, advantages, replayed = map(np.concatenate, zip(*of_tokens))  # (R,)
    loss, _, _ = policy_loss(
        logprobs,
        torch.tensor(old_logprobs),
        torch.tensor(advantages),
        torch.tensor(replayed),
        max_length=L_MAX,
        num_responses=len(sequences),
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
        rollouts = roll_out(model, step, plan, experience)  # 21-24
        groups = experience.form_groups(plan, rollouts)
        experience.store(groups)  # 25-30, 32
        experience.set_advantages(groups)
        for mini_batch in experience.mini_batches(step, groups):
            loss_of(model, mini_batch, experience.clip_eps).backward()  # 31
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            optimizer.step()
            optimizer.zero_grad()
        right = sum(group.num_success for group in groups)
        replayed = sum(group.star is not None for group in groups)
        print(
            f"step {step}: {right} of {16 * 8} right, {replayed} questions replayed,",
            f"{len(experience.buffer)} in E, {len(experience.buffer.retired)} retired",
        )


if __name__ == "__main__":
    main()

"""Record what the model computed in one replaying step, for docs/one_step.ipynb.

    python docs/one_step/record.py STEP

docs/your_loop.py trains the built-in base on batches of 32, and a response is paid where the last of
its digits is right. Before the update of batch STEP (they count from 0) three files are written:
buffer.safetensors is E, batch.safetensors has the new responses with log π_old and rewards, and log
π_θ of every token as the update finds it, step.json has the stream, the entropies of the stored
candidates, and the losses. The notebook works out the rest.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))

import your_loop as loop
from exgrpo import Experience, Knobs


def last_is_right(response: str, answer: str) -> bool:
    return "#" in response and response.rpartition("#")[2].strip()[-1:] == answer[-1]


def main(last: int) -> None:
    loop.is_right = last_is_right
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(loop.BASE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4.5e-4, eps=1e-10)
    experience = Experience(Knobs(batch_size=32, start_threshold=-1), loop.read_questions())
    for step in range(last + 1):
        experience.buffer.save(FOLDER / "buffer.safetensors")
        record = {"step": step, "state": experience.state_dict()}
        drawn = experience.draw(step)
        entropies = loop.mean_entropies(model, experience.candidates(drawn))
        plan = experience.plan(step, drawn, entropies)
        rollouts = loop.roll_out(model, experience, plan)
        groups = experience.form_groups(plan, rollouts)
        experience.store(groups)
        groups = experience.with_advantages(groups)
        found = {}
        losses = []
        for mini_batch in experience.mini_batches(step, groups):
            for g in mini_batch:
                sequences = [(g.question.prompt_ids, t.token_ids) for t in g.trajectories]
                found[g.question.id] = [p for p, _ in loop.split_scores(model, sequences)]
            loss = loop.loss_of(model, mini_batch, plan.clip_eps)
            losses.append(loss.item())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            optimizer.step()
            optimizer.zero_grad()
    new = [t for of_one in rollouts for t in of_one]
    now = [p for q in plan.question_ids for p in found[q]]
    batch = {
        "lengths": np.array([len(t.token_ids) for t in new], np.int32),
        "token_ids": np.concatenate([t.token_ids for t in new]),
        "logprobs": np.concatenate([t.logprobs for t in new]),
        "rewards": np.array([t.reward for t in new], np.float32),
        "finished": np.array([t.finished for t in new]),
        "now": np.concatenate(now),  # of the groups in the order of the plan, o* first
    }
    save_file(batch, FOLDER / "batch.safetensors")
    record |= {"drawn": drawn, "entropies": entropies, "losses": losses}
    (FOLDER / "step.json").write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))

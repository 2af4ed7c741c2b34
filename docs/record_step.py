r"""Record what the models computed in one replaying step of a run, for docs/one_step.ipynb.

    export OMP_NUM_THREADS=1
    WORLD=$(python -c "from worlds.base_model import World, build_world; \
        print(build_world('.cache', World(asked=(1,))))")
    python docs/record_step.py --config configs/arithmetic.yaml --model $WORLD/model \
        --train_files $WORLD/train.jsonl --val_files $WORLD/test.jsonl \
        --engine hf --start_threshold -1 --steps 3 --eval_every 0 --run_dir runs/one_step

The second command builds the built-in world with only the last result asked, in five to ten
minutes. There a lucky response is paid now and then, so a question can have several right responses
from which o* is chosen. Another processor builds another base, and more steps may be needed.

The step is the first one for which E holds at least ENOUGH questions to choose from.

The recorder runs train.py and leaves three files in docs/one_step/. buffer.safetensors is E before
the step. batch.safetensors has the new responses with the engine's log-probs and their rewards, and
the log-probs that each mini-batch finds. step.json has the entropies of the stored candidates, the
stream's position and the update's metrics. The notebook works out the rest.
"""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

sys.path.insert(0, str(Path(__file__).parent.parent))

import train
from config import parse_config
from exgrpo import Experience
from policy import Policy
from runtime import ranks

FOLDER = Path(__file__).parent / "one_step"
ENOUGH = 24
STEP = {}  # values of the step that replays
BATCH = {}  # and its arrays


class RecordedExperience(Experience):
    """An experience that keeps what is there before a step, until one has replayed."""

    def plan(self, step, drawn, scores):
        """Plan as ever, and keep the buffer, the stream and the entropies of the candidates."""
        if not STEP.get("replayed") and len(self.buffer) >= ENOUGH:
            self.buffer.save(FOLDER / "buffer.safetensors")
            STEP.update(step=step, state=self.state_dict(), entropies=scores, replayed=drawn)
        return super().plan(step, drawn, scores)

    def form_groups(self, plan, rollouts):
        """Form the groups as ever, and keep the new responses."""
        if plan.step == STEP.get("step"):
            new = [t for each in rollouts for t in each]
            BATCH.update(
                lengths=np.array([len(t.token_ids) for t in new], np.int32),
                token_ids=np.concatenate([t.token_ids for t in new]),
                logprobs=np.concatenate([t.logprobs for t in new]),
                rewards=np.array([t.reward for t in new], np.float32),
                finished=np.array([t.finished for t in new]),
            )
        return super().form_groups(plan, rollouts)


class RecordedPolicy(Policy):
    """A policy that keeps the log-probs which each mini-batch of the step finds.

    They are those under the weights with which the mini-batch begins.
    """

    def update(self, mini_batches, clip_eps):
        """Update as ever, and write all that was kept once a step has replayed."""
        self.found = []
        metrics = super().update(mini_batches, clip_eps)
        if STEP.get("replayed") and "metrics" not in STEP:
            STEP["metrics"] = metrics
            BATCH["found"] = np.concatenate(self.found)
            save_file(BATCH, FOLDER / "batch.safetensors")
            (FOLDER / "step.json").write_text(json.dumps(STEP) + "\n")
        return metrics

    def _accumulate(self, rows, clip_eps):
        scores = self.score([row.sequence for row in rows])
        self.found += [logprobs for logprobs, _ in scores]
        return super()._accumulate(rows, clip_eps)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    train.Experience = RecordedExperience
    train.Policy = RecordedPolicy
    ranks.run(lambda: train.train(parse_config()))

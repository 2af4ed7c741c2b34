"""ExGRPO in TRL: a GRPOTrainer around exgrpo.py, buffer.py, sampler.py and loss.py.

    pip install --no-deps trl==1.16.0 && pip install datasets==5.2.0 accelerate==1.15.0
    python docs/your_trl.py       # trains the built-in model for eight steps on a CPU

Copy this file with the four. `ExGRPOTrainer` takes what GRPOTrainer takes, LoRA included, and
`knobs`: those of `exgrpo.Knobs`, but for seed, clip_eps (epsilon), num_rollouts (num_generations),
batch_size and num_mini_batches, which GRPOConfig sets. A generation batch is a step of Algorithm 1,
its optimiser steps are the mini-batches. A response is a success if its rewards, weighted and
summed as in TRL, exceed 0.5. Let save_steps be a multiple of a generation batch's optimiser steps,
and the model be without dropout in its attention.

TRL's `_generate_and_score_completions` is not called in training, because it wants K new responses
to every question; its two halves, `_generate` and `_calculate_rewards`, are. All processes make the
same plan; each generates and scores its share, and the results are gathered. vLLM, FSDP and
DeepSpeed are untried. Other internals of TRL 1.16 in use: what is overridden here, and
`_get_per_token_logps_and_entropies`.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import trl
from accelerate.utils import gather_object
from torch.nn.utils.rnn import pad_sequence

sys.path.insert(0, str(Path(__file__).parent.parent))

from buffer import Trajectory
from exgrpo import Experience, Group, Knobs
from loss import policy_loss

if not trl.__version__.startswith("1.16."):
    raise ImportError(f"your_trl.py overrides internals of TRL 1.16; this is {trl.__version__}")

# With dropout π_old and the update would use different masks.
NEEDED = {"loss_type": "dr_grpo", "scale_rewards": "none", "disable_dropout": True}
# What would be ignored, and must keep TRL's own value.
DEFAULTS = """beta delta entropy_coef epsilon_high generation_kwargs importance_sampling_level
    log_completions mask_truncated_completions multi_objective_aggregation num_iterations vllm_mode
    off_policy_mask_threshold shuffle_dataset top_entropy_quantile use_adaptive_entropy""".split()


class ExGRPOTrainer(trl.GRPOTrainer):
    """TRL's trainer on the batches and the loss of ExGRPO; ValueError for what it would ignore."""

    def __init__(self, *args, knobs: dict | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        args = self.args
        updates = max(args.steps_per_generation // args.gradient_accumulation_steps, 1)
        questions_of_a_batch = args.generation_batch_size // args.num_generations
        problems = [*self.problems(updates, questions_of_a_batch)]
        if problems:
            raise ValueError("ExGRPOTrainer: " + "; ".join(problems))
        prompts, *_ = self._tokenize_prompts([*self.train_dataset["prompt"]])
        all_knobs = Knobs(
            seed=args.seed,
            batch_size=questions_of_a_batch,
            num_rollouts=args.num_generations,
            num_mini_batches=updates,
            clip_eps=args.epsilon,
            **(knobs or {}),
        )
        questions = [SimpleNamespace(id=i, prompt_ids=ids) for i, ids in enumerate(prompts)]
        self.experience = Experience(all_knobs, questions)

    def problems(self, updates: int, questions_of_a_batch: int) -> Iterator[str]:
        """What would be ignored, or would split a batch, and what to do about it."""
        args = self.args
        defaults = {name: getattr(trl.GRPOConfig, name) for name in DEFAULTS}
        for name, value in (defaults | NEEDED).items():
            if getattr(args, name) != value:
                yield f"set {name}={value!r}"
        if self.tools or self.rollout_func or self._is_vlm or self.aux_loss_enabled:
            yield "leave out tools, rollout functions, images and router_aux_loss_coef"
        if args.steps_per_generation % args.gradient_accumulation_steps:
            yield "let gradient_accumulation_steps divide steps_per_generation"
        if questions_of_a_batch % updates:
            yield f"let {updates} optimiser steps share {questions_of_a_batch} questions evenly"

    # ---- a batch ---------------------------------------------------------------------------------

    def _prepare_inputs(self, generation_batch):
        """The next micro-batch. TRL's own batch is ignored."""
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        place = self._step % self.args.steps_per_generation
        if place == 0:
            self._buffered_inputs = self._make_batch()
        return self._buffered_inputs[place]

    def _make_batch(self) -> list[tuple]:
        """Algorithm 1 but for the update: this process's micro-batches, each with its clip_eps."""
        experience = self.experience
        step = self.state.global_step // experience.knobs.num_mini_batches
        drawn = experience.draw(step)  # 4-8: which stored questions return
        by_nll = experience.knobs.trajectory_selection == "nll"
        means = []  # 9-12: of what could be o*
        for sequences in experience.candidates(drawn):
            values = [-p if by_nll else h for p, h in self._scores(sequences)]
            means.append([float(of_one.mean()) for of_one in values])
        plan = experience.plan(step, drawn, means)  # 13-18: each one's o*, and fresh ones
        groups = experience.form_groups(plan, self._roll_out(step, plan))  # 21-24
        experience.store(groups)  # 25-30, 32
        if experience.is_exhausted:
            self.accelerator.print("Too few questions are left: this batch is the last one.")
            self.state.max_steps = self.state.global_step + experience.knobs.num_mini_batches
        metrics = self._metrics["train"]  # TRL logs the mean of what came since the last log
        metrics["replay/questions"].append(sum(group.star is not None for group in groups))
        metrics["buckets/retired"].append(len(experience.buffer.retired))
        # (sequence, and of each of its tokens the old log-prob, the advantage, is it replayed)
        rows = []
        experience.set_advantages(groups)
        for mini_batch in experience.mini_batches(step, groups):
            for group in mini_batch:
                for t, advantage, star in zip(group.trajectories, group.advantages, group.replayed):
                    sequence = group.question.prompt_ids, t.token_ids
                    rows.append((sequence, *np.broadcast_arrays(t.logprobs, advantage, star)))
        size = self.args.per_device_train_batch_size
        parts = [(rows[i : i + size], experience.clip_eps) for i in range(0, len(rows), size)]
        # TRL's order: micro-batch j of process p is part j*n + p.
        return parts[self.accelerator.process_index :: self.accelerator.num_processes]

    def _roll_out(self, step: int, plan: list[Group]) -> list[list[Trajectory]]:
        """K new responses to a question, K - 1 beside an o* (none is wasted): rewards, π_old."""
        asked = []  # of each response the place in the plan
        for place, seeds in enumerate(self.experience.seeds(step, plan)):
            asked += [place] * len(seeds)
        prompt_ids = [plan[place].question.prompt_ids for place in asked]
        rows = [self.train_dataset[plan[place].question.id] for place in self._share(asked)]
        prompts = [row["prompt"] for row in rows]
        rendered, share, _, completions, *_ = self._generate(prompts)
        if rendered != self._share(prompt_ids):
            raise ValueError("the chat template wrote a prompt in another way: fix its date")
        by_function = self._calculate_rewards(rows, prompts, completions, share)  # (all, functions)
        weighed = by_function * self.reward_weights.to(by_function.device)
        rewards = weighed.nansum(dim=1).tolist()
        self._metrics["train"]["reward"].append(np.mean(rewards))
        sequences = [*zip(prompt_ids, gather_object(share))]
        rollouts = [[] for _ in plan]
        # zip drops the rewards of the repeats that filled up the last shares.
        scored = zip(asked, sequences, self._scores(sequences), rewards)
        for place, (_, ids), (logprobs, _), reward in scored:
            finished = ids[-1] in self.eos_token_ids
            new = Trajectory(np.array(ids, np.int32), logprobs, step, reward, finished)
            rollouts[place].append(new)
        return rollouts

    # ---- the loss --------------------------------------------------------------------------------

    def _compute_loss(self, model, inputs) -> torch.Tensor:
        """Line 31: a micro-batch's share of Eq. 4."""
        if not self.model.training:
            return super()._compute_loss(model, inputs)
        rows, clip_eps = inputs
        sequences, *of_tokens = zip(*rows)
        logprobs = torch.cat([p for p, _ in self._forward(model, sequences)])
        device = logprobs.device
        loss, _, _ = policy_loss(
            logprobs,
            *[torch.tensor(np.concatenate(values), device=device) for values in of_tokens],
            max_length=self.max_completion_length,
            # Of this process, over all its accumulated micro-batches.
            num_responses=len(rows) * self.args.gradient_accumulation_steps,
            clip_eps=clip_eps,
        )
        return loss  # Trainer averages the gradient over processes

    def _forward(self, model, sequences: list[tuple]) -> list[tuple]:
        """Log-probs and entropies (T,) of each response; sequences: (prompt ids, response ids)."""
        rows = [torch.tensor(np.concatenate(sequence)) for sequence in sequences]
        ids = pad_sequence(rows, True, -1).to(self.accelerator.device)  # -1 marks padding
        logprobs, entropies, _ = self._get_per_token_logps_and_entropies(
            model,
            ids.clamp(0),
            (ids >= 0).long(),
            ids.shape[1] - 1,
            self.args.per_device_train_batch_size,
            compute_entropy=True,
        )
        result = []
        for p, h, (prompt_ids, response_ids) in zip(logprobs, entropies, sequences):
            start = len(prompt_ids) - 1  # place i scores token i + 1
            part = slice(start, start + len(response_ids))
            result.append((p[part], h[part]))
        return result

    @torch.no_grad()
    def _scores(self, sequences: list[tuple]) -> list[tuple]:
        """`_forward` without gradient, over all processes, as float32 arrays."""
        if not sequences:
            return []
        scores = []
        for p, h in self._forward(self.model, self._share(sequences)):
            scores.append((p.float().cpu().numpy(), h.float().cpu().numpy()))
        return gather_object(scores)[: len(sequences)]

    def _share(self, items: list) -> list:
        """This process's part, equal for all; the last parts are filled up from the beginning."""
        size = -(-len(items) // self.accelerator.num_processes)
        start = size * self.accelerator.process_index
        return [items[i % len(items)] for i in range(start, start + size)]

    # ---- checkpoints -----------------------------------------------------------------------------

    def _save_checkpoint(self, model, trial):
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            directory = Path(self._get_output_dir(trial), f"checkpoint-{self.state.global_step}")
            # Not named .safetensors, or vLLM would load it as weights.
            self.experience.buffer.save(directory / "experience.buffer")
            (directory / "experience.json").write_text(json.dumps(self.experience.state_dict()))

    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        state = json.loads(Path(checkpoint, "experience.json").read_text())
        self.experience.load_state_dict(state, Path(checkpoint, "experience.buffer"))


if __name__ == "__main__":
    from datasets import Dataset

    from worlds.arithmetic import answer_of, draw_training, is_right

    def reward(completions: list, answer: list, **_) -> list[float]:
        texts = [completion[0]["content"] for completion in completions]
        return [float(is_right(text, gold)) for text, gold in zip(texts, answer)]

    rows = []
    for text in draw_training():
        prompt = [{"role": "user", "content": text}]
        rows.append({"prompt": prompt, "answer": answer_of(text)})
    args = trl.GRPOConfig(
        "runs/trl",
        max_completion_length=72,
        per_device_train_batch_size=64,
        steps_per_generation=2,  # so B = 16, with K = 8
        max_steps=16,
        logging_steps=2,
        learning_rate=4.5e-4,
        bf16=False,
        **NEEDED,
    )
    data = Dataset.from_list(rows)
    ExGRPOTrainer("worlds/base", reward, args, data, knobs={"start_threshold": -1}).train()

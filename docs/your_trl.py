"""ExGRPO in TRL: a GRPOTrainer around exgrpo.py, buffer.py, sampler.py and loss.py.

    pip install --no-deps trl==1.16.0 && pip install datasets==5.2.0 accelerate==1.15.0
    python docs/your_trl.py       # trains the built-in model for eight steps on a CPU

Copy this file with the four. `ExGRPOTrainer` takes what GRPOTrainer takes, LoRA included, and
`knobs`: those of `exgrpo.Knobs`, but for seed, clip_eps (epsilon), num_rollouts (num_generations),
batch_size and num_mini_batches, which GRPOConfig sets. A generation batch is a step of Algorithm 1,
its optimiser steps are the mini-batches. A response is a success if its rewards, weighted and
summed as in TRL, exceed 0.5. If all reward functions return None, the run ends, unlike in TRL.

TRL's `_generate_and_score_completions` is not called in training, because it wants K new responses
to every question; its two halves, `_generate` and `_calculate_rewards`, are. All processes make the
same plan; each generates and scores its share, and the results are gathered. vLLM, FSDP and
DeepSpeed are untried. Other internals of TRL 1.16 in use: what is overridden here, and
`_get_per_token_logps_and_entropies`.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import trl
from accelerate.utils import gather_object
from torch.nn.utils.rnn import pad_sequence

sys.path.insert(0, str(Path(__file__).parent.parent))

from buffer import Trajectory
from exgrpo import Experience, Knobs, Plan
from loss import policy_loss

if not trl.__version__.startswith("1.16."):
    raise ImportError(f"your_trl.py overrides internals of TRL 1.16; this is {trl.__version__}")

# With dropout π_old and the update would use different masks. DEFAULTS must keep TRL's own values.
NEEDED = {"loss_type": "dr_grpo", "scale_rewards": "none", "disable_dropout": True}
DEFAULTS = """beta delta entropy_coef epsilon_high generation_kwargs importance_sampling_level
    log_completions mask_truncated_completions multi_objective_aggregation num_iterations vllm_mode
    off_policy_mask_threshold shuffle_dataset top_entropy_quantile use_adaptive_entropy""".split()


class ExGRPOTrainer(trl.GRPOTrainer):
    """TRL's trainer on the batches and the loss of ExGRPO; ValueError for what it would ignore."""

    def __init__(self, *args, knobs: dict | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        args = self.args
        parts = args.gradient_accumulation_steps
        updates = max(args.steps_per_generation // parts, 1)
        K = args.num_generations
        B = args.generation_batch_size // K
        corrects = args.use_vllm and args.vllm_importance_sampling_correction
        splits = args.save_strategy == "steps" and args.save_steps % updates >= 1
        needed = {name: getattr(trl.GRPOConfig, name) for name in DEFAULTS} | NEEDED
        problems = [(getattr(args, k) != v, f"set {k}={v!r}") for k, v in needed.items()] + [
            (self.tools or self.rollout_func, "leave out tools, rollout functions, environments"),
            (getattr(self.model.config, "attention_dropout", 0), "set config.attention_dropout=0"),
            (self._is_vlm, "take a model of text only"),
            (self.aux_loss_enabled, "set router_aux_loss_coef=0.0"),
            (corrects, "set vllm_importance_sampling_correction=False"),
            (args.steps_per_generation % parts, f"set steps_per_generation to n * {parts}"),
            (B % updates, f"let {updates} optimiser steps share {B} questions evenly"),
            (splits, f"set save_steps to n * {updates}, or a share of the run below 1"),
        ]
        if sentences := [sentence for is_problem, sentence in problems if is_problem]:
            raise ValueError("ExGRPOTrainer: " + "; ".join(sentences))
        prompts, *_ = self._tokenize_prompts([*self.train_dataset["prompt"]])
        questions = [SimpleNamespace(id=i, prompt_ids=ids) for i, ids in enumerate(prompts)]
        all_knobs = Knobs(args.seed, B, K, updates, clip_eps=args.epsilon, **(knobs or {}))
        self.experience = Experience(all_knobs, questions)

    def _run_epoch(self, **kwargs):
        if not self.experience.is_exhausted:  # it is if a run that ended so is resumed
            super()._run_epoch(**kwargs)

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
        by_nll = experience.knobs.trajectory_selection == "nll"
        drawn = experience.draw(step)  # 4-8: which stored questions return
        scored = self._scores(experience.candidates(drawn))  # 9-12: of what could be o*
        means = [float((-logprobs if by_nll else h).mean()) for logprobs, h in scored]
        plan = experience.plan(step, drawn, means)  # 13-18: each one's o*, and fresh ones
        groups = experience.form_groups(plan, self._roll_out(plan))  # 21-24
        experience.store(plan, groups)  # 25-30, 32: up to here nothing has changed
        if experience.is_exhausted:
            self.accelerator.print("Too few questions are left: this batch is the last one.")
            self.state.max_steps = self.state.global_step + experience.knobs.num_mini_batches
        metrics = self._metrics["train"]  # TRL logs the mean of what came since the last log
        metrics["replay/questions"].append(len(plan.stars))
        metrics["buckets/questions"].append(len(experience.buffer))
        metrics["buckets/retired"].append(len(experience.buffer.retired))
        for group in groups:
            name = "replay/silent" if group.star else "fresh/silent"
            metrics[name].append(float(np.ptp(group.rewards) == 0))
        rows = []
        for mini_batch in experience.mini_batches(step, experience.with_advantages(groups)):
            for group in mini_batch:
                for t, advantage, star in zip(group.trajectories, group.advantages, group.replayed):
                    of_tokens = np.broadcast_arrays(t.logprobs, advantage, star)
                    rows.append(((group.question.prompt_ids, t.token_ids), *of_tokens))
        size = self.args.per_device_train_batch_size
        parts = [(rows[i : i + size], plan.clip_eps) for i in range(0, len(rows), size)]
        # TRL's order: micro-batch j of process p is part j*n + p.
        return parts[self.accelerator.process_index :: self.accelerator.num_processes]

    def _roll_out(self, plan: Plan) -> list[list[Trajectory]]:
        """K new responses to a question, K - 1 beside an o* (none is wasted): rewards, π_old."""
        counts = [self.num_generations - (q in plan.stars) for q in plan.question_ids]
        asked = np.repeat(plan.question_ids, counts).tolist()
        prompt_ids = [self.experience.questions[q].prompt_ids for q in asked]
        rows = [self.train_dataset[q] for q in self._share(asked)]
        prompts = [row["prompt"] for row in rows]
        rendered, share, _, completions, *_ = self._generate(prompts)
        if rendered != self._share(prompt_ids):
            raise ValueError("the chat template wrote a prompt in another way: fix its date")
        rewards = self._calculate_rewards(rows, prompts, completions, share)  # (all, functions)
        weighed = rewards * self.reward_weights.to(rewards.device)
        rewards = weighed.nansum(dim=1).where(weighed.isfinite().any(dim=1), torch.nan).tolist()
        self._log_metric("reward", np.mean(rewards))
        for name, values in self._pending_metrics.items():  # the reward functions' as well
            self._metrics["train"][name] += values
        self._pending_metrics.clear()
        sequences = [*zip(prompt_ids, gather_object(share))]
        new = []  # zip drops the rewards of the repeats that filled up the last shares
        for (_, ids), (logprobs, _), reward in zip(sequences, self._scores(sequences), rewards):
            finished = ids[-1] in self.eos_token_ids
            new.append(Trajectory(np.array(ids, np.int32), logprobs, plan.step, reward, finished))
        return [new[end - count : end] for end, count in zip(np.cumsum(counts), counts)]

    def _compute_loss(self, model, inputs) -> torch.Tensor:
        """Line 31: a micro-batch's share of Eq. 4."""
        if not self.model.training:
            return super()._compute_loss(model, inputs)
        rows, clip_eps = inputs
        sequences, *of_tokens = zip(*rows)
        logprobs, entropies = map(torch.cat, zip(*self._forward(model, sequences)))
        of_tokens = [torch.tensor(np.concatenate(values)) for values in of_tokens]
        old_logprobs, advantages, is_replayed = [values.to(logprobs.device) for values in of_tokens]
        # Of this process, over all its accumulated micro-batches.
        num_responses = len(rows) * self.args.gradient_accumulation_steps
        sizes = {"max_length": self.max_completion_length, "num_responses": num_responses}
        loss, ratio, _ = policy_loss(
            logprobs, old_logprobs, advantages, is_replayed, clip_eps=clip_eps, **sizes
        )
        self._metrics["train"]["entropy"].append(entropies.mean().item())
        if is_replayed.any():  # w*
            self._metrics["train"]["replay/ratio"].append(ratio[is_replayed].mean().item())
        return loss  # Trainer averages the gradient over processes

    def _forward(self, model, sequences: list[tuple]) -> list[tuple]:
        """Log-probs and entropies (T,) of each response; sequences: (prompt ids, response ids)."""
        rows = [torch.tensor(np.concatenate(sequence)) for sequence in sequences]
        ids = pad_sequence(rows, True, -1).to(self.accelerator.device)  # -1 marks padding
        size = self.args.per_device_train_batch_size
        logprobs, entropies, _ = self._get_per_token_logps_and_entropies(
            model, ids.clamp(0), (ids >= 0).long(), ids.shape[1] - 1, size, compute_entropy=True
        )
        parts = [slice(len(p) - 1, len(p) - 1 + len(response)) for p, response in sequences]
        return [(a[part], b[part]) for a, b, part in zip(logprobs, entropies, parts)]

    @torch.no_grad()
    def _scores(self, sequences: list[tuple]) -> list[tuple]:
        """`_forward` without gradient, over all processes, as float32 arrays."""
        if not sequences:
            return []
        scores = self._forward(self.model, self._share(sequences))
        scores = [[values.float().cpu().numpy() for values in of_one] for of_one in scores]
        return gather_object(scores)[: len(sequences)]

    def _share(self, items: list) -> list:
        """This process's part, equal for all; the last parts are filled up from the beginning."""
        size = -(-len(items) // self.accelerator.num_processes)
        start = size * self.accelerator.process_index
        return [items[i % len(items)] for i in range(start, start + size)]

    def _save_checkpoint(self, model, trial):
        if self.args.should_save:
            directory = Path(self._get_output_dir(trial), f"checkpoint-{self.state.global_step}")
            directory.mkdir(parents=True, exist_ok=True)
            # Not named .safetensors, or vLLM would load it as weights.
            self.experience.buffer.save(directory / "experience.buffer")
            (directory / "experience.json").write_text(json.dumps(self.experience.state_dict()))
        super()._save_checkpoint(model, trial)  # which may push the directory

    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        if self.state.global_step % self.experience.knobs.num_mini_batches:
            raise ValueError(f"{checkpoint} is inside a generation batch: resume from another one")
        state = json.loads(Path(checkpoint, "experience.json").read_text())
        self.experience.load_state_dict(state, Path(checkpoint, "experience.buffer"))


if __name__ == "__main__":
    from datasets import Dataset

    from worlds.arithmetic import World, answer_of, draw_training, is_right

    def reward(completions: list, answer: list, **_) -> list[float]:
        return [float(is_right(c[0]["content"], a)) for c, a in zip(completions, answer)]

    texts = draw_training(World())
    rows = [{"prompt": [{"role": "user", "content": q}], "answer": answer_of(q)} for q in texts]
    data = Dataset.from_list(rows)
    sizes = {"per_device_train_batch_size": 64, "steps_per_generation": 2}  # B = 16, K = 8
    steps = {"max_steps": 16, "logging_steps": 2, "learning_rate": 4.5e-4, "bf16": False}
    args = trl.GRPOConfig("runs/trl", max_completion_length=72, **NEEDED, **sizes, **steps)
    ExGRPOTrainer("worlds/base", reward, args, data, knobs={"start_threshold": -1}).train()

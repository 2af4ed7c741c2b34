"""ExGRPO in TRL: a GRPOTrainer around exgrpo.py, buffer.py, sampler.py and loss.py.

    pip install --no-deps trl==1.16.0 && pip install datasets==5.2.0 accelerate==1.15.0
    python docs/your_trl.py       # trains the built-in model for eight steps on a CPU

Copy this file with the four. `ExGRPOTrainer` takes what GRPOTrainer takes, LoRA included, and
`knobs`: those of `exgrpo.Knobs` that TRL has no name for. A generation batch is a step of Algorithm
1; its optimiser steps are the mini-batches. It relies on internals of TRL 1.16: the methods that it
overrides, and `_generate`, `_calculate_rewards`, `_get_per_token_logps_and_entropies`. The first
two are the halves of `_generate_and_score_completions`, which wants K new responses to every
question. Here an o* has K - 1 beside it, and no token is wasted.

Several processes plan alike; each answers and scores its share, and gathers the others'. A share
may repeat a question to be as large as the others. vLLM, FSDP and DeepSpeed are untried.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import trl
from accelerate.utils import gather_object
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import pad

sys.path.insert(0, str(Path(__file__).parent.parent))

from buffer import Trajectory
from exgrpo import Experience, Knobs, Plan
from loss import policy_loss

if not trl.__version__.startswith("1.16."):
    raise ImportError(f"your_trl.py overrides internals of TRL 1.16; this is {trl.__version__}")

# Arguments that must have TRL's default, as they would be ignored.
DEFAULTS = """beta delta entropy_coef epsilon_high importance_sampling_level log_completions
    mask_truncated_completions multi_objective_aggregation num_iterations off_policy_mask_threshold
    shuffle_dataset top_entropy_quantile use_adaptive_entropy vllm_mode""".split()


class ExGRPOTrainer(GRPOTrainer):
    """TRL's trainer on the batches and the loss of ExGRPO; ValueError for what it would ignore."""

    def __init__(self, *args, knobs: dict, **kwargs):
        super().__init__(*args, **kwargs)
        args = self.args
        K = args.num_generations
        per_step = args.gradient_accumulation_steps
        num_mini_batches = args.steps_per_generation // per_step
        responses = args.per_device_train_batch_size * per_step * args.world_size
        fields = GRPOConfig.__dataclass_fields__
        refused = {name: getattr(args, name) != fields[name].default for name in DEFAULTS} | {
            "any loss_type but dr_grpo": args.loss_type != "dr_grpo",
            "any scale_rewards but none": args.scale_rewards != "none",
            "tools": self.tools or self.rollout_func or self.environment_factories,
            "images, or router_aux_loss_coef": self._is_vlm or self.aux_loss_enabled,
            "vLLM's correction": args.use_vllm and args.vllm_importance_sampling_correction,
            "an iterable data set": not hasattr(self.train_dataset, "__len__"),
            "steps_per_generation": args.steps_per_generation % per_step,
            "optimiser steps that split a group": responses % K,
            "save_steps inside a generation batch": args.save_steps % num_mini_batches,
            "max_steps inside one": args.max_steps > 0 and args.max_steps % num_mini_batches,
        }
        if any(refused.values()):
            names = ", ".join(name for name in refused if refused[name])
            raise ValueError(f"ExGRPOTrainer does not work with {names}")
        prompts, *_ = self._tokenize_prompts([*self.train_dataset["prompt"]])
        questions = [SimpleNamespace(id=i, prompt_ids=ids) for i, ids in enumerate(prompts)]
        batch_size = args.generation_batch_size // K
        sizes = {"batch_size": batch_size, "num_rollouts": K, "num_mini_batches": num_mini_batches}
        all_knobs = Knobs(seed=args.seed, clip_eps=args.epsilon, **sizes, **knobs)
        self.experience = Experience(all_knobs, questions)

    def _prepare_inputs(self, generation_batch):
        """The next micro-batch. What TRL's sampler offers is not looked at."""
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        place = self._step % self.args.steps_per_generation
        if place == 0:
            self._buffered_inputs = self._make_batch()
        if place == self.args.steps_per_generation - 1 and self.experience.is_exhausted:
            self.control.should_training_stop = True
        return self._buffered_inputs[place]

    def _make_batch(self) -> list[tuple]:
        """Algorithm 1 but for the update: this process's micro-batches, each with its clip_eps."""
        experience = self.experience
        step = self.state.global_step // experience.knobs.num_mini_batches
        by_nll = experience.knobs.trajectory_selection == "nll"
        drawn = experience.draw(step)  # 4-8: which stored questions return
        scores = self._scores(experience.candidates(drawn))  # 9-12: of what could be o*
        entropies = [float((-logp if by_nll else h).mean()) for logp, h in scores]
        plan = experience.plan(step, drawn, entropies)  # 13-18: each one's o*, and fresh ones
        groups = experience.form_groups(plan, self._roll_out(plan))  # 21-24
        experience.store(plan, groups)  # 25-30, 32: the only line that changes the experience
        metrics = self._metrics["train"]  # TRL logs the mean of what came since the last log
        metrics["replay/questions"].append(len(plan.stars))
        metrics["buckets/questions"].append(len(experience.buffer))
        metrics["buckets/retired"].append(len(experience.buffer.retired))
        for group in groups:
            name = "replay/silent" if group.star else "fresh/silent"
            metrics[name].append(float(np.ptp(group.rewards) == 0))
        rows = []
        for group in sum(experience.mini_batches(step, experience.with_advantages(groups)), []):
            of_group = zip(group.trajectories, group.advantages, group.replayed)
            rows += [(group.question.prompt_ids, *one) for one in of_group]
        size = self.args.per_device_train_batch_size
        parts = [(rows[i : i + size], plan.clip_eps) for i in range(0, len(rows), size)]
        return parts[self.accelerator.process_index :: self.accelerator.num_processes]

    def _roll_out(self, plan: Plan) -> list[list[Trajectory]]:
        """K new responses to a question, or K - 1 beside an o*, with rewards and π_old."""
        counts = [len(seeds) for seeds in self.experience.seeds(plan)]
        asked = np.repeat(plan.question_ids, counts).tolist()
        rows = [self.train_dataset[q] for q in self._share(asked)]
        prompts = [row["prompt"] for row in rows]
        _, ids, _, completions, *_ = self._generate(prompts)
        rewards = self._calculate_rewards(rows, prompts, completions, ids)  # (all, functions)
        rewards = (rewards * self.reward_weights.to(rewards.device)).nansum(dim=1)  # None is 0
        self._metrics["train"]["reward"].append(rewards.mean().item())
        prompt_ids = [self.experience.questions[q].prompt_ids for q in asked]
        sequences = [*zip(prompt_ids, gather_object(ids))]
        new = []
        for (_, ids), (logp, _), reward in zip(sequences, self._scores(sequences), rewards):
            finished = ids[-1] in self.eos_token_ids
            ids = np.array(ids, np.int32)
            new.append(Trajectory(ids, logp, plan.step, reward.item(), finished))
        ends = np.cumsum(counts)
        return [new[end - count : end] for end, count in zip(ends, counts)]

    def _compute_loss(self, model, inputs) -> torch.Tensor:
        """Line 31: a micro-batch's share of Eq. 4."""
        if not self.model.training:
            return super()._compute_loss(model, inputs)
        rows, clip_eps = inputs
        prompts, trajectories, advantages, replayed = zip(*rows)
        sequences = [(prompt_ids, t.token_ids) for prompt_ids, t in zip(prompts, trajectories)]
        logprobs, entropies = self._forward(model, sequences)
        lengths = [len(t.token_ids) for t in trajectories]
        old_logprobs = np.concatenate([t.logprobs for t in trajectories])  # π_old or π_past
        of_tokens = [old_logprobs, np.repeat(advantages, lengths), np.repeat(replayed, lengths)]
        of_tokens = [torch.tensor(values, device=logprobs.device) for values in of_tokens]
        loss, ratio, _ = policy_loss(
            logprobs,
            *of_tokens,
            max_length=self.max_completion_length,
            num_responses=len(rows) * self.args.gradient_accumulation_steps,  # of this process
            clip_eps=clip_eps,
        )
        self._metrics["train"]["entropy"].append(entropies.mean().item())
        if any(replayed):  # w*
            self._metrics["train"]["replay/ratio"].append(ratio[of_tokens[2]].mean().item())
        return loss  # Trainer averages the gradient over processes

    def _forward(self, model, sequences: list[tuple], batch_size: int | None = None):
        """Log-probs and entropies (R,) of all responses; sequences: (prompt ids, response ids)."""
        padded = []
        for side, rows in zip(("left", "right"), zip(*sequences)):
            padded.append(pad([torch.tensor(row) for row in rows], -1, side))
        ids = torch.cat(padded, dim=1).to(self.accelerator.device, torch.long)
        mask = ids >= 0
        logprobs, entropies, _ = self._get_per_token_logps_and_entropies(
            model, ids * mask, mask.long(), padded[1].shape[1], batch_size, compute_entropy=True
        )
        mask = mask[:, padded[0].shape[1] :]
        return logprobs[mask], entropies[mask]

    @torch.no_grad()
    def _scores(self, sequences: list[tuple]) -> list[tuple]:
        """The same without gradient, response by response: float32 (T,), (T,)."""
        if not sequences:
            return []
        share = self._share(sequences)
        lengths = [len(ids) for _, ids in share]
        flat = self._forward(self.model, share, self.args.per_device_train_batch_size)
        logprobs, entropies = [values.float().cpu().split(lengths) for values in flat]
        results = [(a.numpy(), b.numpy()) for a, b in zip(logprobs, entropies)]
        return gather_object(results)[: len(sequences)]

    def _share(self, items: list) -> list:
        """This process's part, equal for all; the last parts are filled up from the beginning."""
        size = -(-len(items) // self.accelerator.num_processes)
        start = size * self.accelerator.process_index
        return [items[i % len(items)] for i in range(start, start + size)]

    def _save_checkpoint(self, model, trial):
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            directory = Path(self._get_output_dir(trial), f"checkpoint-{self.state.global_step}")
            self.experience.buffer.save(directory / "experience.buffer")  # vLLM loads *.safetensors
            (directory / "experience.json").write_text(json.dumps(self.experience.state_dict()))

    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        state = json.loads(Path(checkpoint, "experience.json").read_text())
        self.experience.load_state_dict(state, Path(checkpoint, "experience.buffer"))


if __name__ == "__main__":
    from datasets import Dataset

    from worlds.arithmetic import World, answer_of, draw_training, is_right

    rows = []
    for text in draw_training(World()):
        rows.append({"prompt": [{"role": "user", "content": text}], "answer": answer_of(text)})

    def reward(completions: list, answer: list, **_) -> list[float]:
        return [float(is_right(c[0]["content"], a)) for c, a in zip(completions, answer)]

    sizes = {"per_device_train_batch_size": 64, "steps_per_generation": 2}  # B = 16, K = 8
    loss = {"loss_type": "dr_grpo", "scale_rewards": "none", "max_completion_length": 72}
    steps = {"max_steps": 16, "logging_steps": 2, "learning_rate": 4.5e-4}
    config = GRPOConfig("runs/trl", bf16=False, **sizes, **loss, **steps)
    base = str(Path(__file__).parent.parent / "worlds/base")
    knobs = {"rho": 0.5, "start_threshold": -1}
    ExGRPOTrainer(base, reward, config, Dataset.from_list(rows), knobs=knobs).train()

"""ExGRPO training: Algorithm 1, phase by phase.

    torchrun --nproc_per_node=2 train.py                      # the built-in run
    torchrun --nproc_per_node=8 train.py --config configs/qwen2.5-math-7b.yaml --rho 0.25
    torchrun --nproc_per_node=8 train.py --config configs/qwen2.5-math-7b.yaml --rho 0.25 --resume

Every rank runs this script on the same plan; see runtime/ranks.py for what is split.
"""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from config import Config, parse_config
from data import Question, Request, load_questions, load_tokenizer
from eval import validate
from exgrpo import Experience, Group, Plan
from grading import Grader, drop_unreadable, rollout
from policy import Policy
from reward import Verifier
from rollout import make_engine
from runtime import ranks
from runtime.checkpoint import Checkpoints
from runtime.tracking import Timer, Tracker, describe_model


def train(config: Config) -> dict[str, float]:
    """Run Algorithm 1 and return the final validation scores."""
    device = ranks.setup(config.hang_timeout)
    config = with_built_in_world(config)
    tokenizer = load_tokenizer(config, config.model)
    timer = Timer()
    with (Tracker(config.run_dir, config.steps, config.tracker, dataclasses.asdict(config)) as tracker,
          Verifier(config.verify_workers, config.verify_timeout, config.reward) as verifier):
        grader = Grader(config, tokenizer, verifier)
        questions, tests = read_data(config, tokenizer, verifier, tracker)
        checkpoints = Checkpoints(config, questions, tracker)
        engine = make_engine(config, config.model, tokenizer.eos_token_id, device)
        engine.sleep()  # makes room on a GPU while the policy loads
        policy, experience = Policy(config, config.model, device), Experience(config, questions)
        first_step = checkpoints.restore(policy, experience)
        engine.wake(policy.named_tensors(engine.dtype))
        if first_step == 0:
            show_example(engine, grader, questions[0], config, tracker)
            tracker.log(0, validate(engine, grader, tests, config))
        score = policy.mean_nll if config.trajectory_selection == "nll" else policy.mean_entropy

        for step in range(first_step, config.steps):  # Alg. 1, line 2
            # ---- phase 1: experience management, lines 3-19 ----
            with timer("plan"):
                plan = experience.plan(step, score)
            if plan is None:
                tracker.print("every question is retired: the run ends here")
                tracker.log(step, validate(engine, grader, tests, config))
                checkpoints.save(step)
                break
            # ---- phase 2: rollouts and rewards, lines 20-24 ----
            with timer("rollout"):
                batch = [questions[q] for q in plan.questions]
                graded = rollout(engine, grader, batch, experience.requests(plan), config.temperature, config.max_response_length)
                groups = experience.groups(plan, graded, grader.grade)
            # ---- store successes, retire, lines 25-30 and 32 ----
            with timer("collect"):
                if config.behavior_logprobs == "recompute":
                    policy.recompute(groups)
                experience.collect(step, groups)
                ranks.check_same(experience.contents, plan=plan.questions, buffer=experience.buffer.checksum())
            # ---- update θ with Eq. 4, line 31 ----
            with timer("update"), memory_advice(config):
                engine.sleep()
                metrics = policy.update(experience.mini_batches(step, groups), plan.clip_eps)
            with timer("sync"):
                engine.wake(policy.named_tensors(engine.dtype))

            metrics |= step_metrics(plan, groups, graded, experience, verifier)
            if config.eval_every and (step + 1) % config.eval_every == 0 or step + 1 == config.steps:
                with timer("validate"):
                    metrics |= validate(engine, grader, tests, config)
            tracker.step(step + 1, metrics | timer.take())
            with timer("save"):
                interrupted = checkpoints.after_step(step + 1)
            if interrupted:
                return tracker.latest

        policy.save_pretrained(Path(config.run_dir) / "model")
        if tracker.main:
            tokenizer.save_pretrained(Path(config.run_dir) / "model")
            describe_model(Path(config.run_dir) / "model", config, tokenizer, tracker.rows)
        tracker.finish()
    return tracker.latest


def with_built_in_world(config: Config) -> Config:
    """Fill in the arithmetic world where no model or no questions are given; rank 0 builds it on first use."""
    if config.train_files:
        return config
    if config.reward == "worlds.arithmetic:graded_reward":
        raise ValueError("the graded reward needs each question as its own answer: docs/reading.md, Sec. 5.3, makes such files")
    command = [sys.executable, "-m", "worlds.base_model", "--directory", str(Path(config.world_dir).absolute()),
               "--steps", str(config.base_steps)]
    if ranks.rank() == 0:  # in a process of its own, while the other ranks wait
        subprocess.run(command, check=True, cwd=Path(__file__).parent, env={**os.environ, "OMP_NUM_THREADS": "1"})
    ranks.barrier()
    from worlds.base_model import build_world

    world = build_world(config.world_dir, pretrain_steps=config.base_steps)
    files = [str(world / f"{name}.jsonl") for name in ("train", "test", "ood")]
    return dataclasses.replace(config, model=config.model or str(world / "model"), train_files=files[:1],
                               val_files=config.val_files or files[1:],
                               reward="worlds.arithmetic:reward" if config.reward == "math" else config.reward)


def read_data(config: Config, tokenizer, verifier: Verifier, tracker: Tracker) -> tuple[list[Question], list[Question]]:
    """Training and validation questions; those whose answer the verifier cannot read are dropped with a count."""
    sets = []
    for files in (config.train_files, config.val_files):
        questions, counts = load_questions(files, config, tokenizer)
        sets.append(drop_unreadable(questions, verifier))
        counts["answers unreadable"] = len(questions) - len(sets[-1])
        if questions and not sets[-1]:
            raise ValueError(f"{', '.join(files)}: the verifier can read none of the answers; convert.py --extract takes them "
                             "out of solutions, --reward module:function reads what it likes")
        tracker.print(f"{', '.join(files)}: {len(sets[-1])} questions {counts}" if files else "note: no val_files, no validation")
    train_set, tests = sets
    if len(train_set) < config.batch_size:
        tracker.print(f"note: only {len(train_set)} training questions for batches of {config.batch_size}")
    if config.rho and config.k_max < config.num_rollouts - 1:
        tracker.print(f"note: groups with {config.k_max + 1} to {config.num_rollouts - 1} successes are not collected (k_max)")
    if config.eval_questions:
        sources = {q.source for q in tests}
        tests = [q for s in sorted(sources) for q in [q for q in tests if q.source == s][: config.eval_questions]]
    return train_set, tests


def show_example(engine, grader: Grader, question: Question, config: Config, tracker: Tracker) -> None:
    """Print one prompt as the model sees it, and one response: most template mistakes show here."""
    (response, reward), = rollout(engine, grader, [question], [[Request(question.prompt_ids, config.seed)]],
                                  config.temperature, config.max_response_length)[0]
    tracker.print(f"---- a prompt ----\n{grader.tokenizer.decode(question.prompt_ids)}\n---- a response, reward {reward} ----\n"
                  f"{grader.tokenizer.decode(response.token_ids)}\n----")


@contextmanager
def memory_advice(config: Config) -> Iterator[None]:
    """Turn "out of memory" into a RuntimeError that names the knobs."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch.cuda.OutOfMemoryError is a RuntimeError
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        raise RuntimeError(
            f"out of memory in the update. Lower tokens_per_micro_batch (now {config.tokens_per_micro_batch}), turn on "
            f"gradient_checkpointing (now {config.gradient_checkpointing}) and shard (now {config.shard}), or use more ranks: "
            "none of these changes the gradient. On a GPU rollout_memory is what the engine may keep. lora_rank trains adapters "
            "alone, in less memory.") from error


def step_metrics(plan: Plan, groups: list[Group], graded: list, experience: Experience, verifier: Verifier) -> dict[str, float]:
    """What a step did, apart from the update."""
    responses = [r for pairs in graded for r, _ in pairs]
    k = np.array([g.num_success for g in groups])
    buckets = experience.buffer.buckets
    return {
        "reward/pass_at_1": float(np.concatenate([g.rewards for g in groups]).mean()),
        "reward/pass_at_1_fresh": float(np.mean([g.rewards.mean() for g in groups if not g.replayed] or [0.0])),
        "reward/all_equal_groups": float(np.mean([g.rewards.min() == g.rewards.max() for g in groups])),
        "reward/none_right": float(np.mean(k == 0)),
        "reward/timeouts": verifier.timeouts,
        "rollout/length": float(np.mean([len(r.token_ids) for r in responses])),
        "rollout/tokens": sum(len(r.token_ids) for r in responses),
        "rollout/truncated": float(np.mean([not r.finished for r in responses])),
        "replay/questions": len(plan.replayed),
        "replay/age": float(np.mean([plan.step - t.step for t in plan.replayed.values()] or [0.0])),
        "replay/selected_score": plan.selected_score,
        "replay/candidate_score": plan.candidate_score,
        "buckets/questions": len(experience.buffer),
        "buckets/trajectories": experience.buffer.num_trajectories,
        "buckets/retired": len(experience.buffer.retired),
        **{f"buckets/k={n}": len(buckets.get(n, ())) for n in range(1, experience.config.num_rollouts)},
    }


if __name__ == "__main__":
    ranks.run(lambda: train(parse_config()))

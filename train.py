"""ExGRPO training: Algorithm 1, phase by phase.

    torchrun --nproc_per_node=2 train.py                      # the built-in run
    torchrun --nproc_per_node=8 train.py --config configs/qwen2.5-math-7b.yaml --rho 0.25
    torchrun --nproc_per_node=8 train.py --config configs/qwen2.5-math-7b.yaml --rho 0.25 --resume

Every rank runs this script on the same plan; see runtime/ranks.py for what is split.
"""

from dataclasses import asdict
from pathlib import Path

from buffer import ReplayBuffer
from config import Config, parse_config
from data import Question, fingerprint, load_tokenizer, read_data, sample_seed, unreadable, with_built_in_world
from eval import validate
from exgrpo import Experience, step_metrics
from policy import Policy
from reward import Grader, Verifier
from rollout import make_engine, roll_out
from runtime import ranks
from runtime.card import describe_model
from runtime.checkpoint import Checkpoints
from runtime.tracking import Timer, Tracker


def train(config: Config) -> dict[str, float]:
    """Run Algorithm 1 and return the final validation scores."""
    device = ranks.setup(config.hang_timeout)
    config = with_built_in_world(config)
    tokenizer, timer = load_tokenizer(config, config.model), Timer()
    with (Tracker(config.run_dir, config.steps, config.tracker, asdict(config)) as tracker,
          Verifier(timeout=config.verify_timeout, function=config.reward) as verifier):
        grader = Grader(config, tokenizer, verifier)
        questions, tests = read_data(config, tokenizer, tracker.print)
        checkpoints = Checkpoints(config.run_dir, asdict(config), fingerprint(questions), tracker.print)
        dropped = drop(questions, tests, verifier, checkpoints, tracker)
        engine = make_engine(config, config.model, tokenizer.eos_token_id, device)
        engine.sleep()  # makes room on a GPU while the policy loads
        policy, experience = Policy(config, config.model, device), Experience(config, questions)
        first_step = restore(checkpoints, policy, experience, tracker)
        engine.wake(policy.named_tensors(engine.dtype))
        if first_step == 0:
            show_example(engine, grader, questions[0], config, tracker)
            tracker.log(0, validate(engine, grader, tests, config))
        score = policy.mean_nll if config.trajectory_selection == "nll" else policy.mean_entropy

        def save(step: int) -> None:
            state = {"experience": experience.state_dict(), "skipped_in_row": policy.skipped_in_row, "dropped": dropped}
            checkpoints.save(step, state, policy.tensors(), experience.buffer.save, tracker)

        for step in range(first_step, config.steps):  # Alg. 1, line 2
            # ---- phase 1: experience management, lines 3-19 ----
            with timer("plan"):
                plan = experience.plan(step, score)
            if plan is None:
                tracker.print("every question is retired: the run ends here")
                tracker.log(step, validate(engine, grader, tests, config))
                save(step)
                break
            # ---- phase 2: rollouts and rewards, lines 20-24 ----
            with timer("rollout"):
                rollouts = roll_out(engine, grader, [experience.questions[q] for q in plan.questions],
                                    experience.seeds(plan), config.temperature, config.max_response_length, step)
                groups = experience.groups(plan, rollouts)
            # ---- store successes, retire, lines 25-30 and 32 ----
            with timer("collect"):
                if config.behavior_logprobs == "recompute":
                    policy.recompute(groups)
                ranks.check_same(plan=plan.questions, stored=experience.collect(step, groups))
            # ---- update θ with Eq. 4, line 31 ----
            with timer("update"):
                engine.sleep()
                metrics = policy.update(experience.mini_batches(step, groups), plan.clip_eps)
            with timer("sync"):
                engine.wake(policy.named_tensors(engine.dtype))

            metrics |= step_metrics(plan, groups, experience) | {"reward/timeouts": verifier.timeouts}
            if config.eval_every and (step + 1) % config.eval_every == 0 or step + 1 == config.steps:
                with timer("validate"):
                    metrics |= validate(engine, grader, tests, config)
            tracker.step(step + 1, metrics | timer.take())
            with timer("save"):
                if checkpoints.due(step + 1):
                    save(step + 1)
            if checkpoints.interrupted:
                return tracker.latest

        policy.save_pretrained(Path(config.run_dir) / "model")
        if tracker.main:
            describe_model(Path(config.run_dir) / "model", asdict(config), tokenizer, tracker.rows)
        tracker.finish()
    return tracker.latest

"""ExGRPO training: Algorithm 1, phase by phase.

    export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=600  # seconds to finish an update and save after Ctrl-C
    torchrun --nproc_per_node=2 train.py                # the built-in run
    torchrun --nproc_per_node=8 train.py --config configs/qwen2.5-math-7b.yaml --rho 0.25
    torchrun --nproc_per_node=8 train.py --config configs/qwen2.5-math-7b.yaml --rho 0.25 --resume

Every rank runs this script on the same plan; see runtime/ranks.py for what is split.
"""

from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

from config import Config, from_command_line

# A wrong command line is refused here, before the imports that take seconds.
CONFIG = from_command_line() if __name__ == "__main__" else None

from buffer import ReplayBuffer
from data import Question, load_tokenizer, readable, with_built_in_world
from eval import validate
from exgrpo import SCORED_BY, Experience
from policy import Policy
from reward import SUCCESS, Grader, make_verifier
from rollout import make_engine, roll_out
from runtime import ranks
from runtime.card import describe_model
from runtime.checkpoint import Checkpoints
from runtime.claim import claim
from runtime.faults import watchdog
from runtime.memory import advice
from runtime.metrics import step_metrics
from runtime.tracking import Timer, Tracker, validation
from worlds.arithmetic import marked


def train(config: Config) -> dict:
    """Set up and run Algorithm 1; returns the final validation scores."""
    device = ranks.setup(config.hang_timeout)
    config = with_built_in_world(config)
    tokenizer = load_tokenizer(config, config.model)
    with (
        claim(config.run_dir),
        Tracker(config.run_dir, config.steps, config.tracker, asdict(config)) as tracker,
        make_verifier(config) as verifier,
        suppress(ranks.Interrupted),  # the run is saved by then
    ):
        algorithm_1(config, Grader(config, tokenizer, verifier), tracker, device)
    return tracker.latest


def algorithm_1(config: Config, grader: Grader, tracker: Tracker, device) -> None:
    """From the first step, or the one after the checkpoint, to the saved model."""
    checkpoints = Checkpoints(asdict(config), tracker.print)
    check_golds = grader.verifier.check_golds
    questions, tests, dropped = readable(
        config, grader.tokenizer, check_golds, checkpoints, tracker.print
    )
    engine = make_engine(config, config.model, grader.tokenizer.eos_token_id, device)
    engine.sleep()  # makes room on a GPU while the policy loads
    policy = Policy(config, config.model, device)
    experience = Experience(config, questions)
    first_step = resume(checkpoints, policy, experience, tracker)
    engine.wake(policy.named_tensors(engine.dtype))
    tracker.print(policy.memory)
    example = (tests or questions)[0]
    if not tracker.rows:
        tracker.print(f"---- a prompt ----\n{grader.tokenizer.decode(example.prompt_ids)}\n----")
        tracker.keep_example(answer(engine, grader, example))
        tracker.log(0, validate(engine, grader, tests))
    score = getattr(policy, SCORED_BY.get(config.trajectory_selection, "mean_entropy"))
    timer = Timer()
    advised = partial(advice, policy.tokens_per_micro_batch, config.gradient_checkpointing)
    checkpoints.of(
        tensors=policy.tensors,
        state=lambda: {
            "experience": experience.state_dict(),
            "unreadable": dropped,
            "skipped_in_row": policy.skipped_in_row,
        },
        save_buffer=lambda path: experience.buffer.save(path),
        metrics=tracker.text,
    )

    for step in range(first_step, config.steps):  # line 2
        with checkpoints.back_to(step, experience.snapshot()):  # where an interrupt in here leads
            # ---- phase 1: experience management, lines 3-19 ----
            with timer("plan"), advised():
                plan = experience.plan(step, score)
            if plan is None:
                tracker.print("every question is retired: the run ends here")
                checkpoints.save(step)
                break
            # ---- phase 2: rollouts and rewards, lines 20-24 ----
            with timer("rollout"):
                asked = [experience.questions[q] for q in plan.questions]
                rollouts = roll_out(
                    engine, grader, asked, experience.seeds(plan), config.temperature, step
                )
                groups = experience.groups(plan, rollouts)
                grader.warn(asked, rollouts)
        # ---- store successes, retire, lines 25-30 and 32 ----
        with timer("collect"), advised():
            if config.behavior_logprobs == "recompute":
                groups = policy.recompute(groups)
            collected = experience.collect(groups)
            ranks.check_same(plan=plan.questions, collected=collected)
        # ---- update θ with Eq. 4, line 31 ----
        with timer("update"), advised():
            engine.sleep()
            metrics = policy.update(experience.mini_batches(step, groups), plan.clip_eps)
        with timer("sync"):
            engine.wake(policy.named_tensors(engine.dtype))

        metrics |= step_metrics(plan, groups, experience.buffer)
        tracker.sample(step + 1, groups, grader.text, SUCCESS)
        if config.eval_every and (step + 1) % config.eval_every == 0 or step + 1 == config.steps:
            try:
                with timer("validate"):
                    metrics |= validate(engine, grader, tests)
            except ranks.Interrupted:  # the row lacks it, the step stands and is saved
                tracker.print(f"interrupted: step {step + 1} is not validated")
        tracker.step(step + 1, metrics | timer.take())
        if checkpoints.due(step + 1):
            with timer("save"):
                checkpoints.save(step + 1)
        if checkpoints.interrupted:
            return
    last = tracker.rows[-1]
    if tests and not validation(last):  # interrupted in the last validation, or out of questions
        with timer("validate"):
            tracker.log(last["step"], validate(engine, grader, tests))
    trained = answer(engine, grader, example)
    save_model(policy, grader.tokenizer, asdict(config), tracker)
    tracker.finish()
    tracker.compare_example(f"{example.text}   right: {example.answer}", trained)


def resume(
    checkpoints: Checkpoints, policy: Policy, experience: Experience, tracker: Tracker
) -> int:
    """Put back what was saved, if anything, and start metrics.jsonl;
    returns the first step to run.
    """
    if not checkpoints.saved:
        tracker.start()
        return 0

    def load_buffer(path: Path) -> None:
        experience.load_state_dict(checkpoints.saved["experience"], ReplayBuffer.load(path))

    metrics = checkpoints.restore(policy.tensors(), load_buffer)
    policy.skipped_in_row = checkpoints.saved["skipped_in_row"]
    tracker.start(metrics, checkpoints.saved["step"])
    return checkpoints.saved["step"]


def save_model(policy: Policy, tokenizer, knobs: dict, tracker: Tracker) -> None:
    """Leave an ordinary Hugging Face directory in run_dir/model (a collective)."""
    directory = Path(knobs["run_dir"]) / "model"
    policy.save_pretrained(directory)
    if tracker.main:
        tokenizer.save_pretrained(directory)
        describe_model(directory, knobs, tokenizer, tracker.rows, tracker.rows[-1]["step"])


def answer(engine, grader: Grader, question: Question) -> str:
    """One response of the model as it stands, as text;
    the built-in world's judge marks its wrong steps.
    """
    watchdog.enter("example")
    config = grader.config
    [[trajectory]] = roll_out(engine, grader, [question], [[config.seed]], config.eval_temperature)
    text = grader.text(trajectory.token_ids)
    if config.reward.startswith("worlds.arithmetic:"):
        text = marked(question.text, text)
    return f"{text}   reward: {trajectory.reward:g}"


if __name__ == "__main__":
    ranks.run(lambda: train(CONFIG))

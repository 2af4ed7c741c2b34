"""ExGRPO training: Algorithm 1, line by line.

    torchrun --shutdown-timeout 600 --nproc_per_node=8 train.py       # the paper's run
    torchrun --shutdown-timeout 600 --nproc_per_node=2 train.py --config configs/arithmetic.yaml

After Ctrl-C a run has 600 seconds to save, and the same command with --resume goes on. Every rank
runs this script on the same plan; see runtime/ranks.py for what is split.
"""

from dataclasses import asdict

from config import Config, from_command_line

# A wrong command line is refused here, before most of the slow imports.
CONFIG = from_command_line() if __name__ == "__main__" else None

from data import Question, load_tokenizer, read_questions
from eval import validate
from exgrpo import Experience
from policy import Policy
from reward import Grader, make_verifier
from rollout import HFEngine, VLLMEngine, make_engine, roll_out
from runtime import ranks
from runtime.chat import turn_ends
from runtime.faults import watchdog
from runtime.metrics import step_metrics
from runtime.run import Run, open_run


def train(config: Config) -> dict:
    """Set up, run Algorithm 1, save the model; returns the last validation scores."""
    device = ranks.setup(config.hang_timeout)
    tokenizer = load_tokenizer(config, config.model)
    ends = turn_ends(config.model, tokenizer)  # ids of the tokens that end a response
    with open_run(asdict(config)) as run, make_verifier(config) as verifier:
        grader = Grader(config, tokenizer, verifier, ends)
        questions, tests, origins = read_questions(
            config, tokenizer, verifier.check_golds, run.print
        )
        # On a resume: the same questions, turn ends and reward as before.
        run.checkpoints.check_origins(turn_ends=ends, reward_identity=verifier.identity, **origins)
        experience = Experience(config, questions)
        engine = make_engine(config, ends, device)
        engine.sleep()  # makes room on a GPU while the policy loads
        policy = Policy(config, device)
        run.start(policy, experience)  # on a resume it loads the checkpoint into them
        engine.wake(policy.full_weights(engine.dtype))

        example = (tests or questions)[0]
        if run.is_new:
            run.print(f"---- a prompt ----\n{tokenizer.decode(example.prompt_ids)}\n----")
            run.tracker.keep_example(example_response(engine, grader, example))
            run.log(validate(engine, grader, tests))
        algorithm_1(run, config, engine, grader, policy, experience, tests)
        # Not yet if the run ended early, or is resumed after Ctrl-C in its last validation.
        if tests and not run.is_validated:
            with run.phase("evaluation"):
                run.log(validate(engine, grader, tests))
        trained = example_response(engine, grader, example)
        policy.save_pretrained(run.model_directory)
        run.finish(tokenizer)
        run.tracker.compare_example(f"{example.text}   right: {example.answer}", trained)
    return run.tracker.latest


def algorithm_1(
    run: Run,
    config: Config,
    engine: VLLMEngine | HFEngine,
    grader: Grader,
    policy: Policy,
    experience: Experience,
    tests: list[Question],
) -> None:
    """Run the steps that are left: all of them, or those after a checkpoint."""
    # What a stored response is chosen by: its mean entropy, or its NLL as Algorithm 1 has it.
    score = policy.mean_nll if config.trajectory_selection == "nll" else policy.mean_entropy
    for step in run.steps():  # line 2
        if experience.is_exhausted:
            run.end_early("fewer questions are left than a batch has: the run ends here")
            break

        # ---- phase 1: lines 3-19; until `store` the experience does not change ----
        with run.phase("plan"):
            drawn = experience.draw(step)  # 4-8: which stored questions return
            scores = score(experience.candidates(drawn))  # 9-12: of every candidate for o*
            plan = experience.plan(step, drawn, scores)  # 13-18: each one's o*, and fresh ones

        # ---- phase 2: rollouts and rewards, lines 21-24 ----
        with run.phase("rollout"):
            asked = [experience.questions[q] for q in plan.question_ids]  # 21
            seeds = experience.seeds(plan)  # 23: one per response, K or K - 1 beside an o*
            rollouts = roll_out(engine, grader, asked, seeds, config.temperature, step)
            groups = experience.form_groups(plan, rollouts)
            grader.warn(asked, rollouts)  # where no response has a box, for example

        # ---- store successes, retire, lines 25-30 and 32 ----
        # Before the update: nothing that is stored depends on it.
        with run.phase("store"):
            if config.behavior_logprobs == "recompute":
                groups = policy.recompute(groups)  # the log-probs of new responses
            experience.store(plan, groups)
            ranks.check_same(plan=plan.question_ids, responses=[g.checksum for g in groups])

        # ---- update θ with Eq. 4, line 31 ----
        with run.phase("update"):
            engine.sleep()
            groups = experience.with_advantages(groups)
            mini_batches = experience.mini_batches(step, groups)
            metrics = policy.update(mini_batches, plan.clip_eps)
        with run.phase("sync"):
            engine.wake(policy.full_weights(engine.dtype))

        metrics |= step_metrics(plan, groups, experience)
        run.sample(groups, grader.text)  # a few responses, for people to read
        if run.validation_is_due:
            with run.phase("validate"):
                metrics |= validate(engine, grader, tests)
        run.end_step(metrics)


def example_response(engine, grader: Grader, question: Question) -> str:
    """The present model's response to a question, as text with its reward."""
    watchdog.enter("example")
    config = grader.config
    seeds = [[config.seed]]
    [[trajectory]] = roll_out(engine, grader, [question], seeds, config.eval_temperature)
    # "marked" is the text with its errors marked, from a reward that does so.
    text = trajectory.judged.get("marked") or grader.text(trajectory.token_ids)
    return f"{text}   reward: {trajectory.reward:g}"


if __name__ == "__main__":
    ranks.run(lambda: train(CONFIG))

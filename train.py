"""ExGRPO training: Algorithm 1, line by line.

    torchrun --shutdown-timeout 600 --nproc_per_node=8 train.py       # the paper's run
    torchrun --shutdown-timeout 600 --nproc_per_node=2 train.py --config configs/arithmetic.yaml

After Ctrl-C the step under way is finished and saved, if that takes less than 600 seconds; the same
command with --resume goes on. Every rank runs this script; runtime/ranks.py says what is split.
"""

from dataclasses import asdict

from config import Config, parse_config
from data import fingerprint, first_of_each_source, load_tokenizer, read_questions
from eval import validate
from exgrpo import Experience
from policy import Policy
from reward import Grader
from rollout import make_engine, roll_out
from runtime import ranks
from runtime.metrics import buffer_metrics, group_metrics, plan_metrics
from runtime.run import INTERRUPTED, Run, refuse_remains


def train(config: Config) -> int:
    """Set up, run Algorithm 1, save the model; returns the exit status."""
    refuse_remains(config)
    device = ranks.setup()
    tokenizer, stop_ids = load_tokenizer(config)
    with Grader(config, tokenizer, stop_ids) as grader:
        questions, counts = read_questions(config.train_files, config, tokenizer, grader)
        val_questions, val_counts = read_questions(config.val_files, config, tokenizer, grader)
        val_questions = first_of_each_source(val_questions, config.eval_questions)
        if len(questions) < config.batch_size:
            raise ranks.Refusal(f"{len(questions)} questions are fewer than --batch_size")
        experience = Experience(config, questions)
        engine = make_engine(config, stop_ids, device)
        engine.sleep()  # makes room on a GPU while the policy loads
        policy = Policy(config, device)
        # On a resume the newest checkpoint is loaded into policy and experience.
        run = Run(asdict(config), policy, experience, grader, stop_ids, fingerprint(questions))
        run.print(f"rows of train_files: {counts}, of val_files: {val_counts}")
        run.print(f"---- a prompt ----\n{tokenizer.decode(questions[0].prompt_ids)}")
        engine.wake(policy.full_weights(engine.dtype))
        if run.step == 0:
            run.log(validate(engine, grader, val_questions))

        for step in range(run.step, config.steps):  # line 2
            if experience.is_exhausted:
                run.print("fewer questions are left than a batch has: the run ends here")
                break

            # ---- phase 1: experience management, lines 3-19 ----
            with run.phase("plan"):
                drawn = experience.draw(step)  # 4-8: which stored questions return
                candidates = experience.candidates(drawn)  # 9: the stored responses to compare
                entropies = policy.score_candidates(candidates)  # 10-12: by which o* is chosen
                plan = experience.plan(step, drawn, entropies)  # 13-18: o*, and fresh questions
                metrics = plan_metrics(plan, experience.buffer.latest_k)

            # ---- phase 2: rollouts and rewards, lines 21-24 ----
            with run.phase("rollout"):
                asked = [group.question for group in plan]  # 21
                seeds = experience.seeds(step, plan)  # 23: K per question, K - 1 beside an o*
                rollouts = roll_out(engine, grader, asked, seeds, config.temperature, step)
                groups = experience.form_groups(plan, rollouts)

            # ---- store successes, retire, lines 25-30 and 32 ----
            # This may come before the update of line 31: nothing that is stored depends on it.
            with run.phase("store"):
                if config.behavior_logprobs == "recompute":
                    policy.recompute(groups)  # the log-probs of new responses
                experience.store(groups)

            # ---- update θ with Eq. 4, line 31 ----
            with run.phase("update"):
                engine.sleep()
                experience.set_advantages(groups)
                mini_batches = experience.mini_batches(step, groups)
                metrics |= policy.update(mini_batches, experience.clip_eps)
            with run.phase("sync"):
                engine.wake(policy.full_weights(engine.dtype))

            metrics |= group_metrics(groups) | buffer_metrics(experience)
            if run.is_due("eval_every"):
                with run.phase("validate"):
                    metrics |= validate(engine, grader, val_questions)
            run.end_step(metrics, groups)
            if run.stopped:
                return INTERRUPTED

        # The final scores, unless the last step was validated: its row then has time/validate.
        if val_questions and "time/validate" not in run.rows[-1]:
            run.log(validate(engine, grader, val_questions))
        run.finish()
    return 0


if __name__ == "__main__":
    ranks.run(lambda: train(parse_config()))

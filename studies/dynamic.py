"""Dynamic sampling (DAPO, arXiv 2503.14476), what one would do instead of replay: fresh questions are asked
until B groups carry signal.

A run ends once it has generated as many tokens as ExGRPO does. The rest is on-policy, as with `--rho 0`.
"""

from functools import partial

import numpy as np

import train
from config import parse_config
from exgrpo import Experience, Group, Plan, step_metrics
from rollout import roll_out
from runtime import ranks
from studies.unit import main

TOKENS = 9_000  # for each step of `steps`: what ExGRPO generates on `hard`
LIMIT = 10  # batches asked in a step, at most


class Dynamic(Experience):
    """Batches of B groups with signal, within a budget of generated tokens."""

    tokens = step_tokens = 0  # generated in all, and in this step

    def plan(self, step, score) -> Plan | None:
        """None, which ends the run, when the tokens are spent."""
        left = self.tokens < self.config.steps * TOKENS
        return super().plan(step, score) if left else None

    def groups(self, plan: Plan, rollouts) -> list[Group]:
        """B groups with signal: of the plan's questions, and of further fresh ones until they are found."""
        B, asked, found, self.step_tokens = self.config.batch_size, [], [], 0
        new = plan
        while True:
            groups = super().groups(new, rollouts)
            asked += new.fresh
            self.step_tokens += sum(len(t.token_ids) for group in groups for t in group.trajectories)
            found += [group for group in groups if np.ptp(group.rewards) > 0]
            if len(found) >= B or len(asked) >= LIMIT * B:
                break
            new = Plan(plan.step, self.stream.draw(B, self.buffer.retired, skip=asked), {})
            if not new.fresh:
                break
            questions = [self.questions[q] for q in new.fresh]
            rollouts = self.ask(questions, self.seeds(new), self.config.temperature, plan.step)
        self.tokens += self.step_tokens
        found = found[:B] or groups
        plan.fresh = [group.question.id for group in found]
        return found

    def state_dict(self) -> dict:
        return super().state_dict() | {"tokens": self.tokens}

    def load_state_dict(self, state: dict, buffer) -> None:
        super().load_state_dict(state, buffer)
        self.tokens = state["tokens"]


def remembering(engine, grader, *what):
    """`roll_out`, and the experience may ask for more of it."""
    Dynamic.ask = staticmethod(partial(roll_out, engine, grader))
    return roll_out(engine, grader, *what)


def metrics(plan: Plan, groups: list[Group], experience: Dynamic) -> dict[str, float]:
    """As ever, with the tokens of the groups that were not used."""
    return step_metrics(plan, groups, experience) | {"rollout/tokens": experience.step_tokens}


def run() -> None:
    """`train.py` with this experience."""
    train.Experience, train.roll_out, train.step_metrics = Dynamic, remembering, metrics
    ranks.run(lambda: train.train(parse_config()))


if __name__ == "__main__":
    main(("-c", "from studies import dynamic; dynamic.run()"))

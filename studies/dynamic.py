"""Dynamic sampling (DAPO, arXiv 2503.14476), what one would do instead of replay: fresh questions are asked
until B groups carry signal, in at most LIMIT batches; then a step makes do with those that were found, and
where there are none with the last B that were asked.

A run ends once it has generated as many tokens as ExGRPO's run of the same unit, whose record must be there:
it makes fewer updates. The rest is on-policy, as with `--rho 0`.

A masked run (Eq. 14) looks for groups between its α_low and α_high and makes all of its steps: so Medium and
Hard are compared at equal numbers of groups, not at what a fresh batch happens to have of them.
"""

from functools import partial

import numpy as np

from config import Config
from exgrpo import Experience, Group, Plan, step_metrics
from rollout import roll_out
from studies import processor
from studies.jobs import Job
from studies.unit import main

LIMIT = 10
ASKED = 32  # questions of a further batch


def budget(config: Config) -> float:
    """Tokens that ExGRPO's run of `hard` generated in as many steps; FileNotFoundError if it was not made.
    Any number of a masked run."""
    if config.alpha_low > 0 or config.alpha_high < 1:
        return np.inf
    record = Job("hard", "exgrpo", config.seed).record()
    tokens = [row["rollout/tokens"] for row in record["rows"] if "rollout/tokens" in row]
    return sum(tokens) * config.steps // len(tokens)


class Dynamic(Experience):
    """Batches of up to B groups with signal, until as many tokens are generated as the budget has."""

    tokens = 0  # generated in all
    asked = ()  # the groups of this step, with and without signal

    def plan(self, step, score) -> Plan | None:
        """None, which ends the run, when the tokens are spent."""
        return super().plan(step, score) if self.tokens < budget(self.config) else None

    def wanted(self, group: Group) -> bool:
        """Whether a group has signal, and no mask on it."""
        c = self.config
        share = group.num_success / len(group.trajectories)
        return 0 < share < 1 and c.alpha_low <= share <= c.alpha_high

    def groups(self, plan: Plan, rollouts) -> list[Group]:
        """B groups that are wanted, or fewer: of the plan's questions, and of further ones until they are
        found or LIMIT is near."""
        B, asked, found, new = self.config.batch_size, [], [], plan
        while True:
            asked += super().groups(new, rollouts)
            found = [group for group in asked if self.wanted(group)]
            if len(found) >= B or len(asked) + ASKED > LIMIT * ASKED:
                break
            skip = [group.question.id for group in asked]
            new = Plan(plan.step, self.stream.draw(ASKED, self.buffer.retired, skip), {})
            if not new.fresh:
                break
            questions = [self.questions[q] for q in new.fresh]
            rollouts = self.ask(questions, self.seeds(new), self.config.temperature, plan.step)
        self.asked, found = asked, found[:B] or asked[-B:]
        self.tokens += sum(len(t.token_ids) for group in asked for t in group.trajectories)
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
    """As ever, of all groups that were asked."""
    wanted = sum(map(experience.wanted, groups))
    return step_metrics(plan, experience.asked, experience) | {"dynamic/trained": wanted}


def run() -> None:
    """`train.py` with this experience."""
    processor.run(Experience=Dynamic, roll_out=remembering, step_metrics=metrics)


if __name__ == "__main__":
    main(("-c", "from studies import dynamic; dynamic.run()"))

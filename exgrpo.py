"""Experience management: phase 1 of Algorithm 1 and the bookkeeping of phase 2 (Sec. 4.1).

No GPU and no communication here: everything is a deterministic function of the seed, of what came
before and of what is passed in, so that every rank computes the same plan.
"""

from dataclasses import dataclass, field, fields
from math import ceil
from typing import Any, Literal

import numpy as np
import torch

from buffer import SUCCESS_THRESHOLD, ReplayBuffer, Trajectory
from loss import group_advantages
from sampler import FreshStream, rng_for, sample_questions, seed_for

REINSTATED_SHARE = 0.1  # of the retired set, which returns to the stream (Table 7)


@dataclass
class Knobs:
    """What `Experience` reads, with Table 4's values; σ and CLIP are as in the official code.

    ValueError for most numbers that cannot be meant. config.py's `Config` adds the other knobs.
    """

    seed: int = 0  # of every random decision but the samples of validation
    batch_size: int = 128  # B, questions of a batch
    num_rollouts: int = 8  # K, responses to a question; a replayed one gets K - 1 new ones
    num_mini_batches: int = 2  # optimiser steps of a batch, each on its share of the questions
    rho: float = 0.5  # ρ, share of replayed questions; 0: on-policy Dr. GRPO
    # when a batch's Pass@1 (share of rewards above 0.5) first exceeds this, the next batch begins
    # to store successes, and the one after it to replay them; negative: the first batch stores
    start_threshold: float = 0.35
    # which stored questions return; uniform: Table 6's "no question selection"
    question_selection: Literal["gaussian", "uniform"] = "gaussian"
    # μ, centre of the bucket weights, as an accuracy; 0.125, one right answer of eight, prefers
    # rarely solved questions
    mu: float = 0.5
    # σ, width of the bucket weights N(k; μK, σ), in successes as in the official code; for the
    # paper's text, N(k/K; μ, 1), set it to K
    sigma: float = 1.0
    # which stored response is o*: the one with the lowest mean entropy under the current policy, or
    # the lowest NLL (Alg. 1); random and highest_entropy: Table 6; official: the lowest *sum* of
    # entropies, to which the official code comes by its mismatched mask
    trajectory_selection: Literal["entropy", "nll", "random", "highest_entropy", "official"] = (
        "entropy"
    )
    # what the buckets go by: success count, or spread of continuous rewards (Sec. 5.3)
    difficulty: Literal["success", "spread"] = "success"
    # whether questions solved K of K times retire; auto: unless ρ = 0; off: they are not replayed,
    # but stay in the stream of fresh questions. With spread none is solved.
    retire: Literal["auto", "on", "off"] = "auto"
    # every so many steps (25 in Table 7) a tenth of the retired questions returns to the stream;
    # 0: never. The run ends once fewer than B are left.
    reinstate_every: int = 0
    # whether new tokens are clipped; auto: until successes are stored, always if ρ = 0
    clip: Literal["auto", "on", "off"] = "auto"
    clip_eps: float = 0.2  # ε of CLIP
    normalize_std: bool = False  # divide advantages by the group's std, as GRPO does
    # Masked GRPO (Eq. 14): groups whose k/K is not in this closed range get advantage 0
    alpha: list[float] = field(default_factory=lambda: [0.0, 1.0])

    def __post_init__(self):
        """Check the numbers. Whole ones are at least 1, unless 0 means something, as "never"."""
        for f in fields(self):
            if f.type not in (int, float) or f.name == "start_threshold":
                continue
            value = getattr(self, f.name)
            may_be_zero = f.type is float or f.default == 0 or f.name.endswith("_every")
            least = 0 if may_be_zero else 1
            if not value >= least:  # nan, too
                raise ValueError(f"{f.name} must be at least {least}, got {value}")
        low, high = self.alpha
        if not 0 <= low <= high <= 1:
            raise ValueError(
                f"alpha must be a range of k/K inside [0, 1], such as 0.125 0.875, got {self.alpha}"
            )
        if self.rho > 1:
            raise ValueError(
                f"rho is the share of replayed questions in a batch, at most 1, got {self.rho}"
            )
        if self.num_rollouts == 1:
            raise ValueError(
                "num_rollouts must be at least 2, since a group of one response has no advantage"
            )
        if self.rho > 0 and self.max_replayed == 0:
            raise ValueError(
                "rho times batch_size is less than one question, so that none would return: raise"
                " one of them, or set rho to 0 for on-policy Dr. GRPO"
            )

    @property
    def max_replayed(self) -> int:
        """⌊ρB⌋, the replayed questions of a batch at most."""
        # The small number is there because 0.29 * 100 is 28.999... in floating point.
        return int(self.rho * self.batch_size + 1e-9)


@dataclass
class Group:
    """G*: a question with its K trajectories, an o* and K - 1 new ones, or K new ones."""

    question: Any  # one of those that `Experience` was given
    star: Trajectory | None = None  # the replayed o*, where there is one
    new: list[Trajectory] = field(default_factory=list)  # what is generated in this step
    advantages: Any = None  # float32 (K,), by `set_advantages`

    @property
    def trajectories(self) -> list[Trajectory]:
        """All K, o* first."""
        return [self.star, *self.new] if self.star else self.new

    @property
    def replayed(self) -> list[bool]:
        """(K,): true for o*, which is the first if there is one."""
        return [t is self.star for t in self.trajectories]

    @property
    def rewards(self) -> np.ndarray:
        """float32 (K,)."""
        return np.array([t.reward for t in self.trajectories], dtype=np.float32)

    @property
    def num_success(self) -> int:
        """k: successes among the K responses, o* included."""
        return sum(t.is_success for t in self.trajectories)


class Experience:
    """The replay buffer E, the retired set S, the delayed start and the fresh stream of one run.

    `plan` moves the stream on, may reinstate questions and sets `clip_eps`; `store` changes the
    rest. questions: each has `prompt_ids` and a unique `id`.
    """

    def __init__(self, knobs: Knobs, questions: list):
        self.knobs = knobs
        self.questions = {q.id: q for q in questions}
        self.buffer = ReplayBuffer()
        self.stream = FreshStream(list(self.questions), knobs.seed)
        # Whether successes are stored and replayed; once true, true to the end of the run. The
        # first batch for which it is true finds E still empty, and so only stores.
        self.started = knobs.rho > 0 and knobs.start_threshold < 0
        # ε of CLIP for the new tokens of the batch planned last; None: no clip.
        self.clip_eps: float | None = None

    # ---- phase 1: draw, choose o*, plan a batch (lines 3-18) -------------------------------------

    def draw(self, step: int) -> list[int]:
        """Which stored questions return in this step, by Algorithm 2 (lines 4-8).

        No question is drawn while E is empty, as it is until the delayed start.
        """
        knobs = self.knobs
        rng = rng_for("plan", knobs.seed, step)
        buckets = self.buffer.buckets  # line 5
        n = min(knobs.max_replayed, len(self.buffer))  # line 7
        if knobs.question_selection == "uniform":
            stored = sum(buckets.values(), [])
            return rng.choice(stored, n, replace=False).tolist()
        K = knobs.num_rollouts
        return sample_questions(buckets, n, K, rng, knobs.mu, knobs.sigma)  # 6, 8

    def candidates(self, drawn: list[int]) -> list[list[tuple]]:
        """Of each drawn question the (prompt ids, response ids) to be compared (lines 9-12).

        There are none where only one response is stored, or where o* is random.
        """
        candidates = []
        for q in drawn:
            stored = self.buffer.trajectories(q)
            if len(stored) == 1 or self.knobs.trajectory_selection == "random":
                stored = []
            prompt_ids = self.questions[q].prompt_ids
            candidates.append([(prompt_ids, t.token_ids) for t in stored])
        return candidates

    def choose(self, step: int, drawn: list[int], scores: list[list[float]]) -> list[Trajectory]:
        """The o* of each drawn question (line 13). scores: one for each candidate."""
        rule = self.knobs.trajectory_selection
        rng = rng_for("random", self.knobs.seed, step)
        stars = []
        for q, own in zip(drawn, scores, strict=True):
            stored = self.buffer.trajectories(q)
            if rule == "official":  # the sum over tokens, which favours short ones
                own = [score * len(t.token_ids) for score, t in zip(own, stored)]
            if not own:  # nothing was compared
                place = rng.integers(len(stored))
            elif rule == "highest_entropy":
                place = np.argmax(own)
            else:
                place = np.argmin(own)
            stars.append(stored[place])
        return stars

    def plan(self, step: int, drawn: list[int], scores: list[list[float]]) -> list[Group]:
        """The groups of a batch, still without new responses (lines 13-18 and 21).

        Fresh questions come first, then the drawn ones, each with its o*. scores: the mean entropy
        (or NLL) of each candidate under π_θ.
        """
        knobs = self.knobs
        self.reinstate_if_due(step)
        stars = self.choose(step, drawn, scores)
        # Stored questions that were not drawn may come as fresh ones.
        number = knobs.batch_size - len(drawn)
        fresh = self.stream.draw(number, self.buffer.retired, skip=drawn)  # lines 16, 18
        clips = not self.started
        if knobs.clip != "auto":
            clips = knobs.clip == "on"
        self.clip_eps = knobs.clip_eps if clips else None
        groups = [Group(self.questions[q]) for q in fresh]  # B_on
        for q, star in zip(drawn, stars):  # 15: B_exp
            groups.append(Group(self.questions[q], star))
        return groups

    # ---- retired questions: the end of a run, or their return (Table 7) --------------------------

    @property
    def is_exhausted(self) -> bool:
        """Whether too few questions are left for a batch, since the others retired: the run ends.

        A batch of fewer than B is never trained on. The loss divides by the responses that are
        there, so a few last questions would move the weights as far as B do, and can undo a run.
        """
        num_left = len(self.questions) - len(self.buffer.retired)
        return num_left < self.knobs.batch_size

    def reinstate_if_due(self, step: int) -> None:
        """Every `reinstate_every` steps put a tenth of S back into the stream, not into E."""
        every = self.knobs.reinstate_every
        if every and step and step % every == 0:
            retired = sorted(self.buffer.retired)
            rng = rng_for("reinstate", self.knobs.seed, step)
            number = ceil(len(retired) * REINSTATED_SHARE)
            returning = rng.permutation(retired)[:number].tolist()
            self.buffer.reinstate(returning)
            self.stream.insert(returning, rng)

    # ---- phase 2: groups, and what they leave in E and S (lines 21-30 and 32) --------------------

    def seeds(self, step: int, plan: list[Group]) -> list[list[int]]:
        """A seed for each response to generate: K per question, or K - 1 beside an o* (line 23)."""
        knobs = self.knobs
        seeds = []
        for group in plan:
            q = group.question.id
            first = 1 if group.star else 0  # index 0 of the group is o*'s
            places = range(first, knobs.num_rollouts)
            seeds.append([seed_for("rollout", knobs.seed, step, q, i) for i in places])
        return seeds

    def form_groups(self, plan: list[Group], rollouts: list[list[Trajectory]]) -> list[Group]:
        """G* of Eq. 4: put the new responses into the groups of the plan, and return these.

        ValueError where one of them is malformed.
        """
        for group, new in zip(plan, rollouts, strict=True):
            for trajectory in new:
                trajectory.check()
            group.new = new
        return plan

    def store(self, groups: list[Group]) -> None:
        """Store successes, retire what is solved K of K, see if replay may start (25-30, 32)."""
        knobs = self.knobs
        retires = knobs.rho > 0
        if knobs.retire != "auto":
            retires = knobs.retire == "on"
        for group, bucket in zip(groups, self.buckets_of(groups)):
            q = group.question.id
            # With continuous rewards nothing is ever solved.
            solved = knobs.difficulty == "success" and bucket == knobs.num_rollouts
            if solved and retires:
                self.buffer.retire(q)
            elif self.started and bucket > 0:  # k = 0 changes nothing: a stored one stays as it is
                new = self.worth_storing(group)
                if solved:  # not replayed until 0 < k < K again; what is stored of it stays
                    bucket = 0
                    new = []
                # A stored question moves to its new bucket even if it brings nothing new to store:
                # if only o* was right, or all new successes were cut.
                if new or q in self.buffer.stored:
                    self.buffer.add(q, bucket, new)
        # The delayed start: from the next batch on, if the Pass@1 of this one is high enough.
        successes = [group.num_success for group in groups]
        pass_at_1 = np.mean(successes) / knobs.num_rollouts
        if knobs.rho > 0 and pass_at_1 > knobs.start_threshold:
            self.started = True

    def buckets_of(self, groups: list[Group]) -> list[int]:
        """The bucket of each group: its success count k, or its spread of rewards (Sec. 5.3)."""
        if self.knobs.difficulty == "success":
            return [group.num_success for group in groups]
        spreads = np.array([group.rewards.std() for group in groups])  # σ, (Q,)
        width = max(np.ptp(spreads), 1e-6)
        scaled = (spreads - spreads.min()) / width  # σ̃, 0 to 1
        buckets = np.rint(scaled * self.knobs.num_rollouts).clip(min=1)
        # Bucket 0 is not stored. It is for groups whose rewards are all equal, and no other.
        buckets[spreads < 1e-5] = 0
        return buckets.astype(int).tolist()

    def worth_storing(self, group: Group) -> list[Trajectory]:
        """The new successes, or those with a reward above the group's mean (Sec. 5.3).

        Never one that was cut: it often repeats itself, and such a loop has the lowest entropy.
        """
        least = SUCCESS_THRESHOLD
        if self.knobs.difficulty == "spread":
            least = group.rewards.mean()
        return [t for t in group.new if t.finished and t.reward > least]

    # ---- the batch of Eq. 4 (line 31) ------------------------------------------------------------

    def set_advantages(self, groups: list[Group]) -> None:
        """Give every group the advantages of Eq. 2, times the indicator of Eq. 14."""
        rewards = torch.tensor(np.array([group.rewards for group in groups]))  # (Q, K)
        all_advantages = group_advantages(rewards, self.knobs.normalize_std).numpy()  # (Q, K)
        low, high = self.knobs.alpha
        for group, advantages in zip(groups, all_advantages):
            accuracy = group.num_success / len(advantages)
            is_taught = low <= accuracy <= high
            group.advantages = advantages * is_taught

    def mini_batches(self, step: int, groups: list[Group]) -> list[list[Group]]:
        """The groups, shuffled, in `num_mini_batches` parts, each with its share of o*."""
        rng = rng_for("mini-batches", self.knobs.seed, step)
        order = rng.permutation(len(groups))
        shuffled = [groups[i] for i in order]
        shuffled.sort(key=lambda group: group.star is None)  # the replayed ones first
        # Dealt like cards, so that their numbers of replayed groups differ by one at most.
        number = self.knobs.num_mini_batches
        return [shuffled[i::number] for i in range(number)]

    # ---- what a checkpoint keeps -----------------------------------------------------------------

    def state_dict(self) -> dict:
        """The stream and the delayed start, in plain values; E and S have a file of their own."""
        return {
            "epoch": self.stream.epoch,
            "queue": list(self.stream.queue),
            "started": self.started,
        }

    def load_state_dict(self, state: dict, buffer_path) -> None:
        """Go on from `state_dict()` and from the file that `buffer.save` wrote beside it."""
        self.buffer = ReplayBuffer.load(buffer_path)
        self.stream.epoch = state["epoch"]
        self.stream.queue = state["queue"]
        # The resumed run may have another ρ; with ρ = 0 nothing is stored.
        self.started = state["started"] and self.knobs.rho > 0

"""Experience management: phase 1 of Algorithm 1 and the bookkeeping of phase 2 (Sec. 4.1).

No GPU and no communication here: everything is a deterministic function of the seed, the buffer and
what is passed in, so that every rank computes the same plan.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from math import ceil, inf
from typing import Literal, get_args, get_origin
from zlib import crc32

import numpy as np
import torch

from buffer import ReplayBuffer, Trajectory
from loss import group_advantages
from sampler import FreshStream, rng_for, sample_questions, sample_seed, sample_uniform

REINSTATED_SHARE = 0.1  # of the retired set, which returns to the stream (Table 7)


@dataclass
class Knobs:
    """What `Experience` reads, with Table 4's values; σ and CLIP are as in the official code.

    Raises one ValueError that lists every impossible value. train.py's `Config` adds its own knobs.
    """

    seed: int = 0  # of question order, mini-batches and every sample
    batch_size: int = 128  # B, questions of a batch
    num_rollouts: int = 8  # K, responses to a question; a replayed one gets K - 1 new ones
    num_mini_batches: int = 2  # optimiser steps of a batch, each on its share of the questions
    rho: float = 0.5  # ρ, share of replayed questions; 0: on-policy Dr. GRPO
    # once a batch's Pass@1 (the share of rewards above 0.5) exceeds this, successes are stored from
    # the next batch on, for good, and replayed from the one after it; negative: stored from the
    # first, replayed from the second
    start_threshold: float = 0.35
    # which stored questions return; uniform: Table 6's "no question selection"
    question_selection: Literal["gaussian", "uniform"] = "gaussian"
    # μ, centre of the bucket weights, as an accuracy; 0.125, one right answer of eight, prefers
    # rarely solved questions
    mu: float = 0.5
    # σ, width of the bucket weights N(k; μK, σ), in successes as in the official code; for the
    # paper's text, N(k/K; μ, 1), set it to K
    sigma: float = 1.0
    # which stored response is o*: that with the lowest mean entropy under the policy of now, or the
    # lowest NLL (Alg. 1); random and highest_entropy are Table 6's; official: the lowest *sum* of
    # entropies, which the official code takes in effect
    trajectory_selection: Literal["entropy", "nll", "random", "highest_entropy", "official"] = (
        "entropy"
    )
    # what the buckets go by: success count, or spread of continuous rewards (Sec. 5.3)
    difficulty: Literal["success", "spread"] = "success"
    # whether questions solved K of K times retire; auto: unless ρ = 0 or difficulty is spread
    retire: Literal["auto", "on", "off"] = "auto"
    # every so many steps (25 in Table 7), and whenever fewer than B questions are left, a tenth of
    # the retired ones returns to the stream, or as many as a batch lacks if that is more; 0: none
    # returns, and the run ends once fewer than B are left
    reinstate_every: int = 0
    max_trajectories: int = 0  # stored responses at most, the newest; 0: no limit
    # whether new tokens are clipped; auto: until successes are stored, always if ρ = 0
    clip: Literal["auto", "on", "off"] = "auto"
    clip_eps: float = 0.2  # ε of CLIP
    normalize_std: bool = False  # divide advantages by the group's std, as GRPO does
    alpha_low: float = 0.0  # Masked GRPO (Eq. 14): groups with a lower k/K get advantage 0
    alpha_high: float = 1.0  # Masked GRPO: groups with a higher k/K get advantage 0

    def __post_init__(self):
        problems = [*self.problems()]
        if problems:
            raise ValueError("\n".join(problems))

    @property
    def max_replayed(self) -> int:
        """⌊ρB⌋, the replayed questions of a batch at most."""
        # The small number is there because 0.29 * 100 is 28.999... in floating point.
        return int(self.rho * self.batch_size + 1e-9)

    def problems(self) -> Iterator[str]:
        """A sentence for each impossible value or combination."""
        for f in fields(self):
            value = getattr(self, f.name)
            if get_origin(f.type) is Literal and value not in get_args(f.type):
                yield f"{f.name} must be one of {', '.join(get_args(f.type))}, got {value!r}"
        ranges = {
            "seed": (0, 2**63 - 1),
            "batch_size": (1, inf),
            "num_rollouts": (2, inf),  # a group of one has no advantage
            "num_mini_batches": (1, self.batch_size),
            "rho": (0, 1),
            "start_threshold": (-inf, 1),  # a share, not a percentage
            "mu": (0, 1),
            "sigma": (0.001, inf),
            "reinstate_every": (0, inf),
            "max_trajectories": (0, inf),
            "clip_eps": (0.001, 1),
            "alpha_low": (0, self.alpha_high),
            "alpha_high": (0, 1),
        }
        for name, (least, most) in ranges.items():
            value = getattr(self, name)
            if not least <= value <= most:
                yield f"{name} must be in [{least}, {most}], got {value}"
        if self.rho > 0 and self.max_replayed == 0:
            yield (
                f"rho={self.rho} of batch_size={self.batch_size} is less than one question, so that"
                " none would return: raise one of them, or set rho to 0 for on-policy Dr. GRPO"
            )
        if self.difficulty == "spread" and self.retire == "on":
            yield "retire='on' needs success counts; with difficulty='spread' nothing retires"


@dataclass
class Choice:
    """The o* of a question that returns, and how it was chosen."""

    question: int
    bucket: int  # k, from which the question was drawn
    star: Trajectory  # o*
    scores: list[float]  # by which its stored responses were compared; [] if they were not
    place: int  # index of o* among the question's stored responses


@dataclass
class Plan:
    """A batch: its questions, their o*, the ε of CLIP, and what `store` is to take over."""

    step: int
    fresh: list[int]  # B_on: question ids
    choices: list[Choice]  # B_exp: the questions that return, each with its o*
    # ε of CLIP for new tokens, None for no clip; kept here because `store` may end CLIP before the
    # update
    clip_eps: float | None
    reinstated: list[int]  # retired questions that are back in the stream (Table 7)
    stream: FreshStream  # as it is once this batch has been drawn from it

    @property
    def stars(self) -> dict[int, Trajectory]:
        """B_exp as {question id: o*}."""
        return {choice.question: choice.star for choice in self.choices}

    @property
    def question_ids(self) -> list[int]:
        """All questions of the batch, the fresh ones first."""
        return self.fresh + list(self.stars)


@dataclass
class Group:
    """G*: a question with its K trajectories, an o* and K - 1 new ones, or K new ones."""

    question: object  # one of those that `Experience` was given
    star: Trajectory | None  # the replayed o*, where there is one
    new: list[Trajectory]  # what was generated in this step
    advantages: np.ndarray | None = None  # float32 (K,), by `with_advantages`

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

    @property
    def checksum(self) -> int:
        """A checksum of all tokens and rewards, for ranks to compare."""
        tokens = np.concatenate([t.token_ids for t in self.trajectories])
        return crc32(tokens.tobytes() + self.rewards.tobytes())


class Experience:
    """The replay buffer E, the retired set S, the delayed start and the fresh stream of one run.

    `store` changes them and nothing else does: until then a batch may be planned again, or given
    up. questions: objects with an `id` and with `prompt_ids`. ValueError unless the ids are ints
    that all differ, and there are enough for a batch.
    """

    def __init__(self, knobs: Knobs, questions: list):
        self.knobs = knobs
        self.questions = {q.id: q for q in questions}
        all_differ = len(self.questions) == len(questions)
        all_ints = all(type(id) is int for id in self.questions)
        if not (all_differ and all_ints):
            raise ValueError("the ids of questions must be ints, and no two the same")
        if len(questions) < knobs.batch_size:
            raise ValueError(
                f"{len(questions)} questions are fewer than a batch of {knobs.batch_size}: lower"
                " --batch_size, or give more questions"
            )
        self.buffer = ReplayBuffer(knobs.max_trajectories)
        self.stream = FreshStream(list(self.questions), knobs.seed)
        # Whether E is in use; in its first batch it is still empty. It stays true once it is.
        self.started = knobs.rho > 0 and knobs.start_threshold < 0

    # ---- the delayed start, which ends CLIP; retirement, which does not wait for it --------------

    @property
    def clip_eps_now(self) -> float | None:
        """ε of CLIP for new tokens in the next batch; None: no clip."""
        knobs = self.knobs
        if knobs.clip == "auto":
            clips = not self.started
        else:
            clips = knobs.clip == "on"
        return knobs.clip_eps if clips else None

    @property
    def is_retiring(self) -> bool:
        """Whether a question that is `solved` in `store` retires (25-26); by spread none is."""
        if self.knobs.retire == "auto":
            return self.knobs.rho > 0
        return self.knobs.retire == "on"

    def _start_if_due(self, groups: list[Group]) -> None:
        """Store from the next batch on if the Pass@1 of this one is high enough."""
        pass_at_1 = np.mean([t.is_success for g in groups for t in g.trajectories])
        if self.knobs.rho > 0 and pass_at_1 > self.knobs.start_threshold:
            self.started = True

    # ---- phase 1: draw, choose o*, plan a batch (lines 3-18); nothing here changes the state -----

    @property
    def num_missing(self) -> int:
        """How many questions the next batch lacks, because too many have retired.

        A batch of fewer than B is never trained on. The loss divides by the responses that are
        there, so a few last questions would move the weights as far as B do, and can undo a run.
        """
        num_left = len(self.questions) - len(self.buffer.retired)
        return max(0, self.knobs.batch_size - num_left)

    @property
    def is_exhausted(self) -> bool:
        """Whether a batch lacks questions and none is to be reinstated: the run ends."""
        return self.num_missing > 0 and not self.knobs.reinstate_every

    def draw(self, step: int) -> list[int]:
        """Which stored questions return in this step, by Algorithm 2 (lines 4-8)."""
        if not self.started:
            return []
        knobs = self.knobs
        rng = rng_for("plan", knobs.seed, step)
        n = min(knobs.max_replayed, len(self.buffer))  # line 7
        buckets = self.buffer.buckets
        if knobs.question_selection == "uniform":
            return sample_uniform(buckets, n, rng)
        K = knobs.num_rollouts
        return sample_questions(buckets, n, K, rng, mu=knobs.mu, sigma=knobs.sigma)  # 5, 6, 8

    def candidates(self, drawn: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
        """(prompt ids, response ids) of the stored responses that are compared (lines 9-12)."""
        sequences = []
        for q in drawn:
            if self._is_compared(q):
                prompt_ids = self.questions[q].prompt_ids
                sequences += [(prompt_ids, t.token_ids) for t in self.buffer.trajectories(q)]
        return sequences

    def _is_compared(self, q: int) -> bool:
        """Whether a question has several stored responses, and the rule looks at them."""
        rule = self.knobs.trajectory_selection
        return rule != "random" and len(self.buffer.trajectories(q)) > 1

    def plan(self, step: int, drawn: list[int], scores: Sequence[float]) -> Plan:
        """The batch: the drawn questions, each with its o*, and fresh ones (lines 13-18).

        scores: the mean entropy (or NLL) under π_θ of each of `candidates(drawn)`, in order.
        RuntimeError where the questions are exhausted.
        """
        if self.is_exhausted:
            raise RuntimeError("fewer questions are left than a batch has: see is_exhausted")
        knobs = self.knobs
        reinstated = self._reinstated(step)
        stream = self.stream.copy()
        stream.insert(reinstated, rng_for("insert", knobs.seed, step))
        retired = self.buffer.retired.difference(reinstated)
        # Stored questions that were not drawn may come as fresh ones.
        fresh = stream.draw(knobs.batch_size - len(drawn), retired, skip=drawn)  # lines 16, 18
        return Plan(
            step=step,
            fresh=fresh,
            choices=self.choose(step, drawn, scores),
            clip_eps=self.clip_eps_now,
            reinstated=reinstated,
            stream=stream,
        )

    def choose(self, step: int, drawn: list[int], scores: Sequence[float]) -> list[Choice]:
        """The o* of each drawn question: by default the response of lowest entropy (line 13)."""
        rule = self.knobs.trajectory_selection
        rng = rng_for("random", self.knobs.seed, step)
        best = max if rule == "highest_entropy" else min
        unread = iter(scores)  # as `candidates` has them: none for a question that is not compared
        choices = []
        for q in drawn:
            stored = self.buffer.trajectories(q)
            own = []
            if self._is_compared(q):
                own = [next(unread) for _ in stored]
                if rule == "official":  # mean · length: the sum over tokens, which favours few
                    own = [score * len(t.token_ids) for score, t in zip(own, stored)]
                place = own.index(best(own))
            else:  # any of them by the rule "random", or the only one, at place 0
                place = rng.integers(len(stored))
            bucket = self.buffer.bucket_of(q)
            choices.append(Choice(q, bucket, stored[place], own, place))
        return choices

    def _reinstated(self, step: int) -> list[int]:
        """The retired questions that come back into the stream, not into E, in this step (Table 7).

        A tenth, or as many as a batch lacks if that is more: every `reinstate_every` steps, and
        when a batch lacks any. (With 0 `plan` has raised by then.)
        """
        every = self.knobs.reinstate_every
        is_due = every and step > 0 and step % every == 0
        if not is_due and not self.num_missing:
            return []
        retired = sorted(self.buffer.retired)
        # Never more than have retired, since there are at least B questions.
        number = max(ceil(len(retired) * REINSTATED_SHARE), self.num_missing)
        rng = rng_for("reinstate", self.knobs.seed, step)
        return rng.choice(retired, number, replace=False).tolist()

    # ---- phase 2: groups, and what they leave in E and S (lines 21-30 and 32) --------------------

    def seeds(self, plan: Plan) -> list[list[int]]:
        """A seed for each response to generate: K per question, or K - 1 beside an o* (line 23)."""
        seeds = []
        stars = plan.stars
        for q in plan.question_ids:
            first = 1 if q in stars else 0  # index 0 of the group is o*'s
            indices = range(first, self.knobs.num_rollouts)
            seeds.append([sample_seed(self.knobs.seed, plan.step, q, i) for i in indices])
        return seeds

    def form_groups(self, plan: Plan, rollouts: list[list[Trajectory]]) -> list[Group]:
        """G* of Eq. 4 for each question of the plan: its o*, if any, and its new trajectories.

        ValueError where they are not K together, or where one of them is malformed.
        """
        groups = []
        stars = plan.stars
        for q, new in zip(plan.question_ids, rollouts, strict=True):
            for trajectory in new:
                trajectory.check()
            group = Group(self.questions[q], stars.get(q), new)
            if len(group.trajectories) != self.knobs.num_rollouts:
                raise ValueError(
                    f"question {q}: {len(new)} new responses, where `seeds` asks for"
                    f" {self.knobs.num_rollouts}, one less beside an o*"
                )
            groups.append(group)
        return groups

    def store(self, plan: Plan, groups: list[Group]) -> None:
        """Store successes, retire what is solved K of K, see if replay may start (25-30, 32).

        The only method that changes the state. From the plan it takes over the stream and which
        questions were reinstated.
        """
        self.stream = plan.stream
        self.buffer.reinstate(plan.reinstated)
        knobs = self.knobs
        for group, k in zip(groups, self._buckets(groups)):  # k: successes, or bucket by spread
            q = group.question.id
            solved = knobs.difficulty == "success" and k == knobs.num_rollouts
            if solved:
                if self.is_retiring:
                    self.buffer.retire(q)
                else:
                    self.buffer.shelve(q)  # not replayed until 0 < k < K again
            elif self.started and k > 0:  # k = 0 changes nothing: a stored one keeps its bucket
                new = self._worth_storing(group)
                # A stored question moves to bucket k even if it brings nothing new to store: if
                # only o* was right, or all new successes were cut.
                if new or q in self.buffer.stored:
                    self.buffer.add(q, k, new)
        self._start_if_due(groups)

    def _buckets(self, groups: list[Group]) -> list[int]:
        """The bucket of each group: its success count k, or its spread of rewards (Sec. 5.3).

        The spread, scaled by the smallest and the largest of these groups, gives 1 to K.
        """
        if self.knobs.difficulty == "success":
            return [g.num_success for g in groups]
        spread = np.array([g.rewards.std() for g in groups])
        above = spread - spread.min()
        scaled = above / max(above.max(), 1e-6)  # 0..1
        buckets = np.rint(scaled * self.knobs.num_rollouts).astype(int)  # 0..K
        # Bucket 0 is not stored, so it is for groups whose rewards are all equal, and for no other.
        differ = [np.ptp(g.rewards) > 0 for g in groups]
        buckets = np.where(differ, np.maximum(buckets, 1), 0)
        return buckets.tolist()

    def _worth_storing(self, group: Group) -> list[Trajectory]:
        """The new successes, or those with a reward above the group's mean (Sec. 5.3).

        Never one that was cut: it often repeats itself, and such a loop has the lowest entropy.
        """
        finished = [t for t in group.new if t.finished]
        if self.knobs.difficulty == "spread":
            mean = group.rewards.mean()
            return [t for t in finished if t.reward > mean]
        return [t for t in finished if t.is_success]

    # ---- the batch of Eq. 4 (line 31) ------------------------------------------------------------

    def with_advantages(self, groups: list[Group]) -> list[Group]:
        """The groups with the advantages of Eq. 2, which Eq. 14 sets to 0 where asked."""
        knobs = self.knobs
        rewards = torch.tensor(np.array([group.rewards for group in groups]))  # (Q, K)
        all_advantages = group_advantages(rewards, knobs.normalize_std).numpy()  # (Q, K)
        result = []
        for group, advantages in zip(groups, all_advantages):
            accuracy = group.num_success / len(group.trajectories)
            if not knobs.alpha_low <= accuracy <= knobs.alpha_high:
                advantages = np.zeros_like(advantages)
            result.append(replace(group, advantages=advantages))
        return result

    def mini_batches(self, step: int, groups: list[Group]) -> list[list[Group]]:
        """The groups, shuffled, in `num_mini_batches` parts with equally many replayed ones."""
        knobs = self.knobs
        rng = rng_for("mini-batches", knobs.seed, step)
        with_star = [g for g in groups if g.star]
        without = [g for g in groups if not g.star]
        shuffled = []
        for kind in (with_star, without):
            shuffled += [kind[i] for i in rng.permutation(len(kind))]
        # Dealt like cards, so that the mini-batches share the replayed groups equally.
        number = knobs.num_mini_batches
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
        """Go on from `state_dict()` and from the file that `buffer.save` wrote beside it.

        ValueError for an unknown question.
        """
        self.buffer = buffer = ReplayBuffer.load(buffer_path, self.knobs.max_trajectories)
        unknown = {*buffer.stored, *buffer.retired, *state["queue"]} - self.questions.keys()
        if unknown:
            raise ValueError(
                f"the checkpoint names question {min(unknown)}, which this run has not: were its"
                " files or its reward changed?"
            )
        self.stream.epoch = state["epoch"]
        self.stream.queue = state["queue"]
        # Started before, or now by a threshold below 0; never with ρ = 0.
        self.started = self.knobs.rho > 0 and (self.started or state["started"])

"""Experience management: phase 1 of Algorithm 1 and the bookkeeping of phase 2 (Sec. 4.1).

No GPU and no communication here: everything is a deterministic function of the seed, the buffer and
what is passed in, so that every rank computes the same plan.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from math import ceil, inf
from typing import Literal, get_args, get_origin
from zlib import crc32

import numpy as np
import torch

from buffer import SUCCESS_THRESHOLD, ReplayBuffer, Trajectory
from loss import group_advantages
from sampler import FreshStream, rng_for, sample_questions, sample_seed, sample_uniform

REINSTATED = 0.1  # share of the retired set that returns to the stream (Table 7)


@dataclass
class Knobs:
    """What `Experience` reads, with Table 4's values; σ and CLIP are as in the official code.

    ValueError says all that is impossible. train.py's `Config` adds its own knobs to these.
    """

    seed: int = 0  # of question order, mini-batches and every sample
    batch_size: int = 128  # B, questions of a batch
    num_rollouts: int = 8  # K, responses to a question; a replayed one gets K - 1 new ones
    mini_batches: int = 2  # optimiser steps of a batch, each on its share of the questions
    rho: float = 0.5  # ρ, share of replayed questions; 0: on-policy Dr. GRPO
    # replay starts once a batch's Pass@1 exceeds this: the next batch is stored, the one after it
    # may replay; negative: with the first batch
    start_threshold: float = 0.35
    # which stored questions return; uniform: Table 6's "no question selection"
    question_selection: Literal["gaussian", "uniform"] = "gaussian"
    # μ, centre of the bucket weights, as an accuracy; 0.125, one right answer of eight, prefers
    # rarely solved questions
    mu: float = 0.5
    # σ, width of the bucket weights N(k; μK, σ), in successes as in the official code; K times as
    # much is the paper's text, N(k/K; μ, σ)
    sigma: float = 1.0
    # which stored response is o*: that with the lowest mean entropy under the policy of now, or the
    # lowest NLL (Alg. 1); random and highest_entropy are Table 6's; official: the lowest *sum* of
    # entropies, which the official code comes to
    trajectory_selection: Literal["entropy", "nll", "random", "highest_entropy", "official"] = (
        "entropy"
    )
    # what the buckets go by: success count, or spread of continuous rewards (Sec. 5.3)
    difficulty: Literal["success", "spread"] = "success"
    # whether questions solved K of K times retire; auto: unless ρ = 0 or difficulty is spread
    retire: Literal["auto", "on", "off"] = "auto"
    # steps after which a tenth of the retired questions returns (25 in Table 7), and at once as
    # many as a whole batch needs; 0: never, and the run ends where fewer than B are left
    reinstate_every: int = 0
    max_trajectories: int = 0  # stored responses at most, the newest; 0: no limit
    # whether on-policy tokens are clipped; auto: until replay starts, always if ρ = 0
    clip: Literal["auto", "on", "off"] = "auto"
    clip_eps: float = 0.2  # ε of CLIP
    normalize_std: bool = False  # divide advantages by the group's std, as GRPO does
    alpha_low: float = 0.0  # Masked GRPO (Eq. 14) leaves out groups with a lower k/K
    alpha_high: float = 1.0  # Masked GRPO leaves out groups with a higher k/K

    def __post_init__(self):
        problems = [*self.problems()]
        if problems:
            raise ValueError("\n".join(problems))

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
            "mini_batches": (1, self.batch_size),
            "rho": (0, 1),
            "start_threshold": (-inf, 1),  # no percentage
            "mu": (0, 1),
            "sigma": (0.001, inf),
            "reinstate_every": (0, inf),
            "max_trajectories": (0, inf),
            "clip_eps": (0, 1),
            "alpha_low": (0, self.alpha_high),
            "alpha_high": (0, 1),
        }
        for name, (least, most) in ranges.items():
            value = getattr(self, name)
            if not least <= value <= most:
                yield f"{name} must be in [{least}, {most}], got {value}"
        if self.rho > 0 and int(self.rho * self.batch_size + 1e-9) == 0:  # ⌊ρB⌋
            yield (
                f"rho={self.rho} of batch_size={self.batch_size} is less than one question, so that"
                " none would return: raise one of them, or set rho to 0 for on-policy Dr. GRPO"
            )
        if self.difficulty == "spread" and self.retire == "on":
            yield "retire='on' needs success counts; with difficulty='spread' nothing retires"


@dataclass
class Plan:
    """What a step trains on: questions, o*, and whether to clip."""

    step: int
    fresh: list[int]  # B_on: question ids
    stars: dict[int, Trajectory]  # B_exp: question id -> o*
    clip_eps: float | None  # ε of CLIP for on-policy tokens, None for no clip
    scores: dict[Trajectory, float]  # of all that could be o*, where there was a choice
    drawn_from: list[int]  # the bucket k of each replayed question

    @property
    def question_ids(self) -> list[int]:
        """All questions of the batch, the fresh ones first."""
        return [*self.fresh, *self.stars]


@dataclass
class Group:
    """G*: a question with its K trajectories, an o* and K - 1 new ones, or K new ones."""

    question: object  # what `Experience` was given
    star: Trajectory | None  # the replayed o*, where there is one
    new: list[Trajectory]  # what was generated in this step
    advantages: np.ndarray | None = None  # float32 (K,), by `with_advantages`

    @property
    def trajectories(self) -> list[Trajectory]:
        """All K, o* first."""
        return [self.star, *self.new] if self.star else self.new

    @property
    def rewards(self) -> np.ndarray:
        """float32 (K,)."""
        return np.array([t.reward for t in self.trajectories], dtype=np.float32)

    @property
    def num_success(self) -> int:
        """k: successes among the K responses, o* included."""
        return int((self.rewards > SUCCESS_THRESHOLD).sum())


class Experience:
    """The replay buffer E, the retired set S, the delayed start and the fresh stream of one run.

    knobs: `Knobs`, or another object with its attributes, such as train.py's `Config`. questions:
    objects with an `id` and with `prompt_ids`, for `uncertainty`. ValueError unless the ids are
    ints, no two the same.
    """

    def __init__(self, knobs, questions: list):
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
        self.buffer = ReplayBuffer(knobs.max_trajectories or None)
        self.stream = FreshStream(list(self.questions), knobs.seed)
        # Stays true once it is. `replays` also checks ρ, which a resumed run may have changed.
        self.started = knobs.rho > 0 and knobs.start_threshold < 0

    # ---- the delayed start: all that changes with it (retirement does not wait) ------------------

    @property
    def replays(self) -> bool:
        """Whether successes are stored and replayed from now on."""
        return self.knobs.rho > 0 and self.started

    @property
    def clip_eps(self) -> float | None:
        """ε of CLIP for on-policy tokens; None: no clip."""
        knobs = self.knobs
        if knobs.clip == "auto":
            clips = not self.replays
        else:
            clips = knobs.clip == "on"
        return knobs.clip_eps if clips else None

    @property
    def retires(self) -> bool:
        """Whether questions solved K of K leave the stream (lines 25-26)."""
        if self.knobs.difficulty == "spread":
            return False
        if self.knobs.retire == "auto":
            return self.knobs.rho > 0
        return self.knobs.retire == "on"

    def _start_if_due(self, groups: list[Group]) -> None:
        """Start replay for good if the Pass@1 of this batch is high enough: the next is stored."""
        num_success = sum(g.num_success for g in groups)
        num_responses = sum(len(g.trajectories) for g in groups)
        pass_at_1 = num_success / num_responses
        if self.knobs.rho > 0 and pass_at_1 > self.knobs.start_threshold:
            self.started = True

    # ---- phase 1: plan a batch (lines 3-19) ------------------------------------------------------

    @property
    def num_missing(self) -> int:
        """How many questions a batch lacks, as too many have retired; 0 or less if none.

        A smaller batch is never trained on: the loss divides by its responses, so that its last
        questions would move the weights as far as B do, and can undo a run.
        """
        left = len(self.questions) - len(self.buffer.retired)
        return self.knobs.batch_size - left

    def plan(self, step: int, uncertainty: Callable) -> Plan | None:
        """The B questions of a batch, and o* for the replayed ones; None when fewer are left.

        `uncertainty` takes a list of (prompt ids, response ids) and gives the mean entropy (or NLL)
        of each under π_θ. It is not called where there is nothing to choose.
        """
        knobs = self.knobs
        rng = rng_for("plan", knobs.seed, step)
        if knobs.reinstate_every and step > 0:  # before step 0 nothing has retired
            if self.num_missing > 0 or step % knobs.reinstate_every == 0:
                self._reinstate(rng)
        if self.num_missing > 0:
            return None
        # ⌊ρB⌋. The small number is there because 0.29 * 100 is 28.999... in floating point.
        most = int(knobs.rho * knobs.batch_size + 1e-9)
        n = min(most, len(self.buffer)) if self.replays else 0  # line 7
        buckets = self.buffer.buckets
        if knobs.question_selection == "uniform":
            drawn = sample_uniform(buckets, n, rng)
        else:  # lines 5, 6, 8
            K = knobs.num_rollouts
            drawn = sample_questions(buckets, n, K, rng, mu=knobs.mu, sigma=knobs.sigma)
        stars, scores = self.choose(drawn, uncertainty, rng)  # lines 9-15
        left = knobs.batch_size - n
        # Those in the buffer that were not drawn may come as fresh ones.
        fresh = self.stream.draw(left, self.buffer.retired, skip=drawn)  # lines 16, 18
        return Plan(
            step=step,
            fresh=fresh,
            stars=stars,
            clip_eps=self.clip_eps,
            scores=scores,
            drawn_from=[self.buffer.bucket_of(q) for q in drawn],
        )

    def choose(self, drawn: list[int], uncertainty: Callable, rng) -> tuple[dict, dict]:
        """{question: o*}, the stored response that the rule prefers, and {response: its score}.

        By default that is the lowest mean entropy under π_θ. A question with one stored response
        needs no score.
        """
        rule = self.knobs.trajectory_selection
        stored = {q: self.buffer.trajectories(q) for q in drawn}
        if rule == "random":
            stars = {q: ts[rng.integers(len(ts))] for q, ts in stored.items()}
            return stars, {}

        rivals = []
        sequences = []  # theirs: (prompt ids, response ids)
        for q, trajectories in stored.items():
            if len(trajectories) > 1:
                rivals += trajectories
                sequences += [(self.questions[q].prompt_ids, t.token_ids) for t in trajectories]
        uncertainties = uncertainty(sequences) if sequences else []  # lines 9-12
        scores = dict(zip(rivals, uncertainties, strict=True))
        if rule == "official":  # a sum over the response, so that shorter ones are preferred
            scores = {t: score * len(t.token_ids) for t, score in scores.items()}
        best = max if rule == "highest_entropy" else min
        # A response without rivals has the score None, which is compared with nothing.
        stars = {q: best(ts, key=scores.get) for q, ts in stored.items()}  # line 13: o*
        return stars, scores

    def _reinstate(self, rng: np.random.Generator) -> None:
        """Table 7: a tenth of the retired questions goes back to the stream, not into E.

        More where a batch needs more.
        """
        retired = sorted(self.buffer.retired)
        number = max(ceil(len(retired) * REINSTATED), self.num_missing)
        back = rng.choice(retired, number, replace=False).tolist()
        self.buffer.reinstate(back)
        self.stream.insert(back, rng)

    # ---- phase 2: groups, and what they leave in E and S (lines 21-30 and 32) --------------------

    def seeds(self, plan: Plan) -> list[list[int]]:
        """A seed for each response to generate: K a question, or K - 1 beside an o* (line 23)."""
        seeds = []
        for q in plan.question_ids:
            first = 1 if q in plan.stars else 0  # place 0 of the group is o*'s
            of_question = []
            for i in range(first, self.knobs.num_rollouts):
                seed = sample_seed(self.knobs.seed, plan.step, q, i)
                of_question.append(seed)
            seeds.append(of_question)
        return seeds

    def group(self, plan: Plan, rollouts: list[list[Trajectory]]) -> list[Group]:
        """G* of Eq. 4 for each question of the plan: its o*, if any, and its new trajectories.

        ValueError where they are not K together.
        """
        groups = []
        for q, new in zip(plan.question_ids, rollouts, strict=True):
            group = Group(self.questions[q], plan.stars.get(q), new)
            if len(group.trajectories) != self.knobs.num_rollouts:
                raise ValueError(
                    f"question {q}: {len(new)} new responses, where `seeds` asks for"
                    f" {self.knobs.num_rollouts}, one less beside an o*"
                )
            groups.append(group)
        return groups

    def store(self, groups: list[Group]) -> list[tuple]:
        """Store successes, retire what is solved K of K, see if replay may start (25-30, 32).

        Returns of each group its question, its bucket and a checksum of its tokens, for the ranks
        to compare.
        """
        K = self.knobs.num_rollouts
        checksums = []
        for group, k in zip(groups, self._buckets(groups)):
            q = group.question.id
            solved = self.knobs.difficulty == "success" and k == K
            if solved:
                if self.retires:
                    self.buffer.retire(q)
                else:
                    self.buffer.shelve(q)  # out of its bucket, so not replayed; responses stay
            elif self.replays and k > 0:  # with k = 0 a stored question keeps its bucket
                new = self._worth_storing(group)
                # `new` may be empty: only o* was right, or the right ones were cut. The question
                # still moves to bucket k.
                if new or q in self.buffer.stored:
                    self.buffer.add(q, k, new)
            tokens = np.concatenate([t.token_ids for t in group.trajectories])
            checksums.append((q, k, crc32(tokens)))
        self._start_if_due(groups)
        return checksums

    def _buckets(self, groups: list[Group]) -> list[int]:
        """The bucket of each group: its success count k, or its spread of rewards (Sec. 5.3).

        The spread, scaled by the smallest and the largest of these groups, gives a bucket from 1
        to K. A group whose rewards are all equal has 0.
        """
        if self.knobs.difficulty == "success":
            return [g.num_success for g in groups]
        spread = np.array([g.rewards.std() for g in groups])
        above = spread - spread.min()
        scaled = above / max(above.max(), 1e-6)  # 0..1
        buckets = np.rint(scaled * self.knobs.num_rollouts).astype(int)  # 0..K
        differ = [np.ptp(g.rewards) > 0 for g in groups]
        buckets = np.where(differ, np.maximum(buckets, 1), 0)
        return buckets.tolist()

    def _worth_storing(self, group: Group) -> list[Trajectory]:
        """The new successes, or those with a reward above the group's mean (Sec. 5.3).

        Never one that was cut: a response that repeats itself has the lowest entropy of all.
        """
        bar = group.rewards.mean() if self.knobs.difficulty == "spread" else SUCCESS_THRESHOLD
        return [t for t in group.new if t.reward > bar and t.finished]

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
        """The groups, shuffled and dealt out, those with an o* first."""
        knobs = self.knobs
        rng = rng_for("mini-batches", knobs.seed, step)
        with_star = [g for g in groups if g.star]
        without = [g for g in groups if not g.star]
        shuffled = []
        for kind in (with_star, without):
            shuffled += [kind[i] for i in rng.permutation(len(kind))]
        # Dealt like cards, so that the mini-batches share the replayed groups equally.
        parts = [[] for _ in range(knobs.mini_batches)]
        for i, group in enumerate(shuffled):
            parts[i % knobs.mini_batches].append(group)
        return [part for part in parts if part]

    # ---- what a checkpoint keeps, and what undoes a plan that was given up -----------------------

    def state_dict(self) -> dict:
        """All that `plan` changes, and the delayed start, in plain values; E has its own file."""
        return {
            "epoch": self.stream.epoch,
            "queue": list(self.stream.queue),
            "retired": sorted(self.buffer.retired),
            "started": self.started,
        }

    def load_buffer(self, path) -> None:
        """Go on with the buffer that `buffer.save` has written there; `load_state_dict` follows."""
        self.buffer = ReplayBuffer.load(path)

    def load_state_dict(self, state: dict) -> None:
        """Go on from `state_dict()`; ValueError for an unknown question."""
        unknown = {*self.buffer.stored, *state["retired"], *state["queue"]} - self.questions.keys()
        if unknown:
            raise ValueError(
                f"the checkpoint names question {min(unknown)}, which this run has not: were its"
                " files or its reward changed?"
            )
        self.stream.epoch = state["epoch"]
        self.stream.queue = list(state["queue"])
        for q in state["retired"]:  # a plan may have put some back
            self.buffer.retire(q)
        # A resumed run may have been given a threshold below 0, which starts replay at once.
        self.started = self.started or state["started"]

"""Experience management: phase 1 of Algorithm 1 and the bookkeeping of phase 2 (Sec. 4.1).

No GPU and no communication here: everything is a deterministic function of the seed, the buffer and
what is passed in, so that every rank computes the same plan.
"""

from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import torch

from buffer import ReplayBuffer, Trajectory
from config import Config
from data import Question, sample_seed
from loss import group_advantages
from reward import SUCCESS
from sampler import FreshStream, generator, sample_questions, sample_uniform

SCORED_BY = {
    "nll": "mean_nll"
}  # trajectory_selection -> what of Policy scores the stored; else mean_entropy
REINSTATED = 0.1  # share of the retired set that returns to the stream (Table 7)


@dataclass
class Plan:
    """What a step trains on: questions, o*, and whether to clip."""

    step: int
    fresh: list[int]  # B_on: question ids
    replayed: dict[int, Trajectory]  # B_exp: question id -> o*
    clip_eps: float | None = None  # ε of CLIP for on-policy tokens, None for no clip
    selected_score: float = 0.0  # mean score of the chosen o* where there was a choice, in nats
    candidate_score: float = 0.0  # and of all that were there to be chosen
    drawn_from: tuple[int, ...] = ()  # the bucket k of each replayed question

    @property
    def questions(self) -> list[int]:
        return [*self.fresh, *self.replayed]


@dataclass
class Group:
    """G*: a question with its K trajectories; the replayed o*, where there is one, stands first."""

    question: Question
    trajectories: list[Trajectory]
    replayed: bool = False
    advantages: np.ndarray | None = None  # float32 (K,), filled in by `mini_batches`

    @property
    def rewards(self) -> np.ndarray:
        """float32 (K,)."""
        return np.array([t.reward for t in self.trajectories], dtype=np.float32)

    @property
    def num_success(self) -> int:
        """k: successes among the K responses, o* included."""
        return int((self.rewards > SUCCESS).sum())


class Experience:
    """The replay buffer E, the retired set S, the delayed start and the fresh stream of one run."""

    def __init__(self, config: Config, questions: list[Question]):
        self.config, self.questions = config, {q.id: q for q in questions}
        self.buffer = ReplayBuffer(max_trajectories=config.max_trajectories or None)
        self.stream = FreshStream(list(self.questions), config.seed)
        self.started = config.rho > 0 and config.start_threshold < 0  # latched

    # ---- the delayed start: all that changes with it (retirement does not wait) ------------------

    @property
    def replays(self) -> bool:
        """Whether successes are stored and replayed; E is empty for the first batch that stores."""
        return self.config.rho > 0 and self.started

    @property
    def clip_eps(self) -> float | None:
        """ε of CLIP for on-policy tokens; None: no clip."""
        c = self.config
        if c.clip == "off" or c.clip == "auto" and self.replays:
            return None
        return c.clip_eps

    def _may_start(self, groups: list[Group]) -> None:
        """From the batch after one whose Pass@1 exceeds the threshold on, and for good."""
        pass_at_1 = sum(g.num_success for g in groups) / sum(len(g.trajectories) for g in groups)
        self.started = self.started or (
            self.config.rho > 0 and pass_at_1 > self.config.start_threshold
        )

    # ---- phase 1: plan a batch (lines 3-19) ------------------------------------------------------

    def plan(self, step: int, score: Callable[[list], list[float]]) -> Plan | None:
        """Choose the questions of a batch, and o* for the replayed ones; None when no question is
        left.

        `score` gives each (prompt ids, response ids) its mean entropy (or NLL) under the current
        policy.
        """
        c, rng = self.config, generator("plan", self.config.seed, step)
        if c.reinstate_every and step and step % c.reinstate_every == 0:
            self._reinstate(rng)
        share = int(c.rho * c.batch_size + 1e-9)  # ⌊ρB⌋; 0.29 * 100 is 28.999... in floating point
        n = min(share, len(self.buffer)) if self.replays else 0  # line 7
        if c.question_selection == "uniform":
            drawn = sample_uniform(self.buffer.buckets, n, rng)
        else:  # lines 5, 6, 8
            drawn = sample_questions(self.buffer.buckets, n, c.num_rollouts, rng, c.mu, c.sigma)
        stars, scores = self.choose(drawn, score, rng)  # lines 9-15
        fresh = self.stream.draw(c.batch_size - n, self.buffer.retired, skip=drawn)  # lines 16, 18
        drawn_from = tuple(map(self.buffer.num_success, drawn))
        return (
            Plan(step, fresh, stars, self.clip_eps, *scores, drawn_from) if fresh or stars else None
        )

    def choose(self, drawn: list[int], score, rng: np.random.Generator) -> tuple[dict, list[float]]:
        """o* of each question: its stored response with the lowest mean entropy under π_θ; mean
        scores.
        """
        rule = self.config.trajectory_selection
        stored = {q: self.buffer.trajectories(q) for q in drawn}
        if rule == "random":
            return {q: ts[rng.integers(len(ts))] for q, ts in stored.items()}, [0.0, 0.0]
        contested = [(q, t) for q, ts in stored.items() if len(ts) > 1 for t in ts]
        scores = iter(score([(self.questions[q].prompt_ids, t.token_ids) for q, t in contested]))
        stars = {}
        best = []
        everything = []
        for q, trajectories in stored.items():
            if len(trajectories) == 1:  # needs no score
                stars[q] = trajectories[0]
                continue
            values = [next(scores) for _ in trajectories]
            if rule == "official":  # a sum over the response, so that shorter ones are preferred
                values = [value * len(t.token_ids) for value, t in zip(values, trajectories)]
            pick = int(np.argmax(values) if rule == "highest_entropy" else np.argmin(values))
            stars[q] = trajectories[pick]  # line 13: o*
            best.append(values[pick])
            everything.extend(values)
        return stars, [float(np.mean(values or [0.0])) for values in (best, everything)]

    def _reinstate(self, rng: np.random.Generator) -> None:
        """Table 7: a tenth of the retired questions goes back to the stream, not into E."""
        retired = sorted(self.buffer.retired)
        back = rng.choice(retired, int(len(retired) * REINSTATED), replace=False).tolist()
        self.buffer.reinstate(back)
        self.stream.insert(back, rng)

    # ---- phase 2: groups, and what they leave in E and S (lines 21-30 and 32) --------------------

    def seeds(self, plan: Plan) -> list[list[int]]:
        """A seed for each response to generate: K a question, or K - 1 where o* is the other
        (line 23).
        """
        run, K = self.config.seed, self.config.num_rollouts
        return [
            [sample_seed(run, plan.step, q, i) for i in range(q in plan.replayed, K)]
            for q in plan.questions
        ]

    def groups(self, plan: Plan, rollouts: list[list[Trajectory]]) -> list[Group]:
        """Put the new, graded trajectories of each question of the plan together with its o*: G*
        of Eq. 4.
        """
        groups = []
        for q, new in zip(plan.questions, rollouts, strict=True):
            replayed = q in plan.replayed
            trajectories = [plan.replayed[q], *new] if replayed else new
            groups.append(Group(self.questions[q], trajectories, replayed))
        return groups

    def collect(self, groups: list[Group]) -> list[tuple[int, int, int]]:
        """Store successes, retire what is always solved, see whether replay may start (lines 25-30
        and 32).

        Returns of each group its question, its bucket and a checksum of its tokens: ranks compare
        them.
        """
        c = self.config
        collected = []
        for group, k in zip(groups, self._buckets(groups)):
            q = group.question.id
            new = self._worth_storing(group)
            if k == c.num_rollouts and c.difficulty == "success":
                leave = self.buffer.retire if c.retires else self.buffer.shelve
                leave(q)  # solved K of K: into S, or with `retire` off out of its bucket
            elif self.replays and 0 < k < c.num_rollouts and (new or q in self.buffer):
                self.buffer.add(
                    q, k, new
                )  # nothing to add where all were cut, or the cap pushed it out
            tokens = np.concatenate([t.token_ids for t in group.trajectories])
            collected.append((q, k, crc32(tokens)))
        self._may_start(groups)
        return collected

    def _buckets(self, groups: list[Group]) -> list[int]:
        """The bucket of each group: its success count k, or its reward spread scaled to 0..K
        (Sec. 5.3).
        """
        if self.config.difficulty == "success":
            return [g.num_success for g in groups]
        spread = np.array([g.rewards.std() for g in groups])
        scaled = (spread - spread.min()) / max(spread.max() - spread.min(), 1e-6)
        return np.rint(scaled * self.config.num_rollouts).astype(int).tolist()

    def _worth_storing(self, group: Group) -> list[Trajectory]:
        """Successes, or rewards above the group's mean (Sec. 5.3), never cut ones: loops have
        low entropy.
        """
        bar = group.rewards.mean() if self.config.difficulty == "spread" else SUCCESS
        return [t for t in group.trajectories[group.replayed :] if t.reward > bar and t.finished]

    # ---- the batch of Eq. 4 (line 31) ------------------------------------------------------------

    def mini_batches(self, step: int, groups: list[Group]) -> list[list[Group]]:
        """Advantages (Eq. 2, masked by Eq. 14 where asked); groups shuffled and split, o*
        equally shared.
        """
        c, rng = self.config, generator("mini-batches", self.config.seed, step)
        for group in groups:
            rewards = torch.from_numpy(group.rewards)[None]  # (1, K)
            group.advantages = group_advantages(rewards, c.normalize_std)[0].numpy()
            if not c.alpha_low <= group.num_success / len(group.trajectories) <= c.alpha_high:
                group.advantages[:] = 0
        order = []
        for replayed in (True, False):
            kind = [g for g in groups if g.replayed == replayed]
            order += [kind[i] for i in rng.permutation(len(kind))]
        parts = [order[i :: c.mini_batches] for i in range(c.mini_batches)]
        return [part for part in parts if part]

    def snapshot(self) -> Callable[[], None]:
        """A function that undoes what `plan` changes: the stream, and retired questions that it
        puts back.
        """
        state = self.state_dict()
        retired = set(self.buffer.retired)

        def undo() -> None:
            self.buffer.retired |= retired
            self.load_state_dict(state, self.buffer)

        return undo

    def state_dict(self) -> dict:
        """What a checkpoint keeps beside the buffer: the stream's position and the delayed
        start, as JSON.
        """
        return {
            "epoch": self.stream.epoch,
            "queue": list(self.stream.queue),
            "started": self.started,
        }

    def load_state_dict(self, state: dict, buffer: ReplayBuffer) -> None:
        """Go on from `state_dict()` and a loaded buffer; ValueError where they name an unknown
        question.
        """
        if unknown := {*buffer.stored, *buffer.retired, *state["queue"]} - set(self.questions):
            raise ValueError(
                f"the checkpoint names question {min(unknown)}: gone, or for another reward"
            )
        self.buffer, self.started = (
            buffer,
            state["started"] or self.started,
        )  # by another threshold, say
        self.stream.epoch, self.stream.queue = state["epoch"], list(state["queue"])

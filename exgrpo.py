"""Experience management and batch building: phase 1 of Algorithm 1 and the bookkeeping of phase 2 (Sec. 4.1).

No GPU and no communication here: everything is a deterministic function of the seed, the buffer and what is
passed in, so that every rank computes the same plan.
"""

from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import torch

from buffer import ReplayBuffer, Trajectory
from config import Config
from data import FreshStream, Question, Request, Response, Sample, sample_seed
from loss import group_advantages
from sampler import sample_questions, sample_uniform

SUCCESS = 0.5  # a response with a larger reward is a success
ZERO_ONE = ("math", "worlds.arithmetic:reward")  # rewards that are 0 or 1, so that every stored response has 1


@dataclass
class Plan:
    """Which questions a step trains on."""

    step: int
    fresh: list[int]  # B_on: question ids
    replayed: dict[int, Trajectory]  # B_exp: question id -> o*
    clip_eps: float | None = None  # ε of CLIP for on-policy tokens, None for no clip
    selected_score: float = 0.0  # mean score of the chosen o*, and of all candidates (entropy in nats, or NLL)
    candidate_score: float = 0.0

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
        self.config, self.questions = config, questions
        self.buffer = ReplayBuffer(max_trajectories=config.max_trajectories or None)
        self.stream = FreshStream(len(questions), config.seed)
        self.started = config.rho > 0 and config.start_threshold < 0  # latched

    # ---- phase 1: experience management (Alg. 1, lines 3-19) ----------------------------------------

    def plan(self, step: int, score: Callable[[list], list[float]]) -> Plan | None:
        """Choose the questions of a batch, and o* for the replayed ones; None when no question is left.

        `score` gives each (prompt ids, response ids) its mean entropy (or NLL) under the current policy.
        """
        c, rng = self.config, np.random.default_rng([self.config.seed, step])
        if c.reinstate_every and step and step % c.reinstate_every == 0:
            self._reinstate(rng)
        share = int(c.rho * c.batch_size + 1e-9)  # ⌊ρB⌋; 0.29 * 100 is 28.999... in floating point
        n = min(share, len(self.buffer)) if self.started else 0  # line 7
        if c.question_selection == "uniform":
            chosen = sample_uniform(self.buffer.buckets, n, rng)
        else:  # lines 5, 6, 8
            chosen = sample_questions(self.buffer.buckets, n, c.num_rollouts, rng, c.mu, c.sigma, c.sigma_unit)
        plan = self._select(step, chosen, score, rng)  # lines 9-15
        plan.clip_eps = c.clip_eps if c.clip == "on" or (c.clip == "auto" and not self.started) else None
        plan.fresh = self.stream.draw(c.batch_size - n, self.buffer.retired, skip=chosen)  # lines 16, 18
        return plan if plan.questions else None

    def _select(self, step: int, chosen: list[int], score, rng: np.random.Generator) -> Plan:
        """o* of each drawn question: of its stored responses the one with the lowest mean entropy under π_θ."""
        rule, candidates = self.config.trajectory_selection, {q: self._candidates(q) for q in chosen}
        if rule == "random":
            return Plan(step, [], {q: ts[rng.integers(len(ts))] for q, ts in candidates.items()})
        contested = [(q, t) for q, ts in candidates.items() if len(ts) > 1 for t in ts]
        scores = iter(score([(self.questions[q].prompt_ids, t.token_ids) for q, t in contested]))
        replayed, best, everything = {}, [], []
        for q, trajectories in candidates.items():
            if len(trajectories) == 1:
                replayed[q] = trajectories[0]
                continue
            values = [next(scores) for _ in trajectories]
            if rule == "official":  # a sum over the response, so that shorter ones are preferred
                values = [value * len(t.token_ids) for value, t in zip(values, trajectories)]
            pick = int(np.argmax(values) if rule == "highest_entropy" else np.argmin(values))
            replayed[q] = trajectories[pick]
            best.append(values[pick])
            everything.extend(values)
        means = [float(np.mean(v)) if v else 0.0 for v in (best, everything)]
        return Plan(step, [], replayed, selected_score=means[0], candidate_score=means[1])

    def _candidates(self, question_id: int) -> list[Trajectory]:
        """The stored responses that o* is chosen from: all, or `max_candidates` screened by their stored log-probs."""
        stored, limit, rule = self.buffer.trajectories(question_id), self.config.max_candidates, self.config.trajectory_selection
        if not limit or len(stored) <= limit or rule == "random":
            return stored
        nll = np.array([-t.logprobs.mean(dtype=np.float64) for t in stored])
        order = np.argsort(-nll if rule == "highest_entropy" else nll, kind="stable")
        return [stored[i] for i in sorted(order[:limit])]

    def _reinstate(self, rng: np.random.Generator) -> None:
        """Put a share of the retired questions back into the stream (Table 7)."""
        retired = sorted(self.buffer.retired)
        back = rng.choice(retired, int(len(retired) * self.config.reinstate_fraction), replace=False).tolist()
        self.buffer.reinstate(back)
        self.stream.insert(back, rng)

    # ---- phase 2: rollouts and what they leave behind (lines 20-30, 32) -----------------------------

    def requests(self, plan: Plan) -> list[list[Request]]:
        """What to generate for each question of the plan: K responses, or K - 1 where o* is the other (line 23)."""
        k, seed = self.config.num_rollouts, self.config.seed
        return [[Request(self.questions[q].prompt_ids, sample_seed(seed, plan.step, q, i)) for i in range(q in plan.replayed, k)]
                for q in plan.questions]

    def groups(self, plan: Plan, graded: list[list[tuple[Response, float]]], grade: Callable[[list], list[float]]) -> list[Group]:
        """Put each question's new (response, reward) pairs together with its o*: G* of Eq. 4.

        A stored o* is a success; where rewards may be other than 0 and 1 (Sec. 5.3), `grade` gives its reward again.
        """
        stars = [(self.questions[q], star.token_ids) for q, star in plan.replayed.items()]
        ones = self.config.reward in ZERO_ONE and self.config.difficulty == "success"
        rewards = [1.0] * len(stars) if ones else grade(stars)
        star_rewards = dict(zip(plan.replayed, rewards))
        groups = []
        for q, pairs in zip(plan.questions, graded):
            stored = [(plan.replayed[q], star_rewards[q])] if q in plan.replayed else []
            members, values = zip(*stored, *pairs)
            groups.append(Group(self.questions[q], [m.token_ids for m in members], [m.logprobs for m in members],
                                np.array(values, dtype=np.float32), bool(stored)))
        return groups

    def collect(self, step: int, groups: list[Group]) -> None:
        """Store successes, retire what is always solved, and see whether replay may start (lines 25-30 and 32)."""
        c = self.config
        buckets = self._buckets(groups)
        for group, k in zip(groups, buckets):
            q = group.question.id
            if k == c.num_rollouts and c.difficulty == "success":
                if c.retires:
                    self.buffer.retire(q)
            elif self.started and c.k_min <= k <= c.k_max:
                new = [Trajectory(group.token_ids[i], group.logprobs[i], step) for i in self._worth_storing(group)]
                if new or q in self.buffer:  # a replayed question may just have lost its place to `max_trajectories`
                    self.buffer.add(q, k, new)
        pass_at_1 = np.concatenate([g.rewards for g in groups]).mean()
        self.started = self.started or bool(c.rho > 0 and pass_at_1 > c.start_threshold)

    def _buckets(self, groups: list[Group]) -> list[int]:
        """The bucket of each group: its success count k, or its reward spread on the scale 0..K (Sec. 5.3)."""
        if self.config.difficulty == "success":
            return [g.num_success for g in groups]
        spread = np.array([g.rewards.std() for g in groups])
        scaled = (spread - spread.min()) / max(spread.max() - spread.min(), 1e-6)
        return np.rint(scaled * self.config.num_rollouts).astype(int).tolist()

    def _worth_storing(self, group: Group) -> list[int]:
        """Indices of new responses to store: the successes, or those above their group's mean (Sec. 5.3)."""
        bar = group.rewards.mean() if self.config.difficulty == "spread" else SUCCESS
        return [i for i in range(int(group.replayed), len(group.rewards)) if group.rewards[i] > bar]

    # ---- what a checkpoint keeps, beside the buffer; what ranks compare -----------------------------

    def state_dict(self) -> dict:
        """The stream's position and the delayed start, as plain JSON values."""
        return {"stream": self.stream.state_dict(), "started": self.started}

    def load_state_dict(self, state: dict) -> None:
        self.stream.load_state_dict(state["stream"])
        self.started = state["started"]

    def check_ids(self) -> None:
        """ValueError where buffer, retired set or stream name a question that is not there."""
        named = {*(q for ids in self.buffer.buckets.values() for q in ids), *self.buffer.retired, *self.stream.queue}
        if unknown := named - set(range(len(self.questions))):
            raise ValueError(f"the checkpoint names question {min(unknown)}, but there are {len(self.questions)}")

    def contents(self) -> dict:
        """The buffer in short, question by question, for a message about where two buffers differ: checksums of responses."""
        buffer = self.buffer
        return {"buffer": {"buckets": {k: list(ids) for k, ids in buffer.buckets.items()}, "retired": sorted(buffer.retired),
                           "responses": {q: [(t.step, crc32(t.token_ids.tobytes()), crc32(t.logprobs.tobytes()))
                                             for t in buffer.trajectories(q)]
                                         for ids in buffer.buckets.values() for q in ids}}}

    # ---- the batch of Eq. 4 -------------------------------------------------------------------------

    def mini_batches(self, step: int, groups: list[Group]) -> list[list[Sample]]:
        """Shuffle the groups, split them by question, each part with the same share of replayed ones."""
        rng = np.random.default_rng([self.config.seed, step, 1])
        parts = [[] for _ in range(self.config.mini_batches)]
        fresh, replayed = [g for g in groups if not g.replayed], [g for g in groups if g.replayed]
        order = [kind[i] for kind in (replayed, fresh) for i in rng.permutation(len(kind))]
        for position, group in enumerate(order):
            parts[position % len(parts)].extend(self._samples(group))
        return [part for part in parts if part]

    def _samples(self, group: Group) -> list[Sample]:
        """The K responses of a group with their advantages (Eq. 2), masked by difficulty where asked (Eq. 14)."""
        c = self.config
        advantages = group_advantages(torch.from_numpy(group.rewards)[None], c.normalize_std)[0]
        if not c.alpha_low <= group.num_success / len(group.rewards) <= c.alpha_high:
            advantages = torch.zeros_like(advantages)
        return [Sample(group.question.prompt_ids, ids, logprobs, float(a), replayed=group.replayed and i == 0)
                for i, (ids, logprobs, a) in enumerate(zip(group.token_ids, group.logprobs, advantages))]

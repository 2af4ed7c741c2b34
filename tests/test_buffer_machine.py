"""Any sequence of add / retire / reinstate / draw / save / load: the buffer equals a naive model of it."""

import os
import tempfile

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from test_buffer import buckets, contents, response

from buffer import ReplayBuffer
from sampler import sample_questions, sample_uniform

QUESTIONS = st.integers(0, 9)
K = 4


class BufferMachine(RuleBasedStateMachine):
    """The model: counts {question: k}, a set of retired ids, one list of everything stored, oldest first."""

    @initialize(cap=st.sampled_from([None, 1, 3, 8]))
    def start(self, cap):
        self.cap, self.step = cap, 0
        self.buffer, self.twin = ReplayBuffer(cap), ReplayBuffer(cap)
        self.counts, self.retired, self.stored = {}, set(), []

    @rule(
        question_id=QUESTIONS,
        k=st.integers(1, K - 1),
        responses=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=2), max_size=3),
    )
    def add(self, question_id, k, responses):
        self.step += 1
        trajectories = [response(*tokens, step=self.step, logprob=-self.step) for tokens in responses]
        possible = question_id not in self.retired and (trajectories or question_id in self.counts)
        for replay in (self.buffer, self.twin):
            try:
                replay.add(question_id, k, trajectories)
                assert possible
            except ValueError:
                assert not possible
        if possible:
            self.counts[question_id] = k
            for tokens in responses:
                self.stored = [s for s in self.stored if s[:2] != (question_id, tokens)]
                self.stored.append((question_id, tokens, self.step))
            self.stored = self.stored[-self.cap :] if self.cap else self.stored
            self.counts = {q: k for q, k in self.counts.items() if any(s[0] == q for s in self.stored)}

    @rule(question_id=QUESTIONS)
    def retire(self, question_id):
        self.buffer.retire(question_id)
        self.twin.retire(question_id)
        self.retired.add(question_id)
        self.counts.pop(question_id, None)
        self.stored = [s for s in self.stored if s[0] != question_id]

    @rule(data=st.data())
    def reinstate(self, data):
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.retired)))) if self.retired else []
        self.buffer.reinstate(chosen)
        self.twin.reinstate(chosen)
        self.retired -= set(chosen)

    @rule(n=st.integers(0, 12), seed=st.integers(0, 99))
    def draw(self, n, seed):
        for sample in (lambda g: sample_questions(self.buffer.buckets, n, K, g), self.uniform(n)):
            drawn = sample(np.random.default_rng(seed))
            assert len(drawn) == len(set(drawn)) == min(n, len(self.counts))
            assert set(drawn) <= set(self.counts)

    def uniform(self, n):
        return lambda generator: sample_uniform(self.buffer.buckets, n, generator)

    @rule()
    def save_and_load(self):
        """Loading recomputes the checksum from the contents, so this also checks its incremental upkeep."""
        with tempfile.TemporaryDirectory() as directory:
            self.buffer.save(os.path.join(directory, "buffer"))
            self.buffer = ReplayBuffer.load(os.path.join(directory, "buffer"))

    @invariant()
    def equals_the_model(self):
        if not hasattr(self, "counts"):
            return
        in_buckets = [(q, k) for k, ids in self.buffer.buckets.items() for q in ids]
        assert len(in_buckets) == len(self.counts) and dict(in_buckets) == self.counts
        assert set(self.buffer.retired) == self.retired and self.retired.isdisjoint(self.counts)
        assert all(self.buffer.buckets.values()) and len(self.buffer) == len(self.counts)
        for question_id in range(10):
            expected = [(tokens, step) for q, tokens, step in self.stored if q == question_id]
            assert [(tokens, step) for tokens, _, step in contents(self.buffer, question_id)] == expected
            assert all(logprobs[0] == -step for _, logprobs, step in contents(self.buffer, question_id))
        assert self.buffer.num_trajectories == len(self.stored)
        assert self.buffer.nbytes == 8 * sum(len(tokens) for _, tokens, _ in self.stored)

    @invariant()
    def equals_a_buffer_that_was_never_saved(self):
        if hasattr(self, "counts"):
            assert self.buffer.checksum() == self.twin.checksum() and buckets(self.buffer) == buckets(
                self.twin
            )


TestBufferMachine = BufferMachine.TestCase
TestBufferMachine.settings = settings(
    max_examples=50, stateful_step_count=25, deadline=None, derandomize=True
)

"""From finished responses to rewards (Alg. 1, lines 23-24): generation and verification side by side."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from config import Config
from data import Question, Request, Response
from reward import Grader
from runtime import ranks


class Grader:
    """Decodes a response, cuts it to what is graded (paper.md, section 9) and hands it to the verifier."""

    def __init__(self, config: Config, tokenizer, verifier: Verifier):
        self.config, self.tokenizer, self.verifier = config, tokenizer, verifier

    def text(self, token_ids: np.ndarray) -> str:
        """The response as text, without special tokens."""
        return self.tokenizer.decode(token_ids, skip_special_tokens=True)

    def piece(self, question: Question, token_ids: np.ndarray) -> str | None:
        """What the verifier is given of a response: all of its text, or with Math-Verify what `graded_text` picks."""
        text = self.text(token_ids)
        if self.config.reward != "math":
            return text
        thinking = self.tokenizer.decode(question.prompt_ids[-8:]).rstrip().endswith("<think>")
        return graded_text(text, thinking, self.config.require_box)

    def submit(self, question: Question, token_ids: np.ndarray):
        """Start grading a response; `.result()` of what is returned is a list of one reward (Eq. 1)."""
        return self.verifier.submit([self.piece(question, token_ids)], [question.answer])

    def grade(self, pairs: list[tuple[Question, np.ndarray]]) -> list[float]:
        """Rewards of (question, response token ids) pairs, the same on every rank: each grades its share (a collective)."""
        return ranks.map_shares([len(ids) for _, ids in pairs], lambda share: [
            p.result()[0] for p in [self.submit(*pairs[i]) for i in share]])


def drop_unreadable(questions: list[Question], verifier: Verifier) -> list[Question]:
    """The questions whose answer the verifier can read, with ids from 0 (a collective: a time limit decides too)."""
    readable = ranks.map_shares([1] * len(questions), lambda share: verifier.gold_parses([questions[i].answer for i in share]))
    return [replace(q, id=i) for i, q in enumerate(q for q, ok in zip(questions, readable) if ok)]


def rollout(engine, grader: Grader, questions: list[Question], requests: list[list[Request]], temperature: float,
            max_tokens: int, progress: Callable[[], None] | None = None) -> list[list[tuple[Response, float]]]:
    """Generate and grade the requests of each question, split over the engines by question (a collective).

    Returns, for every question, its (response, reward) pairs. A response is graded while others are generated, by
    the first of the `rollout_tp` ranks that share an engine.
    """
    group = grader.config.rollout_tp

    def work(indices: list[int]) -> list[list[tuple[Response, float]]]:
        """The (response, reward) pairs of the questions `indices`, this rank's share."""
        flat = [(i, r) for i in indices for r in requests[i]]
        pending = [None] * len(flat)

        def on_finish(index: int, response: Response) -> None:
            if ranks.rank() % group == 0:
                pending[index] = grader.submit(questions[flat[index][0]], response.token_ids)
            if progress:
                progress()

        responses = engine.generate([r for _, r in flat], temperature, max_tokens, on_finish)
        graded = [(response, p.result()[0] if p else None) for response, p in zip(responses, pending)]
        ends = np.cumsum([len(requests[i]) for i in indices])
        return [graded[end - len(requests[i]) : end] for i, end in zip(indices, ends)]

    return ranks.map_shares([len(r) for r in requests], work, group)

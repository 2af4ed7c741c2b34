"""The reward of Eq. 1: r(q, o) = 1 if the final answer of response o is right, else 0.

`graded_text` picks the piece of a response that counts, `Grader` takes responses as token ids and
hands that piece to the `Verifier`, whose processes decide whether it is an answer and, by
Math-Verify, the gold one.
"""

import re
from concurrent.futures import Future

import numpy as np

from config import Config
from data import Question
from runtime.chat import complaint, opens_thought
from runtime.faults import once
from verifier.forms import MAX_BOX, last_box
from verifier.pool import Verifier

# characters, from the end, of a response without a box in which an answer is looked for
MAX_TEXT = 2000

STATEMENT = re.compile(r"(?i:answer)[^\n.:=$]{0,80}?(?:\bis\b|:|=)[:\s*]*(?=([^\n]+))")
MATHS = re.compile(r"\$\$?([^$]+)\$|\\[(\[](.+?)\\[)\]]")
NUMBER = re.compile(r"(?<![\w.{^/\\])[-−–]?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?(?:/[0-9]+)?(?![\w{])")


def unboxed(text: str) -> str | None:
    """Without a box: the last statement of a final answer, all its formulas; else a number."""
    text = text[-MAX_TEXT:]
    statements = STATEMENT.findall(text)
    if statements:
        answer = statements[-1].strip(" *")
        sentence = re.split(r"\.(?:\s|$)", answer)[0].strip(" *")
        if not MATHS.match(sentence):
            return sentence
        formulas = MATHS.findall(sentence)  # between dollars, or between \( and \)
        return ", ".join(map("".join, formulas))
    numbers = NUMBER.findall(text)
    return numbers[-1] if numbers else None


def graded_text(
    response: str, thinking: bool, require_box: bool = True, grader: str = "strict"
) -> str | None:
    r"""The piece of `response` that the verifier sees, or None (reward 0) if there is none.

    `thinking` says that the prompt opened a `<think>`. There, and where the response opens one,
    only what follows the last `</think>` counts, and a thought that never ends has no answer. Of
    that, the last balanced `\boxed{...}`, wrapper included, of at most `MAX_BOX` characters.
    Without one: None, or with `require_box=False` what `unboxed` finds, in a box. The "official"
    grader is given all of it.
    """
    if thinking or "<think>" in response:
        _, closed, response = response.rpartition("</think>")
        if not closed or "<think>" in response:
            return None
    if grader != "strict":
        return response.strip() or None
    box = last_box(response)
    if box is None and not require_box:
        box = unboxed(response)
    if not box or len(box) > MAX_BOX:
        return None
    return rf"\boxed{{{box}}}"


def make_verifier(config: Config) -> Verifier:
    """The processes that grade as the knobs `reward` and `grader` say."""
    function = config.reward
    if function == "math" and config.grader != "strict":
        function = config.grader
    return Verifier(timeout=config.verify_timeout, function=function)


class Grader:
    """From token ids of responses to rewards: tokenizer, cut to what is graded, verifier."""

    def __init__(self, config: Config, tokenizer, verifier: Verifier, turn_ends: list[int]):
        self.config = config
        self.tokenizer = tokenizer
        self.verifier = verifier
        self.left_out = {*turn_ends, tokenizer.pad_token_id}
        self.said = set()  # warnings

    def text(self, token_ids: np.ndarray) -> str:
        """The response as text, without turn ends and padding; other special tokens stay."""
        return self.tokenizer.decode([i for i in token_ids if i not in self.left_out])

    def piece(self, question: Question, token_ids: np.ndarray) -> str | None:
        """What the verifier is given of a response; a reward of the user's own is given all."""
        text = self.text(token_ids)
        if self.config.reward != "math":
            return text
        return graded_text(text, self.thinks(question), self.config.require_box, self.config.grader)

    def thinks(self, question: Question) -> bool:
        """Whether the prompt has opened a `<think>`, by the template or by `response_prefix`."""
        return opens_thought(question.row["prompt"], self.config, self.tokenizer)

    def warn(self, questions: list[Question], rollouts: list[list]) -> None:
        """Say what is wrong with all of these, if anything, once a run."""
        graded = [t for trajectories in rollouts for t in trajectories]
        thinking = all(map(self.thinks, questions))
        warning = complaint(self.config, graded, self.text, thinking)
        if warning and warning not in self.said:
            self.said.add(warning)
            once(warning)

    def submit(self, question: Question, token_ids: np.ndarray) -> Future:
        """Start grading, and return the future of its named rewards: `score` and others."""
        piece = self.piece(question, token_ids)
        row = {}  # Math-Verify reads none
        if self.config.reward != "math":
            row = question.row | {"response_prefix": self.config.response_prefix}
        return self.verifier.submit(piece, question.answer, row)

r"""The reward of Eq. 1: r(q, o) = 1 if the final answer of response o is right, else 0.

`graded_text` picks the piece of a response that counts, `Grader` takes responses as token ids and
hands that piece to the `Verifier`, whose processes decide whether it is an answer and, by
Math-Verify, the gold one.
"""

import re
from concurrent.futures import Future

import numpy as np

from buffer import Trajectory
from config import Config
from data import Question
from verifier.pool import Verifier

MAX_BOX = 1000  # characters; a longer box is no answer (the longest gold of the benchmarks has 210)
# Characters, from the end, of a response without a box in which an answer is looked for.
MAX_TEXT = 2000

STATEMENT = re.compile(r"(?i:answer)[^\n.:=$]{0,80}?(?:\bis\b|:|=)[:\s*]*(?=([^\n]+))")
MATHS = re.compile(r"\$\$?([^$]+)\$|\\[(\[](.+?)\\[)\]]")
NUMBER = re.compile(r"(?<![\w.{^/\\])[-−–]?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?(?:/[0-9]+)?(?![\w{])")
BRACES = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)  # the second branch skips \{ and \}


def last_box(text: str) -> str | None:
    r"""The content of the `\boxed{...}` that closes last, stripped; None if none closes."""
    opened: list[
        int | None
    ] = []  # for every brace still open: where its box begins, or None if it is no box
    box = None  # cut out only once, so that nested boxes take linear time
    for token in BRACES.finditer(text):
        if token[0].startswith(r"\boxed"):
            opened.append(token.end())
        elif token[0] == "{":
            opened.append(None)
        elif token[0] == "}" and opened:
            start = opened.pop()
            if start is not None:
                box = slice(start, token.start())
    return text[box].strip() if box else None


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
    response: str, thinks: bool, require_box: bool = True, grader: str = "strict"
) -> str | None:
    r"""The piece of `response` that the verifier sees, or None (reward 0) if there is none.

    `thinks` says that the prompt opened a `<think>`. There, and where the response opens one, only
    what follows the last `</think>` counts, and a thought that never ends has no answer. Of that,
    the last balanced `\boxed{...}`, wrapper included, of at most `MAX_BOX` characters. Without one:
    None, or with `require_box=False` what `unboxed` finds, in a box. The "official" grader is given
    all of it.
    """
    if thinks or "<think>" in response:
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
    if function == "math" and config.grader == "official":
        function = "official"
    return Verifier(function=function)


class Grader:
    """From token ids of responses to rewards: tokenizer, cut to what is graded, verifier."""

    def __init__(self, config: Config, tokenizer, verifier: Verifier, stop_ids: list[int]):
        self.config = config
        self.tokenizer = tokenizer
        self.verifier = verifier
        self.left_out = {*stop_ids, tokenizer.pad_token_id}

    def text(self, token_ids: np.ndarray) -> str:
        """The response as text, without turn ends and padding; other special tokens stay."""
        return self.tokenizer.decode([i for i in token_ids if i not in self.left_out])

    def submit(self, question: Question, token_ids: np.ndarray) -> Future:
        """Start grading, and return the future of its named rewards: `score` and others."""
        text = self.text(token_ids)
        if self.config.reward != "math":  # a reward of the user's own is given all
            return self.verifier.submit(text, question.answer, question.row)
        config = self.config
        piece = graded_text(text, question.thinks, config.require_box, config.grader)
        return self.verifier.submit(piece, question.answer)

    def record(self, question: Question, response: Trajectory) -> dict:
        """A graded response as plain values, for people and for tables."""
        return {
            **response.named_rewards,
            "source": question.source,
            "text": question.text,
            "gold": question.answer,
            "response": self.text(response.token_ids),
            "reward": response.reward,
            "success": response.is_success,
            "length": len(response.token_ids),
            "truncated": not response.finished,
        }

r"""The reward of Eq. 1: r(q, o) = 1 if the final answer of response o is right, else 0.

`graded_text` picks the piece of a response that counts. The processes of `Grader`, which is a
`Verifier`, decide whether that piece is an answer at all, and by Math-Verify whether it equals the
gold answer.
"""

import re

from buffer import Trajectory
from config import Config
from data import Question
from verifier.pool import Verifier

MAX_BOX = 1000  # characters; a longer box is no answer (the longest gold of the benchmarks has 210)
# Where a response has no box, an answer is looked for in so many of its last characters.
MAX_TEXT = 2000

STATEMENT = re.compile(r"(?i:answer)[^\n.:=$]{0,80}?(?:\bis\b|:|=)[:\s*]*(?=([^\n]+))")
MATHS = re.compile(r"\$\$?([^$]+)\$|\\[(\[](.+?)\\[)\]]")
NUMBER = re.compile(r"(?<![\w.{^/\\])[-−–]?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?(?:/[0-9]+)?(?![\w{])")
BRACES = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)  # the second branch skips \{ and \}


def last_box(text: str) -> str | None:
    r"""The content of the `\boxed{...}` that closes last, stripped; None if none closes."""
    still_open = []  # the matches of braces that are not yet closed: `{`, or `\boxed{` as a whole
    box = None  # cut out only once, so that nested boxes take linear time
    for brace in BRACES.finditer(text):
        if brace[0] == "{" or brace[0].startswith(r"\boxed"):
            still_open.append(brace)
        elif brace[0] == "}" and still_open:
            opening = still_open.pop()
            if opening[0] != "{":
                box = slice(opening.end(), brace.start())
    return text[box].strip() if box else None


def unboxed(text: str) -> str | None:
    """Of a text without a box: the last stated answer, or its formulas; else the last number."""
    text = text[-MAX_TEXT:]
    statements = STATEMENT.findall(text)
    if statements:
        sentence = re.split(r"\.(?:[\s*]|$)", statements[-1])[0].strip(" *")
        if not MATHS.match(sentence):
            return sentence
        formulas = MATHS.findall(sentence)  # between dollars, \( and \), or \[ and \]
        return ", ".join(map("".join, formulas))
    numbers = NUMBER.findall(text)
    return numbers[-1] if numbers else None


def graded_text(response: str, thinks: bool, config: Config) -> str | None:
    r"""The piece of `response` that is graded, or None (reward 0) if there is none.

    `thinks` says that the prompt opened a `<think>`. There, and where the response opens one, only
    what follows the last `</think>` counts, and a thought that never ends has no answer. Of this
    text the last balanced `\boxed{...}` is taken, wrapper included, if it holds at most `MAX_BOX`
    characters. Without a box: None, or with `require_box=False` what `unboxed` finds, put in a box.
    The "official" grader is given all that follows the thought, and a reward of the user's own the
    whole response.
    """
    if config.reward != "math":
        return response
    if thinks or "<think>" in response:
        _, closed, response = response.rpartition("</think>")
        if not closed or "<think>" in response:
            return None
    if config.grader == "official":
        return response.strip()
    box = last_box(response)
    if box is None and not config.require_box:
        box = unboxed(response)
    if not box or len(box) > MAX_BOX:
        return None
    return rf"\boxed{{{box}}}"


class Grader(Verifier):
    """The processes that grade as the knobs `reward` and `grader` say, and what makes text of ids.

    `submit`, which starts to grade a piece of text, is the `Verifier`'s.
    """

    def __init__(self, config: Config, tokenizer, stop_ids: list[int]):
        super().__init__(function=config.grader if config.reward == "math" else config.reward)
        self.config = config
        self.tokenizer = tokenizer
        self.left_out = {*stop_ids, tokenizer.pad_token_id}

    def text(self, token_ids) -> str:
        """A response as text, without turn ends and padding; other special tokens stay."""
        return self.tokenizer.decode([i for i in token_ids if i not in self.left_out])

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

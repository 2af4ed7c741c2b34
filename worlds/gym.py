"""Questions of the library reasoning-gym, with the library's own scorers as the reward.

    python -m tools.convert gym:chain_sum --output sums.parquet --set max_terms=2 --set max_digits=1
    torchrun --nproc_per_node=2 train.py --train_files sums.parquet --reward worlds.gym:score ...

Install it by `pip install -r requirements-smollm2.txt`. The scorer is given what a response states
last (`stated`), and only its full marks count. A question's row carries in `extra_info` what
scoring needs: the task, its settings and the entry, the last two as JSON.

What a model writes is never run as code. Some scorers do so, by `eval`: while one works there is no
`eval`, so that it fails, and the answer is wrong. Tasks that cannot be graded without are refused.
"""

import functools
import json
import re
from collections.abc import Iterator
from unittest import mock

import reasoning_gym

# The library makes entry i of seed s from s + i, so that our seeds must be far apart.
APART = 500_000
LONGEST = 4000  # characters at the end of a response in which an answer is looked for

BOX = re.compile(r"(?s).*\\boxed\s*\{([^{}]*)\}")
MARK = re.compile(r"(?si).*\banswer\W{0,4}:")
NUMBER = re.compile(r"(?<![\w.])[-−]?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?(?!\w)")
# Text before a number that makes it an operand or a member of a list.
OPEN = re.compile(
    r"[-−+*/×÷·^%,&(]\s*$|[0-9)]\s+$|\\(?:times|cdot|div)\s*$|" r"\b(?:and|or|plus|minus|times)\s+$"
)
# Text behind a number that continues it: a word, or the operator of a step that was cut.
GOES_ON = re.compile(r"[\w+/×÷=^−-]|\s\*")
BOLD = re.compile(r"\*\*(?![0-9])|(?<![0-9])\*\*|\$")  # marks that go, but 2**3 stays


def stated(response: str, answer: str) -> str:
    r"""What a response states last, of the kind that `answer` is; "" where that is nothing.

    That is what the last `\boxed{}` holds, else what follows the last `Answer:`, else all of the
    response. A number must end this text: one said in passing (`simply add 2 to 4 and`) is no
    answer. Nor is one behind a sign or word that OPEN knows, an operand or a member of a list:
    `0 + 9` and `27, 9` only restate the question, and `26 = 2 *` is not done.
    """
    text = response[-LONGEST:].strip()
    box = BOX.match(text)
    mark = MARK.match(text)
    if box:
        text = box[1]
    elif mark:
        text = text[mark.end() :]
    if not NUMBER.fullmatch(answer):
        return text.strip(" \n\t*$")
    text = BOLD.sub("", text)
    numbers = list(NUMBER.finditer(text))
    if not numbers:
        return ""
    last = numbers[-1]
    if OPEN.search(text[: last.start()]) or GOES_ON.search(text[last.end() :]):
        return ""
    return last[0].replace("−", "-")


@functools.cache
def scorer_of(task: str, settings: str):
    """The library's object that scores answers to a task with these settings, given as JSON."""
    return reasoning_gym.create_dataset(task, **json.loads(settings), size=1)


def score(response: str, answer: str, row: dict) -> float:
    """1.0 if the task's scorer gives full marks to what the response states last, else 0.0.

    Partial marks do not count, as an answer that merely contains the right one has some.
    """
    said = stated(response, answer)
    if not said:
        return 0.0
    given = row["extra_info"]
    scorer = scorer_of(given["task"], given["settings"])
    try:
        with mock.patch("builtins.eval", None):
            marks = scorer.score_answer(said, json.loads(given["entry"]))
    except Exception:  # whatever a parser may raise over a text that is no answer
        return 0.0
    return float(marks >= 1)


def gym_rows(task: str, size: int, seed: int, settings: dict) -> Iterator[dict]:
    """The entries of a task as rows of a data set, no question twice.

    size: how many are drawn. No entry of another seed is drawn again, though its question may come
    again. ValueError where the scorer cannot grade an entry from text.
    """
    seen = set()
    for entry in reasoning_gym.create_dataset(task, **settings, seed=APART * seed, size=size):
        question = entry["question"]
        answer = str(entry["answer"])
        if question in seen:
            continue
        seen.add(question)
        given = {
            "task": task,
            "settings": json.dumps(settings),
            "entry": json.dumps(entry, default=str),
        }
        if score(f"Answer: {answer}", answer, {"extra_info": given}) < 1:
            raise ValueError(f"gym:{task} gives no full marks to its own answer {answer!r:.80}")
        yield {"data_source": task, "question": question, "answer": answer, "extra_info": given}

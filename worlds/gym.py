"""Tasks of the library reasoning-gym as questions, with the library's own scorers as the reward.

    python -m tools.convert gym:chain_sum --output sums.parquet --set max_terms=2 --set max_digits=1
    torchrun --nproc_per_node=2 train.py --train_files sums.parquet --reward worlds.gym:score ...

The scorer is given what a response states last (`stated`), and only its full marks count. A
question's row carries in `extra_info["gym"]`, as JSON, all that scoring needs: the task, its
settings and the entry.
"""

import contextlib
import functools
import json
import re
import sys

# The import takes seconds, which should not count against the first answer's time limit.
with contextlib.suppress(ImportError):
    import reasoning_gym  # noqa: F401

INSTALL = "pip install -r requirements-smollm2.txt"
# The library makes entry i of seed s from s + i: training and held-out seeds are this far apart.
APART = 500_000
LONGEST = 4000  # characters at the end of a response in which an answer is looked for

BOX = re.compile(r"\\boxed\s*\{([^{}]*)\}")
MARK = re.compile(r"^.*\banswer\W{0,4}:", re.IGNORECASE | re.MULTILINE)
NUMBER = re.compile(r"(?<![\w.])[-−]?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?(?!\w)")
# Text before a number that makes it an operand or a member of a list.
OPEN = re.compile(
    r"[-−+*/×÷·^%,&(]\s*$|[0-9)]\s+$|\\(?:times|cdot|div)\s*$|" r"\b(?:and|or|plus|minus|times)\s+$"
)
# Text behind a number that continues it: a word, or the operator of a step that was cut.
GOES_ON = re.compile(r"[\w+/×÷=^−-]|\s\*")


def stated(response: str, number: bool) -> str | None:
    r"""What a response states last, or None.

    That is what the last `\boxed{}` holds, else what follows the last `Answer:`. Else it is all of
    the response for a number, and the last line for other answers. A number must end this text: one
    said in passing (`simply add 2 to 4 and`) is no answer. Nor is one behind a sign or word that
    OPEN knows, an operand or a member of a list: `0 + 9` and `27, 9` only restate the question, and
    `26 = 2 *` is not done.
    """
    text = response[-LONGEST:].strip()
    boxes = BOX.findall(text)
    marks = MARK.findall(text)
    if boxes:
        text = boxes[-1]
    elif marks:
        text = text.rpartition(marks[-1])[2]
    elif not number:
        text = text.rpartition("\n")[2]
    if not number:
        return text.strip(" \n\t*$") or None
    # The marks of bold text are taken out, but 2**3 stays.
    text = re.sub(r"\*\*(?![0-9])|(?<![0-9])\*\*", "", text).replace("$", "")
    *_, last = [*NUMBER.finditer(text)] or [None]
    if not last or OPEN.search(text[: last.start()]) or GOES_ON.search(text[last.end() :]):
        return None
    return last[0].replace("−", "-")


def score(response: str, answer: str, row: dict) -> float:
    """1.0 if the task's scorer gives full marks to what the response states last, else 0.0.

    Partial marks do not count, as an answer that merely contains the right one has some.
    """
    name, settings, entry = json.loads(row["extra_info"]["gym"])
    said = stated(response, bool(NUMBER.fullmatch(answer)))
    return (
        0.0 if said is None else float(marks(dataset(name, json.dumps(settings)), said, entry) >= 1)
    )


# ---- what the library is asked -------------------------------------------------------------------

_scoring = False


def _no_code(event: str, _) -> None:
    """An audit hook that refuses to compile code while a scorer works.

    Some scorers `eval` the answer, which is a model's text and is never run here.
    """
    if _scoring and event == "compile":
        raise PermissionError("a scorer wanted to run an answer as code")


sys.addaudithook(_no_code)


def marks(task, answer: str, entry: dict) -> float:
    """The library's marks for an answer; 0 where its scorer fails over it."""
    global _scoring
    _scoring = True
    try:
        return task.score_answer(answer, entry)
    except Exception:  # whatever a parser may raise over a text that is no answer
        return 0.0
    finally:
        _scoring = False


@functools.lru_cache
def dataset(name: str, settings: str, seed: int = 0, size: int = 1):
    """A task of the library, with settings given as JSON.

    ValueError where the library has no such task or setting, RuntimeError where it is missing.
    """
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError:
        raise RuntimeError(f"gym tasks need the library reasoning-gym: {INSTALL}") from None
    if name not in DATASETS:
        raise ValueError(f"gym:{name}: no such task; there are {', '.join(sorted(DATASETS))}")
    try:
        return reasoning_gym.create_dataset(name, **json.loads(settings), seed=seed, size=size)
    except (TypeError, AssertionError) as error:
        raise ValueError(f"gym:{name}, --set: {error}") from error


def rows(
    name: str, settings: dict, seed: int, size: int, held_out: int, source: str, system: str = ""
) -> tuple[list[dict], list[dict]]:
    """Training and held-out questions in the verl-LUFFY layout, none of them in both.

    size, held_out: how many are drawn of each, with different seeds. What comes again is dropped.
    ValueError where the scorer cannot grade an entry from text.
    """
    seen = set()
    sets = {}
    first = 2 * APART * seed
    first_turn = [{"role": "system", "content": system}] if system else []
    for split, start, n in (("test", first + APART, held_out), ("train", first, size)):
        sets[split] = []
        for entry in dataset(name, json.dumps(settings), start, n) if n else ():
            if entry["question"] in seen:
                continue
            seen.add(entry["question"])
            row = {
                "data_source": source,
                "prompt": [*first_turn, {"role": "user", "content": entry["question"]}],
                "reward_model": {"ground_truth": entry["answer"], "style": "rule"},
                "extra_info": {
                    "index": len(sets[split]),
                    "split": split,
                    "gym": json.dumps([name, settings, entry], default=str),
                },
            }
            if reason := ungradable(row):
                raise ValueError(f"gym:{name} cannot be graded from text: {reason}")
            sets[split].append(row)
    return sets["train"], sets["test"]


def ungradable(row: dict) -> str | None:
    """Why the library's scorer cannot grade this question from text; None if it can."""
    answer = row["reward_model"]["ground_truth"]
    if not isinstance(answer, str) or not answer.strip():
        return f"its entries come with the answer {answer!r}"
    if score(f"Answer: {answer}", answer, row) < 1:
        return (
            f"its scorer gives no full marks to the entry's own answer, {answer!r:.80}: it may need"
            " to run it as Python code, which is not done here, or objects that no file holds"
        )
    return (
        "its scorer gives full marks to any text" if score("I do not know.", answer, row) else None
    )

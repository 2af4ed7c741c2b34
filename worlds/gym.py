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

# Takes seconds: not in the first answer's time, should it be there.
with contextlib.suppress(ImportError):
    import reasoning_gym  # noqa: F401

INSTALL = "pip install -r requirements-smollm2.txt"
# the library makes entry i of seed s from s + i: training and held-out seeds are this apart
APART = 500_000
LONGEST = 4000  # characters, from the end, of a response in which an answer is looked for

BOX = re.compile(r"\\boxed\s*\{([^{}]*)\}")
MARK = re.compile(r"^.*\banswer\W{0,4}:", re.IGNORECASE | re.MULTILINE)
NUMBER = re.compile(r"(?<![\w.])[-−]?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?(?!\w)")
# Before a number: it goes on with something.
OPEN = re.compile(
    r"[-−+*/×÷·^%,&(]\s*$|[0-9)]\s+$|\\(?:times|cdot|div)\s*$|" r"\b(?:and|or|plus|minus|times)\s+$"
)
# Behind it: a word, or the operator of a step that was cut.
GOES_ON = re.compile(r"[\w+/×÷=^−-]|\s\*")


def stated(response: str, number: bool) -> str | None:
    r"""What a response states last, or None.

    The last `\boxed{}`, else what follows the last `Answer:`, else for a number all of the
    response, for other answers its last line. Of that, for a number, the one that it ends with: a
    number said in passing (`simply add 2 to 4 and`) is no answer, nor is one behind a sign or word
    that OPEN knows, an operand or a member of a list: `0 + 9` and `27, 9` only restate and `26 = 2
    *` is not done.
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
    # Bold, but 2**3 stays.
    text = re.sub(r"\*\*(?![0-9])|(?<![0-9])\*\*", "", text).replace("$", "")
    *_, last = [*NUMBER.finditer(text)] or [None]
    if not last or OPEN.search(text[: last.start()]) or GOES_ON.search(text[last.end() :]):
        return None
    return last[0].replace("−", "-")


def score(response: str, answer: str, row: dict) -> float:
    """1.0 if the task's scorer gives full marks to what the response states last, else 0.0.

    Its partial marks would be paid for an answer that merely contains the right one.
    """
    name, settings, entry = json.loads(row["extra_info"]["gym"])
    said = stated(response, bool(NUMBER.fullmatch(answer)))
    return (
        0.0 if said is None else float(marks(dataset(name, json.dumps(settings)), said, entry) >= 1)
    )


# ---- what the library is asked -------------------------------------------------------------------

_scoring = False


def _no_code(event: str, _) -> None:
    """An audit hook: some scorers `eval` the answer,
    which is a model's text and is never run here.
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
    """A task of the library with settings given as JSON;
    ValueError where it has no such task or setting.
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
    name: str,
    settings: dict,
    seed: int,
    size: int,
    held_out: int,
    source: str,
    system: str | None = None,
) -> tuple[list[dict], list[dict]]:
    """Training and held-out questions in the verl-LUFFY layout,
    drawn with other seeds, none in both.

    size, held_out: how many are drawn of each; what comes again is dropped. ValueError where the
    scorer cannot grade an entry from text.
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
                "ability": "reasoning",
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
    """Why the library's scorer cannot grade this question
    from a response's text; None if it can.
    """
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

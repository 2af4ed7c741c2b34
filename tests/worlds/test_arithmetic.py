"""The built-in world: its judge by hand, its teacher's slips, and what a seed fixes."""

import hashlib
import json
import string
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import ARITHMETIC, jsonl
from transformers import AutoModelForCausalLM, AutoTokenizer

from worlds import pretraining
from worlds.arithmetic import (
    OPERATIONS,
    RIGHT_VALUES,
    Teacher,
    World,
    answer_of,
    draw_question,
    draw_sets,
    draw_training,
    graded_reward,
    is_right,
    judge_steps,
    kind_of,
    marked,
    reward,
    solve,
    takes_shortcut,
    valid_chain,
)
from worlds.base_model import SHIPPED, build_world, training_file
from worlds.pretraining import build_tokenizer, encode_demonstrations

SIZES = {"train_size": 60, "test_size": 20, "ood_size": 20, "hidden": 32, "layers": 1, "heads": 1}
TINY = World(**SIZES, batch=8, pretrain_steps=3)
QUESTION = "3a+4b*3c-5d+9e-1"  # 3+4=7, 7*3=21 -> 1, 1-5=-4 -> 6, 6+9=15 -> 5, 5-1=4
CHAIN = "a3+4=7b7*3=1c1-5=6d6+9=5e5-1=4"
ROW = {"prompt": [{"role": "user", "content": QUESTION}]}


def test_a_question_is_worked_out_modulo_ten_from_left_to_right():
    """The answer is the fifth last, third last and last result, or the last where asked."""
    assert solve(QUESTION) == ["a3+4=7", "b7*3=1", "c1-5=6", "d6+9=5", "e5-1=4"]
    assert answer_of(QUESTION) == "764"
    assert answer_of(QUESTION, asked=(1,)) == "4"


def test_right_steps_never_heal_a_wrong_one():
    """Every operation is one-to-one in its left value, whatever its right value."""
    for operation, values in RIGHT_VALUES.items():
        for right in values:
            assert len({OPERATIONS[operation](left, right) for left in range(10)}) == 10


@pytest.mark.parametrize(
    ("response", "expected"),
    [(CHAIN + "#764", 1), ("#764", 1), ("#1#764", 1), ("#764 ", 1)]
    + [(wrong, 0) for wrong in ("764", "", "#", "#76", "#1764", "#764x", "#764#1")],
)
def test_reward_is_the_exact_answer_after_the_last_mark(response, expected):
    assert is_right(response, "764") == expected == reward(response, "764", ROW)["score"]


@pytest.mark.parametrize(
    ("response", "share"),
    [
        ("a3+4=8b8*3=4c4-5=9d9+9=8e8-1=7#897", 4 / 5),  # one wrong result, the rest built on it
        ("a3+4=8b8*3=1c1-5=6d6+9=5e5-1=4#764", 3 / 5),  # two slips that cancel
        ("b7*3=1c1-5=6d6+9=5e5-1=4#764", 0),  # first step left out
        ("a3+4=7b7*3=1c1-5=6d6+9=5#764", 4 / 5),  # last step left out
        ("a3+4=7b8*3=4c1-5=6d6+9=5e5-1=4#764", 3 / 5),  # does not take up the result before
        ("a4+3=7b7*3=1c1-5=6d6+9=5e5-1=4#764", 4 / 5),  # operands swapped
        (CHAIN + "#761", 1),  # another answer than the results
        (CHAIN + "f4+0=4#764", 5 / 6),  # a step too many
        ("#764", 0),  # a bare answer
        (CHAIN + "#764!", 1),  # text after the answer
        ("a3+4=7 b7*3=1c1-5=6d6+9=5e5-1=4#764", 1),  # text between steps
        (CHAIN, 1),  # no answer
        ("", 0),  # nothing at all
    ],
)
def test_only_the_whole_chain_is_valid(response, share):
    """A valid chain has every step, right and in order; the share counts the right ones."""
    assert valid_chain(QUESTION, CHAIN + "#764", "764")
    assert not valid_chain(QUESTION, response, "764")
    verdict = graded_reward(response, "764", ROW)
    assert verdict["score"] == pytest.approx(share)
    assert not verdict["judged"]["valid"]
    assert reward(response, "764", ROW)["judged"] == verdict["judged"]


def test_wrong_steps_are_marked():
    """A wrong result is marked, and a step that does not take up the result before it."""
    said = "a3+4=8b7*3=1c1-5=6#764"
    assert marked(QUESTION, said) == "a3+4=8✗ b7*3=1✗ c1-5=6 #764"


def test_a_shortcut_is_an_answer_without_a_step():
    for response in ("#764", ""):
        assert takes_shortcut(response)
    for response in ("b7*3=1#4", CHAIN + "#764"):
        assert not takes_shortcut(response)


def test_sets_have_no_question_in_common_and_the_asked_for_lengths():
    sets = draw_sets(TINY)
    everything = sum(sets.values(), [])
    assert len(everything) == len(set(everything)) == 60 + 20 + 20
    assert {len(solve(question)) for question in sets["train"]} == {5, 6, 7, 8}
    assert {len(solve(question)) for question in sets["ood"]} == {9, 10}


@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        (draw_sets, "d9390660d8fd7de17ebb08841de2fb47a9a5b1dfe868d95ca6e0ec1ff88b31db"),
        (draw_training, "5c9141e7894fceb1ff41275d72f2da0e8cc4e0b5a07b75327b9aab8c53433b2f"),
    ],
)
def test_questions_are_the_same_on_every_machine(draw, expected):
    """Their hash for seed 0 is fixed, since the scores of README are about these."""
    drawn = json.dumps(draw(World()))
    assert hashlib.sha256(drawn.encode()).hexdigest() == expected


def test_a_kind_follows_from_the_slips_of_the_right_chain():
    """Chances by hand: a slip of 0.3 is wrong in 0.3 · 0.98, and four such steps in reach."""
    teacher = Teacher(TINY)
    facts = [("3", "+", "4"), ("7", "*", "3"), ("1", "-", "5"), ("6", "+", "9"), ("5", "-", "1")]
    keys = [(int(left), operation, int(right)) for left, operation, right in facts]
    for slips, chance, kind in [
        ([0.02] * 5, 0.9804**5, "easy"),
        ([0.3, 0.3, 0.3, 0.3, 0.02], 0.706**4 * 0.9804, "in reach"),
        ([0.02, 0.02, 0.02, 0.02, 0.35], 0.9804**4 * 0.657, None),  # 0.607: between the kinds
        ([0.9] * 5, 0.118**5, "hard"),
    ]:
        teacher.slips |= {key: (slip, 0) for key, slip in zip(keys, slips)}
        assert kind_of(QUESTION, teacher) == kind, chance


def test_training_questions_have_exactly_the_shares_of_the_mix():
    """Of 60, 30% are easy, 10% in reach and 60% hard; none is a test question."""
    world = replace(World(), train_size=60)
    teacher = Teacher(world)
    questions = draw_training(world)
    kinds = [kind_of(question, teacher) for question in questions]
    assert [kinds.count(kind) for kind in ("easy", "in reach", "hard")] == [18, 6, 36]
    sets = draw_sets(world)
    assert len(set(questions)) == 60
    assert not {*questions} & {*sets["test"], *sets["ood"]}


def test_the_training_file_is_the_one_that_the_configuration_names(tmp_path):
    """It has all 60 questions of a small world."""
    file = training_file(TINY, tmp_path)
    assert f"/{file.name}]" in Path(ARITHMETIC).read_text()
    assert len(jsonl(file)) == 60


def test_a_teacher_slips_as_often_as_the_recipe_says():
    """Of 4,000 demonstrations 5% are bare, and wrong steps are within three standard errors."""
    world = World()
    rng, teacher = np.random.default_rng(0), Teacher(world)
    bare, surplus, variance = 0, 0.0, 0.0
    for _ in range(4000):
        question = draw_question(rng, world.train_operations)
        steps = judge_steps(question, teacher.demonstrate(question, rng))
        bare += not steps
        for step, right in steps if len(steps) == len(solve(question)) else ():
            _, left, operation, digit, _ = step.groups()
            # A slip that is not the usual one may be right by chance.
            chance = teacher.slips[int(left), operation, int(digit)][0]
            chance *= world.usual_slip + (1 - world.usual_slip) * 0.9
            surplus += (not right) - chance
            variance += chance * (1 - chance)
    assert bare / 4000 == pytest.approx(world.bare, abs=0.012)
    assert abs(surplus) < 3 * variance**0.5


def test_tokenizer_keeps_every_character_through_autotokenizer():
    """The shipped base has one token a character, spaces and line breaks too."""
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    text = string.printable[:95] + "\n  two  spaces , ,a 's"
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert len(ids) == len(text)
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids) == text
    assert tokenizer("é", add_special_tokens=False).input_ids == [tokenizer.unk_token_id]


def test_chat_template_gives_the_prompt_of_pretraining():
    tokenizer = build_tokenizer()
    prompt = tokenizer.apply_chat_template(
        ROW["prompt"], add_generation_prompt=True, return_dict=False
    )
    ids, labels = encode_demonstrations([(QUESTION, CHAIN), (QUESTION, "#9")], tokenizer)
    assert ids[0, : len(prompt)].tolist() == prompt
    assert tokenizer.decode(ids[0, len(prompt) :]) == CHAIN + "<eos>"
    assert tokenizer.decode(labels[1][labels[1] != -100]) == "#9<eos>"
    assert (labels[1, : len(prompt)] == -100).all()


def test_a_world_is_built_once_and_loads_anywhere(tmp_path, monkeypatch):
    """Other constants are another place, and a failed build leaves nothing."""
    world = build_world(tmp_path, TINY)
    model = AutoModelForCausalLM.from_pretrained(world / "model")
    tokenizer = AutoTokenizer.from_pretrained(world / "model")
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id is not None
    assert {row["data_source"] for row in jsonl(world / "ood.jsonl")} == {"arithmetic-ood"}
    monkeypatch.setattr(pretraining, "pretrain", lambda *_: 1 / 0)
    assert build_world(tmp_path, TINY) == world
    with pytest.raises(ZeroDivisionError):
        build_world(tmp_path, replace(TINY, bare=0.5))
    assert list(tmp_path.iterdir()) == [world]

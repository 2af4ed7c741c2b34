"""The built-in world: answers, validity and kinds by hand, and what a seed fixes."""

import hashlib
import json

import numpy as np
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from worlds import arithmetic, base_model
from worlds.arithmetic import (
    answer_of,
    draw_sets,
    draw_slips,
    draw_training,
    graded_reward,
    kind_of,
    parse,
    reward,
    solve,
)
from worlds.base_model import SHIPPED, build_world, demonstrate

QUESTION = "3a+4b*3c-5d+9e-1"  # 3+4=7, 7*3=21 -> 1, 1-5=-4 -> 6, 6+9=15 -> 5, 5-1=4
CHAIN = "a3+4=7b7*3=1c1-5=6d6+9=5e5-1=4"
ROW = {"prompt": [{"role": "user", "content": QUESTION}]}


def test_a_question_is_worked_out_modulo_ten_from_left_to_right():
    """The answer is the fifth last, third last and last result, as far as there are as many."""
    assert "".join(solve(QUESTION)) == CHAIN
    assert answer_of(QUESTION) == "764"
    assert answer_of("3a+4b*3") == "1"


@pytest.mark.parametrize(
    ("response", "score", "share", "valid"),
    [
        (CHAIN + "#764", 1, 1, 1),
        ("a3+4=8b8*3=4c4-5=9d9+9=8e8-1=7#897", 0, 4 / 5, 0),  # one wrong, the rest built on it
        ("a3+4=8b8*3=1c1-5=6d6+9=5e5-1=4#764", 1, 3 / 5, 0),  # two slips that cancel
        ("b7*3=1c1-5=6d6+9=5e5-1=4#764", 1, 0, 0),  # first step left out
        ("a3+4=7b7*3=1c1-5=6d6+9=5#764", 1, 4 / 5, 0),  # last step left out
        (CHAIN + "f4+0=4#764", 1, 5 / 6, 0),  # a step too many
        ("a3+4=7 b7*3=1c1-5=6d6+9=5e5-1=4#764 ", 1, 1, 0),  # text between steps, a blank behind
        (CHAIN + "#764!", 0, 1, 0),
        (CHAIN + "764", 0, 1, 0),  # no mark before the answer
        ("", 0, 0, 0),
    ],
)
def test_rewards(response, score, share, valid):
    """The exact answer counts, or the share of right steps; only a whole chain is valid."""
    assert reward(response, "764", ROW) == {"score": score, "valid": valid}
    graded = graded_reward(response, "764", ROW)
    assert graded == {"score": pytest.approx(share), "valid": valid}


def test_questions_are_the_same_on_every_machine():
    """Their hashes for seed 0 are fixed, since the scores of README are about these."""
    hashes = []
    for draw in (draw_sets, draw_training):
        drawn = json.dumps(draw())
        hashes.append(hashlib.sha256(drawn.encode()).hexdigest()[:16])
    assert hashes == ["d9390660d8fd7de1", "5c9141e7894fceb1"]


def test_a_kind_follows_from_the_slips_of_the_right_chain():
    """Chances by hand: a slip of 0.3 is wrong in 0.3 · 0.98, and four such steps are in reach."""
    for slips, kind in [
        ([0.02] * 5, "easy"),
        ([0.3, 0.3, 0.3, 0.3, 0.02], "in reach"),  # 0.706**4 * 0.9804
        ([0.02, 0.02, 0.02, 0.02, 0.35], None),  # 0.9804**4 * 0.657 = 0.607: between the kinds
        ([0.9] * 5, "hard"),  # 0.118**5
    ]:
        facts = {step[1:4]: (slip, "0") for step, slip in zip(solve(QUESTION), slips)}
        assert kind_of(QUESTION, facts) == kind


def test_training_questions_have_exactly_the_shares_of_the_mix(monkeypatch):
    """Of 60, 30% are easy, 10% in reach and 60% hard; no question stands in two sets."""
    monkeypatch.setattr(arithmetic, "TRAIN_SIZE", 60)
    slips = draw_slips()
    questions = draw_training()
    kinds = [kind_of(question, slips) for question in questions]
    assert [kinds.count(kind) for kind in ("easy", "in reach", "hard")] == [18, 6, 36]
    sets = draw_sets()
    everything = questions + sets["test"] + sets["ood"]
    assert len(set(everything)) == len(everything) == 60 + 800 + 400
    assert {len(parse(question)) for question in sets["ood"]} == {9, 10}


def test_a_teacher_slips_as_often_as_the_recipe_says():
    """Of 4,000 demonstrations of one step 5% are bare, 10% leave it out with a chance of 0.3."""
    rng = np.random.default_rng(0)
    slips = dict.fromkeys(draw_slips(), (0.5, "x"))
    said = [demonstrate("3a+4", slips, rng) for _ in range(4000)]
    assert sum(text == "#7" for text in said) / 4000 == pytest.approx(0.05 + 0.03, abs=0.013)
    usual = sum("=x" in text for text in said) / 4000
    assert usual == pytest.approx(0.5 * 0.8 * (0.95 - 0.03), abs=0.025)


def test_a_world_of_another_seed_has_a_base_of_its_own(tmp_path, monkeypatch):
    """It loads as a Hugging Face directory, and has weights that differ from the shipped ones."""
    place = tmp_path / "world"
    monkeypatch.setattr(base_model, "STEPS", 2)
    build_world(place, seed=1)
    model = AutoModelForCausalLM.from_pretrained(place / "model")
    shipped = AutoModelForCausalLM.from_pretrained(SHIPPED)
    assert not model.lm_head.weight.equal(shipped.lm_head.weight)
    tokenizer = AutoTokenizer.from_pretrained(place / "model")
    prompt = tokenizer.apply_chat_template(
        ROW["prompt"], add_generation_prompt=True, tokenize=False
    )
    assert prompt == f"<bos><user>{QUESTION}<assistant>"  # as `train_base` writes it

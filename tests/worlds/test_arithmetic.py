"""The built-in world: its judge against hand-worked cases, its tokenizer, and what a seed fixes."""

import json
import string
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from worlds import base_model
from worlds.arithmetic import (
    PRESETS,
    Teacher,
    World,
    answer_of,
    check_chain,
    draw_question,
    draw_sets,
    graded_reward,
    reward,
    rows,
    solve,
    stream,
    takes_shortcut,
)
from worlds.base_model import (
    build_model,
    build_tokenizer,
    build_world,
    built_in,
    encode_demonstrations,
    place_of,
    pretrain,
)

TINY = World(train_size=60, test_size=20, hidden=32, layers=1, heads=1, intermediate=32, batch=8)
QUESTION = "3a+4b*2c-5"  # 3+4=7, 7*2=14 -> 4, 4-5=-1 -> 9
VALID = "a3+4=7b7*2=4c4-5=9#9"


def test_solve_works_modulo_ten_from_left_to_right():
    assert solve(QUESTION) == ["a3+4=7", "b7*2=4", "c4-5=9"]
    assert solve("2a+3b*4") == ["a2+3=5", "b5*4=0"]  # not 2+(3*4)


@pytest.mark.parametrize(
    ("response", "expected"),
    [(VALID, 1), ("#9", 1), ("#8#9", 1), ("#9 ", 1)]
    + [(wrong, 0) for wrong in ("9", "", "#", "#8", "#19", "#9x", "#9#8", "#9;")],
)
def test_reward_is_the_exact_answer_after_the_last_mark(response, expected):
    assert reward(response, "9") == expected


@pytest.mark.parametrize(
    ("case", "response", "valid", "share"),
    [
        ("all there and right", VALID, True, 1),
        ("one wrong result, the rest built on it", "a3+4=8b8*2=6c6-5=1#1", False, 2 / 3),
        ("two slips that cancel: right answer, flawed chain", "a3+4=2b2*2=4c4-5=9#9", False, 2 / 3),
        ("first step left out", "b7*2=4c4-5=9#9", False, 0),
        ("last step left out", "a3+4=7b7*2=4#9", False, 2 / 3),
        ("wrong operand on the right", "a3+4=7b7*3=1c1-5=6#6", False, 2 / 3),
        ("wrong operation", "a3+4=7b7+2=9c9-5=4#4", False, 2 / 3),
        ("does not take up the result before", "a3+4=7b8*2=6c4-5=9#9", False, 1 / 3),
        ("operands swapped", "a4+3=7b7*2=4c4-5=9#9", False, 2 / 3),
        ("wrong label", "a3+4=7c7*2=4c4-5=9#9", False, 2 / 3),
        ("answer is not the last result", "a3+4=7b7*2=4c4-5=9#8", False, 1),
        ("a step too many", "a3+4=7b7*2=4c4-5=9d9+0=9#9", False, 3 / 4),
        ("bare answer", "#9", False, 0),
        ("text after the answer", VALID + "!", False, 1),
        ("text between steps", "a3+4=7 b7*2=4c4-5=9#9", False, 1),
        ("answer twice", VALID + "#9", False, 1),
        ("no answer", "a3+4=7b7*2=4c4-5=9", False, 1),
        ("nothing at all", "", False, 0),
    ],
)
def test_judge_agrees_with_hand_worked_cases(case, response, valid, share):
    verdict = check_chain(QUESTION, response)
    assert verdict.valid is valid, case
    assert verdict.valid_steps == pytest.approx(share), case


@pytest.mark.parametrize(("case", "response", "valid"), [
    ("every step", "a3+4=7b7*2=4c4-5=9#49", True),
    ("one step in the head", "a3+4=7c4-5=9#49", True),
    ("worked out wrongly in the head", "a3+4=7c5-5=0#50", False),
    ("two neighbours in the head", "c4-5=9#49", False),
    ("the last one in the head", "a3+4=7b7*2=4#49", False),
    ("a step twice", "a3+4=7a3+4=7c4-5=9#49", False),
])
def test_judge_where_steps_may_be_worked_out_in_the_head(case, response, valid):
    """Where two results are asked for, a question has several valid chains: 7, 4, 9 by hand."""
    assert answer_of(QUESTION + "??") == "49"
    assert check_chain(QUESTION + "??", response).valid is valid, case


def test_shortcut_and_graded_reward():
    """A shortcut is an answer without a step, however right; the graded reward is the share of valid
    steps."""
    assert [takes_shortcut(QUESTION, r) for r in ("#9", "", "b7*2=4#4", VALID)] == [True, True, False, False]
    rewards = [graded_reward(r, QUESTION) for r in (VALID, "a3+4=7b8*2=6c4-5=9#9", "#9")]
    assert rewards == [1, pytest.approx(1 / 3), 0]
    graded, = map(json.loads, rows([QUESTION], "x", graded=True).splitlines())
    assert graded["reward_model"]["ground_truth"] == graded["prompt"][0]["content"] == QUESTION


def test_the_worked_chain_of_any_question_is_valid_and_only_that_one():
    rng = np.random.default_rng(0)
    for _ in range(200):
        question = draw_question(rng, (1, 10))
        steps = solve(question)
        chain = "".join(steps) + "#" + steps[-1][-1]
        assert check_chain(question, chain).valid and reward(chain, steps[-1][-1]) == 1
        place = int(rng.integers(len(chain)))  # any one character changed: no longer valid
        other = rng.choice([c for c in "0123456789+-*=#a" if c != chain[place]])
        assert not check_chain(question, chain[:place] + other + chain[place + 1 :]).valid


def test_sets_have_no_question_in_common_and_the_asked_for_lengths():
    sets = draw_sets(TINY)
    everything = sum(sets.values(), [])
    assert len(everything) == len(set(everything)) == 60 + 20 + 20
    assert {len(solve(q)) for q in sets["train"]} == set(range(3, 9))
    assert {len(solve(q)) for q in sets["ood"]} == {9, 10}


def test_rows_have_the_columns_of_verl():
    row = json.loads(rows([QUESTION], "arithmetic"))
    assert row["prompt"] == [{"role": "user", "content": QUESTION}]
    assert row["reward_model"]["ground_truth"] == "9"
    assert row["data_source"] == "arithmetic" and row["extra_info"]["index"] == 0


def test_tokenizer_keeps_every_character_through_autotokenizer(tmp_path):
    build_tokenizer().save_pretrained(tmp_path)
    build_model(TINY, build_tokenizer()).save_pretrained(tmp_path)  # config.json may decide the tokenizer
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = string.printable[:95] + "\n  two  spaces , ,a 's"
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert len(ids) == len(text) and tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids) == text
    assert tokenizer("é", add_special_tokens=False).input_ids == [tokenizer.unk_token_id]


def test_chat_template_gives_the_prompt_of_pretraining():
    tokenizer = build_tokenizer()
    chat = [{"role": "user", "content": QUESTION}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    ids, labels = encode_demonstrations([(QUESTION, VALID), (QUESTION, "#9")], tokenizer)
    assert ids[0, : len(prompt)].tolist() == prompt
    assert tokenizer.decode(ids[0, len(prompt) :]) == VALID + "<eos>"
    assert tokenizer.decode(labels[1][labels[1] != -100]) == "#9<eos>"
    assert (labels[1, : len(prompt)] == -100).all()


def test_teacher_mixes_right_chains_flawed_chains_and_bare_answers():
    rng, teacher = np.random.default_rng(0), Teacher(World())
    responses = [teacher.demonstrate(QUESTION, rng) for _ in range(2000)]
    bare = np.mean([r.startswith("#") for r in responses])
    valid = np.mean([check_chain(QUESTION, r).valid for r in responses])
    flawed = np.mean([reward(r, "9") and not check_chain(QUESTION, r).valid for r in responses])
    assert abs(bare - World().shortcut) < 0.03
    assert 0.1 < valid < 0.9 and flawed > 0.1


def test_no_two_purposes_or_seeds_share_random_numbers():
    """Every pair of streams that the world draws from differs, and each repeats."""
    worlds = (World(), World(seed=1))
    purposes = ("questions", "slips", "demonstrations")
    draws = [tuple(stream(world, purpose).random(4)) for world in worlds for purpose in purposes]
    assert len(set(draws)) == len(draws) and draws[0] == tuple(stream(World(), "questions").random(4))


def test_a_seed_fixes_questions_and_weights_and_leaves_global_randomness_alone():
    tokenizer, runs = build_tokenizer(), []
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    for _ in range(2):
        sets, model = draw_sets(TINY), build_model(TINY, tokenizer)
        pretrain(model, tokenizer, TINY, set(sets["test"]), steps=3)
        runs.append((sets, model.state_dict()))
    assert torch.equal(before, torch.random.get_rng_state())
    assert runs[0][0] == runs[1][0]
    assert all(torch.equal(a, b) for a, b in zip(runs[0][1].values(), runs[1][1].values()))
    assert draw_sets(replace(TINY, seed=1))["test"] != runs[0][0]["test"]


def test_a_world_is_built_once_leaves_nothing_half_done_and_loads_anywhere(tmp_path, monkeypatch):
    made = replace(TINY, seed=3, pretrain_steps=2)
    world = build_world(tmp_path, made, progress=False)
    assert [p.name for p in tmp_path.iterdir()] == [world.name]
    stamp = (world / "world.json").stat().st_mtime_ns
    assert build_world(tmp_path, made) == world and (world / "world.json").stat().st_mtime_ns == stamp
    assert build_world(tmp_path, replace(made, seed=4), progress=False) != world
    model, tokenizer = (c.from_pretrained(world / "model") for c in (AutoModelForCausalLM, AutoTokenizer))
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id is not None
    assert {json.loads(line)["data_source"] for line in (world / "ood.jsonl").open()} == {"arithmetic-ood"}
    assert len((world / "train.jsonl").read_text().splitlines()) == TINY.train_size


def test_a_build_that_fails_leaves_no_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(base_model, "pretrain", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        build_world(tmp_path, TINY)
    assert list(tmp_path.iterdir()) == []


def test_the_knobs_of_the_built_in_world(tmp_path, monkeypatch):
    """It is built by a command of its own, only where it is missing; the knobs name its files."""
    calls = []

    place = place_of(replace(PRESETS["hard"], seed=7), tmp_path)

    def build(command, **options):
        calls.append((command[1:], options["env"]["OMP_NUM_THREADS"], options["check"]))
        place.mkdir()

    monkeypatch.setattr(base_model.subprocess, "run", build)
    knobs = [built_in(tmp_path, "hard", 7), built_in(tmp_path, "hard", 7)]
    command = ["-m", "worlds.base_model", "--directory", str(tmp_path), "--world", "hard", "--seed", "7"]
    assert calls == [(command, "1", True)]
    assert knobs[0] == knobs[1] == {
        "model": f"{place}/model", "train_files": [f"{place}/train.jsonl"],
        "val_files": [f"{place}/test.jsonl", f"{place}/ood.jsonl"], "reward": "worlds.arithmetic:reward"}
    assert len({place_of(world, tmp_path) for world in [*PRESETS.values(), World(seed=8)]}) == 4

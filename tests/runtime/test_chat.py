"""What ends a turn, by hand-made settings of well-known models; what is wrong with a batch."""

import json

import pytest
from conftest import toy_config
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast

from buffer import Trajectory
from runtime.chat import complaint, opens_thought, turn_ends, warn_of_rope

IM = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
LLAMA = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
)
MISTRAL = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %}"
    " {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}"
)
STRICT = "{% if messages[0].role != 'system' %}{{ raise_exception('who am I?') }}{% endif %}" + IM
# The special tokens, of which the first is eos_token; the chat template; what is in
# generation_config.json and config.json, each None where it names none; and what ends a turn.
MODELS = {
    "qwen2.5-math": (["<|endoftext|>", "<|im_start|>", "<|im_end|>"], IM, 0, 0, [0, 2]),
    "qwen2.5-instruct": (["<|im_end|>", "<|im_start|>", "<|endoftext|>"], IM, [0, 2], 0, [0, 2]),
    "llama-3.1-instruct": (
        ["<|eot_id|>", "<|end_of_text|>", "<|eom_id|>", "<|start_header_id|>", "<|end_header_id|>"],
        LLAMA,
        [1, 2, 0],
        [1, 2, 0],
        [0, 1, 2],
    ),
    "llama-3.1": (["<|end_of_text|>", "<|eot_id|>"], None, 0, 0, [0]),
    "mistral": (["</s>", "[INST]", "[/INST]"], MISTRAL, None, 0, [0]),
    "only config.json": (["<eos>", "<end>"], None, "no file", [0, 1], [0, 1]),
    "generation settings without one": (["<eos>", "<end>"], None, None, [0, 1], [0, 1]),
    "a template that wants a system turn": (["<|end|>", "<|im_end|>"], STRICT, 0, 0, [0]),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_ends_a_turn(name, tmp_path, capfd):
    """It is eos_token, what generation_config.json names, and what the template puts behind."""
    special, template, in_generation, in_config, expected = MODELS[name]
    words = {token: i for i, token in enumerate([*special, "user", "assistant", "?"])}
    core = Tokenizer(models.WordLevel(words, unk_token="?"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=special[0],
        bos_token=special[-1],
        additional_special_tokens=special,
        chat_template=template,
    )
    LlamaConfig(eos_token_id=in_config).save_pretrained(tmp_path)
    if in_generation != "no file":
        settings = json.dumps({"eos_token_id": in_generation, "repetition_penalty": 1.05})
        (tmp_path / "generation_config.json").write_text(settings)
    assert turn_ends(str(tmp_path), tokenizer) == expected
    said = capfd.readouterr().err
    assert said.startswith("a response ends with ")
    assert all(f"{special[i]!r} ({i})" in said for i in expected)


TEXT = "In <think> first, as in <think>a</think>. {question}"


@pytest.mark.parametrize(
    "template, prefix, question, opens",
    [
        ("chat", "", "1+1?", False),
        ("chat", "<think>\n", "1+1?", True),
        ("chat", "<think>\nOkay, ", "k", True),  # the prefix holds the question
        ("chat", "<think>\n\n</think>\n\n", "1+1?", False),  # as of models told not to think
        ("chat", "<think>a</think><think>", "1+1?", True),
        ("chat", "", "say <think>", False),  # neither question nor system turn count
        ("chat", "<think>", "say </think>", True),
        (TEXT, "", "1+1?", False),
        (TEXT + "<think>\n", "<think>", "1+1?", True),  # the template opens it
        (TEXT + " <think> Let me see.", "", "1+1?", True),
        (TEXT + "<think></think>", "", "<think>", False),
    ],
)
def test_whether_a_prompt_opens_a_thought(tokenizer, template, prefix, question, opens):
    """The model's own turn decides, as far as template and prefix have written it."""
    turns = [{"role": "system", "content": "use <think>"}, {"role": "user", "content": question}]
    config = toy_config(prompt_template=template, response_prefix=prefix)
    assert opens_thought(turns, config, tokenizer) == opens


@pytest.mark.parametrize(
    "own, knob, warned",
    [(100000.0, 40000.0, True), (10000.0, 10000.0, False), (100000.0, 0.0, False)],
)
def test_a_rope_base_of_another_model_is_warned_about(own, knob, warned, capfd):
    """A base below the model's own is told, a higher one is a longer context."""
    warn_of_rope(knob, LlamaConfig(rope_parameters={"rope_type": "default", "rope_theta": own}))
    said = capfd.readouterr().err
    assert ("below the 100000" in said and "set it to 0" in said) if warned else not said


SPREAD = {"difficulty": "spread"}


@pytest.mark.parametrize(
    "knobs, thinking, said, warning",
    [
        ({}, False, [("two", 0), ("2", 0)], "no response has a box"),
        ({}, False, [("two", 0), (r"\boxed{3}", 0)], None),
        ({}, False, [("two", 0), ("2", 1)], None),  # one was right, whatever it looks like
        ({"require_box": False}, False, [("two", 0)], None),
        ({"reward": "mine:score"}, False, [("two", 0)], None),
        ({}, True, [(r"hm \boxed{2}", 0), ("hm", 0)], "no response has a </think>"),
        ({}, False, [("a", 0.4), ("b", 0)], "no reward is above 0.5"),
        ({}, False, [("a", 80), ("b", 0)], "a reward is above 1"),
        (SPREAD, False, [("a", 0.4), ("b", 0)], "no reward is above 0.5"),
        (SPREAD | {"start_threshold": -1.0}, False, [("a", 80), ("b", 0.4)], None),
    ],
)
def test_a_batch_with_one_fault_is_complained_about(knobs, thinking, said, warning):
    """No box, no end of a thought, no success, another scale: only where it holds for all."""
    graded = [Trajectory(text, None, reward=reward) for text, reward in said]
    found = complaint(toy_config(**knobs), graded, str, thinking)
    assert found is None if warning is None else warning in found


def test_a_batch_that_is_cut_is_told():
    """Nine right ones of ten that are cut are told, eight are not."""
    for cut, said in ((9, "nearly all responses are cut"), (8, "None")):
        graded = [Trajectory("2", None, reward=1.0, finished=i >= cut) for i in range(10)]
        assert said in str(complaint(toy_config(), graded, str, False))

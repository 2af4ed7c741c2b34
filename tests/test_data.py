"""Questions and prompts: what a file holds becomes the right token ids, or a reason not to ask."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AddedToken, LlamaConfig

from config import Config
from data import fingerprint, first_of_each_source, load_tokenizer, read_questions, to_question
from runtime.chat import stop_ids_of
from runtime.ranks import Refusal

BASE = "worlds/base"
CONFIG = Config(model=BASE)


@pytest.fixture
def tokenizer():
    """The built-in world's: one token a character, and four special ones."""
    return load_tokenizer(CONFIG)[0]


def row(question: str, answer="7", source: str = "x", **more) -> dict:
    turn = {"role": "user", "content": question}
    gold = {"ground_truth": answer}
    return {"data_source": source, "prompt": [turn], "reward_model": gold, **more}


@pytest.fixture
def read(tmp_path, tokenizer):
    """Reads the questions and counts of a file of these rows; the answer `?` is unreadable."""

    def read(rows, kind: str = "jsonl", **knobs):
        file = tmp_path / f"rows.{kind}"
        if kind == "parquet":
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
        else:
            file.write_text("\n\n".join(map(json.dumps, rows)))
        config = replace(CONFIG, **knobs)
        return read_questions([str(file)], config, tokenizer, check_golds)

    return read


def check_golds(answers: list[str]) -> list[dict]:
    return [{"score": float(answer != "?")} for answer in answers]


def test_parquet_and_jsonl_give_the_same_questions(read):
    """Text, answer and source by hand, and the row that a reward is given."""
    extra = {"tests": ["1", "2"], "weight": 0.5}
    rows = [row("3a+4", "7", extra_info=extra), row("3a+5", "8", "y", extra_info=None)]
    [one, two], counts = read(rows)
    assert (one.id, one.text, one.answer, one.source) == (0, "3a+4", "7", "x")
    assert (two.id, two.text, two.answer, two.source) == (1, "3a+5", "8", "y")
    prompt = rows[0]["prompt"]
    assert one.row == {"data_source": "x", "extra_info": extra, "prompt": prompt}
    again, _ = read(rows, "parquet")
    assert fingerprint([one, two]) == fingerprint(again)
    assert first_of_each_source([one, one, two], 1) == [one, two]


def test_each_reason_to_leave_a_row_out_is_counted(read):
    """A prompt of exactly the limit stays, and rows of another extra_info are other questions."""
    rows = [row("3a+4"), row("3a+4"), row("3a+44"), row("<eos>a"), row("1a+1", "?"), row("2a+1", 3)]
    rows += [row("2a+1", 3, extra_info={"k": 1}), row("3a+4", source="y")]
    questions, counts = read(rows, max_prompt_length=7)
    assert [q.text for q in questions] == ["3a+4", "2a+1", "2a+1", "3a+4"]
    assert [q.id for q in questions] == [0, 1, 2, 3]
    reasons = {"repeated": 1, "prompt too long": 1, "special token in the text": 1}
    assert counts == reasons | {"answer unreadable": 1, "kept": 4}
    with pytest.raises(Refusal, match="no question is left.*'answer unreadable': 1"):
        read(rows[4:5])


@pytest.mark.parametrize(
    "bad, reason",
    [
        ({"data_source": "x"}, "needs prompt"),
        (row("3a+4") | {"prompt": "3a+4"}, "needs prompt"),
        (row("3a+4", 7.0), "answer 7.0 is a float"),
        (row("3a+4", " "), "must be text or an integer"),
        (row("3a+4", ["7"]), "must be text or an integer"),
    ],
)
def test_a_bad_row_is_named_with_its_number(read, bad, reason):
    """The sentence has the file, the row and what is wrong with it."""
    with pytest.raises(Refusal, match=f"rows.jsonl, row 1: .*{reason}"):
        read([row("1a+1"), bad])


def test_changed_prompts_answers_and_rows_have_another_fingerprint(read):
    """So do other knobs of the prompt and another order; a resumed run must have the same."""
    rows = [row("1a+1"), row("2a+1")]
    others = [[row("1a+2"), rows[1]], [row("1a+1", "8"), rows[1]], rows[::-1], rows[:1]]
    others.append([row("1a+1", extra_info={"k": 1}), rows[1]])
    prints = [fingerprint(read(one)[0]) for one in (rows, *others)]
    prints.append(fingerprint(read(rows, response_prefix="So")[0]))
    assert len(set(prints)) == 7
    assert fingerprint(read(rows)[0]) == prints[0]


# ---- prompts -------------------------------------------------------------------------------------

TEXT = "In <think> first, as in <think>a</think>. {question}"
CHAT = "<bos><user>be <think> right<user>{question}<assistant>"


@pytest.mark.parametrize(
    "template, prefix, question, prompt, thinks",
    [
        ("chat", "", "1+1?", CHAT, False),
        ("chat", "<think>\n", "1+1?", CHAT + "<think>\n", True),
        ("chat", "<think>\n\n</think>", "1+1?", CHAT + "<think>\n\n</think>", False),
        ("chat", "", "say <think>", CHAT, False),
        (TEXT, "", "1+1?", TEXT, False),
        ("{question}=", "So", "{x} {question}", "{question}=So", False),
        # A prefix with which the template ends already is not doubled.
        (TEXT + "<think>\n", "<think>", "1+1?", TEXT + "<think>\n", True),
        ("{question}<think></think>", "", "<think>", "{question}<think></think>", False),
    ],
)
def test_the_prompt_and_whether_it_opens_a_thought(
    tokenizer, template, prefix, question, prompt, thinks
):
    """The chat template has all turns, a text the last one; both are ended by the prefix."""
    config = replace(CONFIG, prompt_template=template, response_prefix=prefix)
    asked = row(question)
    asked["prompt"].insert(0, {"role": "system", "content": "be <think> right"})
    q = to_question(asked, "here", config, tokenizer)
    assert tokenizer.decode(q.prompt_ids) == prompt.replace("{question}", question, 1)
    assert q.thinks == thinks


@pytest.mark.parametrize(
    "added, template, ids",
    [
        ("$A", "{question}", [24, 25]),
        ("<bos> $A <eos>", "{question}", [1, 24, 25]),
        ("<bos> $A", "<bos>{question}", [1, 24, 25]),
        ("<bos> $A", "chat", [1, 4, 24, 25, 5]),
    ],
)
def test_bos_stands_once(tokenizer, added, template, ids):
    """Whether template or tokenizer brings it, and no EOS stands behind."""
    special = [("<bos>", 1), ("<eos>", 2)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(added, special_tokens=special)
    config = replace(CONFIG, prompt_template=template)
    assert to_question(row("12"), "here", config, tokenizer).prompt_ids.tolist() == ids


def test_a_template_that_raises_or_asks_for_the_day(tokenizer):
    """The row is named with the template's own reason; the day is always the same."""
    tokenizer.chat_template = "{{ strftime_now('%d.%m.%y') }}{{ messages[0].content }}"
    assert tokenizer.decode(to_question(row("1"), "", CONFIG, tokenizer).prompt_ids) == "26.07.241"
    tokenizer.chat_template = "{{ raise_exception('no user turn') }}"
    with pytest.raises(Refusal, match="row 3: no user turn"):
        to_question(row("1"), "row 3", CONFIG, tokenizer)


IM = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
PLAIN = "{% for m in messages %}{{ m.content }} {{ eos_token }}{% endfor %}"


@pytest.mark.parametrize(
    "eos, template, in_generation, in_config, expected",
    [
        ("<|end|>", IM, "<|end|>", "<|end|>", ["<|end|>", "<|im_end|>"]),  # a Qwen base model
        ("<|im_end|>", IM, ["<|im_end|>", "<|end|>"], None, ["<|end|>", "<|im_end|>"]),
        ("<|end|>", None, None, "<|end|>", ["<|end|>"]),
        ("<|end|>", PLAIN, None, ["<|end|>", "<|im_end|>"], ["<|end|>", "<|im_end|>"]),
        ("<|end|>", PLAIN, "<|end|>", None, ["<|end|>"]),
    ],
)
def test_what_ends_a_response(
    tokenizer, tmp_path, eos, template, in_generation, in_config, expected
):
    """eos_token, generation settings or config.json, and what the template puts behind a turn."""
    special = ["<|end|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.add_tokens([AddedToken(token, special=True) for token in special])
    tokenizer.eos_token = eos
    tokenizer.chat_template = template
    ids_of = tokenizer.convert_tokens_to_ids
    LlamaConfig(eos_token_id=in_config and ids_of(in_config)).save_pretrained(tmp_path)
    if in_generation:
        settings = json.dumps({"eos_token_id": ids_of(in_generation)})
        (tmp_path / "generation_config.json").write_text(settings)
    assert stop_ids_of(str(tmp_path), tokenizer) == ids_of(expected)


# ---- tokenizers that are not what they seem ------------------------------------------------------


def change(directory: Path, file: str, **values) -> Config:
    """A copy of the base with other values in a JSON file of its."""
    shutil.copytree(BASE, directory, dirs_exist_ok=True)
    path = directory / file
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return Config(model=str(directory))


PAD = dict(direction="Right", pad_to_multiple_of=8, pad_id=0, pad_type_id=0, pad_token="<pad>")
CUT = dict(direction="Right", strategy="LongestFirst", stride=0, max_length=5)


@pytest.mark.parametrize(
    "values", [{"padding": PAD | {"strategy": "BatchLongest"}}, {"truncation": CUT}]
)
def test_a_tokenizer_json_saved_while_it_padded_or_cut(tmp_path, tokenizer, values):
    """The ids are those of the file without."""
    changed, _ = load_tokenizer(change(tmp_path, "tokenizer.json", **values))
    wanted, ids = [
        to_question(row("3a+4b"), "", CONFIG, each).prompt_ids.tolist()
        for each in (tokenizer, changed)
    ]
    assert ids == wanted and len(ids) == 8


@pytest.mark.parametrize("kind", ["TokenizersBackend", "Qwen2Tokenizer", "LlamaTokenizer"])
def test_a_tokenizer_that_loses_characters_is_refused(tmp_path, kind):
    """transformers builds a class by rules of its own, and spaces vanish."""
    config = change(tmp_path, "tokenizer_config.json", tokenizer_class=kind)
    tokenizer, _ = load_tokenizer(config)
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row("3a + 4")))
    if kind == "TokenizersBackend":
        [q], _ = read_questions([str(file)], config, tokenizer, check_golds)
        assert tokenizer.decode(q.prompt_ids) == "<bos><user>3a + 4<assistant>"
        return
    with pytest.raises(Refusal, match="loses characters"):
        read_questions([str(file)], config, tokenizer, check_golds)


def test_a_directory_that_is_no_model_is_refused(tmp_path):
    """A run's own directory, for example, in a sentence."""
    with pytest.raises(Refusal, match="is no model"):
        load_tokenizer(Config(model=str(tmp_path)))

"""Questions and prompts: what a file holds becomes the right token ids, or a reason not to ask."""

import json
import shutil
from dataclasses import replace

import pyarrow
import pyarrow.parquet
import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AddedToken, LlamaConfig

from config import Config
from data import fingerprint, load_tokenizer, read_questions, to_question
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
def read(tmp_path, device):
    """Reads questions and counts of a file of these rows; the answer `?` is unreadable."""

    def read(rows, kind: str = "jsonl", model: str = BASE, limit: int = 99, reward: str = "math"):
        file = tmp_path / f"rows.{kind}"
        if kind == "parquet":
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
        else:
            file.write_text("\n\n".join(map(json.dumps, rows)))
        config = Config(model=model, max_prompt_length=limit, reward=reward)
        tokenizer, _ = load_tokenizer(config)
        return read_questions([str(file)], config, tokenizer, Grader)

    return read


class Grader:
    def check_golds(answers: list[str]) -> list[bool]:
        return [answer != "?" for answer in answers]


def test_parquet_and_jsonl_give_the_same_questions(read):
    """Text, answer and source by hand, and the row that a reward is given."""
    extra = {"tests": ["1", "2"], "weight": 0.5}
    rows = [row("3a+4", "7", extra_info=extra), row("3a+5", "8", "y", extra_info=None)]
    questions, _ = read(rows)
    found = [(q.id, q.text, q.answer, q.source) for q in questions]
    assert found == [(0, "3a+4", "7", "x"), (1, "3a+5", "8", "y")]
    assert questions[0].row["extra_info"] == extra
    again, _ = read(rows, "parquet")
    assert fingerprint(again) == fingerprint(questions)


def test_each_reason_to_leave_a_row_out_is_counted(read):
    """A prompt of exactly the limit stays; another extra_info is one for a reward of one's own."""
    rows = [row("3a+4"), row("3a+4"), row("3a+44"), row("<eos>a"), row("1a+1", "?"), row("2a+1", 3)]
    rows += [row("2a+1", 3, extra_info={"k": 1}), row("3a+4", source="y")]
    questions, counts = read(rows, limit=7)
    assert [q.text for q in questions] == ["3a+4", "2a+1", "3a+4"]
    assert [q.id for q in questions] == [0, 1, 2]
    reasons = {"repeated": 2, "prompt too long": 1, "special token in the text": 1}
    assert counts == reasons | {"answer unreadable": 1, "kept": 3}
    _, counts = read(rows, limit=7, reward="my:own")
    assert (counts["repeated"], counts["kept"]) == (1, 4)
    with pytest.raises(Refusal, match="no question is left.*'answer unreadable': 1"):
        read(rows[4:5])


@pytest.mark.parametrize(
    "bad, reason",
    [
        ({"data_source": "x"}, r"KeyError\('prompt'\)"),
        (row("3a+4", 7.0), "text or an integer, got 7.0"),
        (row("3a+4", " "), "must be text or an integer"),
    ],
)
def test_a_bad_row_is_named_with_its_number(read, bad, reason):
    """The sentence has the file, the row and what is wrong with it."""
    with pytest.raises(Refusal, match=f"rows.jsonl, row 1: .*{reason}"):
        read([row("1a+1"), bad])


def test_changed_prompts_answers_and_rows_have_another_fingerprint(read):
    """A resumed run must have the same."""
    rows = [row("1a+1"), row("2a+1")]
    others = [rows[::-1], [rows[0], row("2a+2")], [rows[0], row("2a+1", "8")]]
    others.append([rows[0], row("2a+1", extra_info={"k": 1})])
    assert len({fingerprint(read(one)[0]) for one in [rows, *others]}) == 5


# ---- prompts -------------------------------------------------------------------------------------

CHAT = "<bos><user>be <think> right<user>{question}<assistant>"
TEXT = "as in <think>a</think>: {question}"


@pytest.mark.parametrize(
    "template, prefix, question, prompt, thinks",
    [
        ("chat", "<think>\n", "1+1?", CHAT + "<think>\n", True),
        ("chat", "<think>\n\n</think>", "1+1?", CHAT + "<think>\n\n</think>", False),
        ("chat", "<think>\nOkay, ", "k", CHAT + "<think>\nOkay, ", True),
        ("chat", "", "say <think>", CHAT, False),
        (TEXT, "So", "{x} {question}", "<bos>" + TEXT + "So", False),
        ("<bos>{question}=", "", "1+1", "<bos>{question}=", False),
        (TEXT + "<think>\n", "<think>", "1+1?", "<bos>" + TEXT + "<think>\n", True),
    ],
)
def test_the_prompt_and_whether_it_opens_a_thought(
    tokenizer, template, prefix, question, prompt, thinks
):
    """One BOS, no EOS, all turns or the last, and the prefix, which is not doubled."""
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        "<bos> $A <eos>", special_tokens=[("<bos>", 1), ("<eos>", 2)]
    )
    config = replace(CONFIG, prompt_template=template, response_prefix=prefix)
    asked = row(question)
    asked["prompt"].insert(0, {"role": "system", "content": "be <think> right"})
    q = to_question(asked, "here", config, tokenizer)
    assert tokenizer.decode(q.prompt_ids) == prompt.replace("{question}", question, 1)
    assert q.thinks == thinks


def test_the_day_in_a_prompt_is_always_the_same(tokenizer):
    """A template may ask for it, on any day and rank."""
    tokenizer.chat_template = "{{ strftime_now('%d.%m.%y') }}{{ messages[0].content }}"
    assert tokenizer.decode(to_question(row("1"), "", CONFIG, tokenizer).prompt_ids) == "26.07.241"


IM = "{% for m in messages %}{{ m.content }}<|im_end|>\n{% endfor %}"
PLAIN = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"


@pytest.mark.parametrize(
    "template, in_generation, in_config, expected",
    [
        (IM, 2, 2, [2, 102]),  # as a base model of Qwen
        (IM, [102, 3], None, [2, 3, 102]),
        (PLAIN, None, [2, 3], [2, 3]),
        (None, None, None, [2]),
    ],
)
def test_what_ends_a_response(tokenizer, tmp_path, template, in_generation, in_config, expected):
    """eos_token, generation settings or config.json, and what the template puts behind a turn."""
    tokenizer.add_tokens([AddedToken("<|im_end|>", special=True)])
    tokenizer.chat_template = template
    LlamaConfig(eos_token_id=in_config).save_pretrained(tmp_path)
    settings = json.dumps({"eos_token_id": in_generation})
    if in_generation:
        (tmp_path / "generation_config.json").write_text(settings)
    assert stop_ids_of(str(tmp_path), tokenizer) == expected


# ---- tokenizers that are not what they seem ------------------------------------------------------


@pytest.fixture
def ids_with(tmp_path, read):
    """Token ids of a question by the base's tokenizer, of which a file has other values."""

    def ids_with(file: str, **values) -> list[int]:
        model = shutil.copytree(BASE, tmp_path / "model")
        path = model / file
        path.write_text(json.dumps(json.loads(path.read_text()) | values))
        [question], _ = read([row("3a + 4b")], model=str(model))
        return question.prompt_ids.tolist()

    return ids_with


PAD = dict(direction="Right", pad_to_multiple_of=8, pad_id=0, pad_type_id=0, pad_token="<pad>")
CUT = dict(direction="Right", strategy="LongestFirst", stride=0, max_length=5)


@pytest.mark.parametrize(
    "values", [{}, {"padding": PAD | {"strategy": "BatchLongest"}}, {"truncation": CUT}]
)
def test_a_tokenizer_json_that_was_saved_while_it_padded_or_cut(ids_with, values):
    """The ids are those of the file without, spaces included."""
    assert ids_with("tokenizer.json", **values) == [1, 4, 26, 72, 7, 18, 7, 27, 73, 5]


@pytest.mark.parametrize("model", ["a/b/c", "."])
def test_what_is_no_model_is_refused_by_a_sentence(model):
    """A name that the hub does not know, and a directory without a model."""
    with pytest.raises(Refusal, match=f"--model {model} is no model that can be read"):
        load_tokenizer(replace(CONFIG, model=model))


@pytest.mark.parametrize("name", ["Qwen2Tokenizer", "LlamaTokenizer"])
def test_a_tokenizer_that_loses_characters_is_refused(ids_with, name):
    """transformers builds a class by rules of its own, and spaces vanish."""
    with pytest.raises(Refusal, match="loses characters"):
        ids_with("tokenizer_config.json", tokenizer_class=name)

"""The built-in world: chains of arithmetic modulo 10, a tiny base model, and an exact judge of its reasoning.

A question such as `3a+4b*2c-5` is worked out strictly from left to right, modulo 10, and answered step by step:
`a3+4=7b7*2=4c4-5=9#9`. The letters number the steps, so that a step can be found in the question. The base model is a small Llama trained here on flawed demonstrations: some write the
whole chain, some skip steps, some just state an answer, and some of the facts they teach (7*8=...) are often
wrong. So it is right about a third of the time, sometimes for the wrong reasons, and reinforcement
learning has both a habit (write every step) and a skill (300 facts) to improve.

The paper (Sec. 3.2) asks a 32B model whether a right answer came from valid reasoning; here `check_chain` knows.

    python arithmetic.py --directory worlds --seed 0      # build it and print a table of the base model
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from tqdm import tqdm
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

OPERATIONS = {"+": lambda a, b: (a + b) % 10, "-": lambda a, b: (a - b) % 10, "*": lambda a, b: (a * b) % 10}
LABELS = "abcdefghij"  # the n-th operation of a question carries the n-th letter
STEP = re.compile(r"([a-j])(\d)([-+*])(\d)=(\d)")  # one written step
BOS, EOS, PAD, UNK, USER, ASSISTANT = "<bos>", "<eos>", "<pad>", "<unk>", "<user>", "<assistant>"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<assistant>' + message['content'] + eos_token }}"
    "{% else %}{{ '<user>' + message['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


@dataclass(frozen=True)
class World:
    """Every constant that shapes the world; the name of its directory is a hash of them."""

    version: int = 1
    seed: int = 0
    # questions
    train_size: int = 2000
    test_size: int = 400  # each of the two test sets
    train_operations: tuple = (3, 8)  # fewest and most operations of a training or test question
    ood_operations: tuple = (9, 10)  # of an out-of-distribution question
    # demonstrations
    easy_error: float = 0.02  # chance of a wrong result for a well-taught fact
    hard_error: tuple = (0.3, 0.9)  # range of that chance for a badly taught fact
    hard_share: tuple = (("+", 0.10), ("-", 0.20), ("*", 0.35))  # share of badly taught facts per operation
    shortcut: float = 0.12  # share of demonstrations that state an answer and nothing else
    skipping: float = 0.15  # share that leave out some steps
    # base model
    hidden: int = 64
    layers: int = 4
    heads: int = 2
    intermediate: int = 256
    initializer: float = 0.12  # standard deviation of the initial weights
    pretrain_steps: int = 1500
    batch: int = 32
    learning_rate: float = 3e-3


# ---------------------------------------------------------------- questions and their judge


def parse(question: str) -> list[tuple[str, str, str]]:
    """(label, operation, digit) of each step: "3a+4b*2" -> [("a", "+", "4"), ("b", "*", "2")]."""
    return list(zip(question[1::3], question[2::3], question[3::3]))


def solve(question: str) -> list[str]:
    """The steps of the one valid chain of `question`: "3a+4b*2" -> ["a3+4=7", "b7*2=4"]."""
    value, steps = int(question[0]), []
    for label, operation, digit in parse(question):
        result = OPERATIONS[operation](value, int(digit))
        steps.append(f"{label}{value}{operation}{digit}={result}")
        value = result
    return steps


def reward(response: str, answer: str) -> float:
    """1.0 if what follows the last `#` of `response` is exactly `answer`, else 0.0."""
    _, mark, stated = response.rpartition("#")
    return float(bool(mark) and stated.strip() == answer)


@dataclass(frozen=True)
class Chain:
    """The judge's verdict on one response."""

    valid: bool  # every step there, in order, right, and the stated answer is the last result: nothing else
    valid_steps: float  # share of valid steps, 0..1, out of those asked for or written, whichever are more


def check_chain(question: str, response: str) -> Chain:
    """Judge every written step: does step i take up the result written before it, apply the i-th operation of
    `question`, and get that right? An early slip is counted once: later steps may build on it. A skipped
    step puts those after it out of place. A bare answer has no valid step.
    """
    wanted, written = parse(question), STEP.findall(response)
    value, good = question[0], 0
    for (label, left, operation, right, result), step in zip(written, wanted):
        right_operands = left == value and (label, operation, right) == step
        good += right_operands and int(result) == OPERATIONS[operation](int(left), int(right))
        value = result
    text = "".join(f"{label}{a}{operation}{b}={c}" for label, a, operation, b, c in written)
    complete = good == len(wanted) == len(written) and response == f"{text}#{value}"
    return Chain(valid=complete, valid_steps=good / max(len(wanted), len(written)))


def draw_question(rng: np.random.Generator, operations: tuple[int, int]) -> str:
    """A random question with a uniform number of operations in the closed range `operations`."""
    n = int(rng.integers(operations[0], operations[1] + 1))
    digits, signs = rng.integers(0, 10, n + 1), rng.integers(0, 3, n)
    return str(digits[0]) + "".join(f"{label}{'+-*'[s]}{d}" for label, s, d in zip(LABELS, signs, digits[1:]))


def draw_sets(world: World) -> dict[str, list[str]]:
    """The questions of train, test and ood: all distinct, within a set and across."""
    rng = np.random.default_rng([world.seed, 1])
    seen, sets = set(), {}
    for name, size, operations in (
        ("test", world.test_size, world.train_operations),
        ("ood", world.test_size, world.ood_operations),
        ("train", world.train_size, world.train_operations),
    ):
        sets[name] = []
        while len(sets[name]) < size:
            question = draw_question(rng, operations)
            if question not in seen:
                seen.add(question)
                sets[name].append(question)
    return sets


# ---------------------------------------------------------------- demonstrations


class Teacher:
    """Writes flawed demonstrations. Each of the 300 facts has its own chance of a slip and a favourite slip."""

    def __init__(self, world: World):
        self.world = world
        rng = np.random.default_rng([world.seed, 2])
        self.slip = {}  # (left, operation, right) -> (chance of a slip, the wrong result it mostly gives)
        for operation, share in world.hard_share:
            for left in "0123456789":
                for right in "0123456789":
                    hard = rng.random() < share
                    chance = rng.uniform(*world.hard_error) if hard else world.easy_error
                    result = OPERATIONS[operation](int(left), int(right))
                    self.slip[left, operation, right] = chance, (result + int(rng.integers(1, 10))) % 10

    def demonstrate(self, question: str, rng: np.random.Generator) -> str:
        """One response to `question`: a chain, a chain with holes, or a bare answer."""
        style = rng.random()
        if style < self.world.shortcut:
            return "#" + solve(question)[-1][-1]
        skipping = style < self.world.shortcut + self.world.skipping
        value, parts = question[0], []
        for label, operation, digit in parse(question):
            if skipping and rng.random() < 0.3:  # worked out in the head
                value = str(OPERATIONS[operation](int(value), int(digit)))
                continue
            chance, favourite = self.slip[value, operation, digit]
            result = OPERATIONS[operation](int(value), int(digit))
            if rng.random() < chance:
                result = favourite if rng.random() < 0.6 else int(rng.integers(0, 10))
            parts.append(f"{label}{value}{operation}{digit}={result}")
            value = str(result)
        return "".join(parts) + "#" + value


# ---------------------------------------------------------------- tokenizer and base model


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token per printable ASCII character, and six special ones; anything else is <unk>."""
    special = [PAD, BOS, EOS, UNK, USER, ASSISTANT]
    characters = ["\n"] + [chr(c) for c in range(32, 127)]
    vocabulary = {token: i for i, token in enumerate(special + characters)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token=PAD, bos_token=BOS, eos_token=EOS, unk_token=UNK,
        additional_special_tokens=[USER, ASSISTANT], chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False, model_max_length=128,
    )  # fmt: skip


def build_model(world: World, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A Llama with random weights, the same ones for the same seed; the global generator is left as it was."""
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=world.hidden, intermediate_size=world.intermediate,
        num_hidden_layers=world.layers, num_attention_heads=world.heads, num_key_value_heads=world.heads,
        max_position_embeddings=128, tie_word_embeddings=False, initializer_range=world.initializer, bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, dtype="float32",
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(world.seed)
        model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, do_sample=True, temperature=1.0, top_p=1.0, top_k=0,
    )  # fmt: skip
    return model


def encode_demonstrations(pairs: list[tuple[str, str]], tokenizer) -> tuple[torch.Tensor, torch.Tensor]:
    """(question, response) pairs -> right-padded token ids and labels, both (N, T); prompts have label -100."""
    prompts = [tokenizer.convert_tokens_to_ids([BOS, USER, *question, ASSISTANT]) for question, _ in pairs]
    answers = [tokenizer.convert_tokens_to_ids([*response, EOS]) for _, response in pairs]
    length = max(len(p) + len(a) for p, a in zip(prompts, answers))
    ids = torch.full((len(pairs), length), tokenizer.pad_token_id)
    labels = torch.full((len(pairs), length), -100)
    for i, (prompt, answer) in enumerate(zip(prompts, answers)):
        end = len(prompt) + len(answer)
        ids[i, :end] = torch.tensor(prompt + answer)
        labels[i, len(prompt) : end] = ids[i, len(prompt) : end]
    return ids, labels


def pretrain(model, tokenizer, world: World, held_out: set[str], steps: int, progress: bool = False) -> float:
    """Next-token training on fresh demonstrations, never of a question in `held_out`; gives the last loss."""
    rng, teacher = np.random.default_rng([world.seed, 3]), Teacher(world)
    optimizer = torch.optim.AdamW(model.parameters(), world.learning_rate, betas=(0.9, 0.99), weight_decay=0.01)
    lengths = (1, world.ood_operations[1])
    model.train()
    batches = []
    for step in tqdm(range(steps), desc="base model", disable=not progress):
        if not batches:  # four batches at a time, sorted by length: less padding
            pairs = []
            while len(pairs) < 4 * world.batch:
                question = draw_question(rng, (1, min(lengths[1], 2 + int(20 * step / steps))))
                if question not in held_out:
                    pairs.append((question, teacher.demonstrate(question, rng)))
            pairs.sort(key=lambda pair: len(pair[0]) + len(pair[1]))
            batches = [pairs[i * world.batch : (i + 1) * world.batch] for i in rng.permutation(4)]
        ids, labels = encode_demonstrations(batches.pop(), tokenizer)
        for group in optimizer.param_groups:  # 5% warm-up, then a cosine down to zero
            warm, done = min(1.0, (step + 1) / (0.05 * steps)), step / steps
            group["lr"] = world.learning_rate * warm * 0.5 * (1 + np.cos(np.pi * done))
        logits = model(ids).logits[:, :-1]  # (N, T-1, V); padding is on the right, so causality is mask enough
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    return loss.item()


# ---------------------------------------------------------------- building and measuring


def rows(questions: list[str], data_source: str) -> str:
    """JSON lines in the column layout of verl and LUFFY."""
    return "".join(
        json.dumps({
            "data_source": data_source,
            "prompt": [{"role": "user", "content": question}],
            "reward_model": {"ground_truth": solve(question)[-1][-1]},
            "extra_info": {"index": i},
        }) + "\n"
        for i, question in enumerate(questions)
    )  # fmt: skip


def build_world(directory: str | Path, seed: int = 0, progress: bool = True) -> Path:
    """The directory of the world with this seed, under `directory`; built if it is not there yet.

    It holds `model/`, `train.jsonl`, `test.jsonl` and `ood.jsonl`. It is built aside and moved into place, so
    a directory that exists is complete. Same seed, same threads, same machine type: same weights.
    """
    world = World(seed=seed)
    fingerprint = hashlib.sha256(json.dumps(asdict(world)).encode()).hexdigest()[:10]
    final = Path(directory) / f"arithmetic-{fingerprint}"
    if final.exists():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=final.name + ".", dir=final.parent))
    try:
        sets = draw_sets(world)
        tokenizer = build_tokenizer()
        model = build_model(world, tokenizer)
        held_out = set().union(*sets.values())
        pretrain(model, tokenizer, world, held_out, world.pretrain_steps, progress)
        model.save_pretrained(aside / "model")
        tokenizer.save_pretrained(aside / "model")
        for name, questions in sets.items():
            source = "arithmetic-ood" if name == "ood" else "arithmetic"
            (aside / f"{name}.jsonl").write_text(rows(questions, source))
        (aside / "world.json").write_text(json.dumps(asdict(world), indent=1) + "\n")
        aside.chmod(0o755)
        aside.rename(final)
    except OSError:
        if not final.exists():  # another process may have been first: its world is the same
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return final


@torch.no_grad()
def sample(model, tokenizer, questions: list[str], num_samples: int, seed: int = 0) -> list[list[str]]:
    """`num_samples` responses to each question at temperature 1; questions of one length share a batch."""
    generator = torch.Generator().manual_seed(seed)
    responses = {}
    for length in sorted({len(q) for q in questions}):
        group = [q for q in questions if len(q) == length]
        prompts = [tokenizer.convert_tokens_to_ids([BOS, USER, *q, ASSISTANT]) for q in group]
        ids = torch.tensor(prompts).repeat_interleave(num_samples, 0)  # (N, T)
        cache, new, done = None, [], torch.zeros(len(ids), dtype=torch.bool)
        while not done.all() and len(new) < 96:
            output = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache, probs = output.past_key_values, output.logits[:, -1].softmax(-1)
            ids = torch.multinomial(probs, 1, generator=generator)  # (N, 1)
            new.append(ids.masked_fill(done[:, None], tokenizer.pad_token_id))
            done |= ids[:, 0] == tokenizer.eos_token_id
        texts = tokenizer.batch_decode(torch.cat(new, 1), skip_special_tokens=True)
        responses |= {q: texts[i * num_samples : (i + 1) * num_samples] for i, q in enumerate(group)}
    return [responses[q] for q in questions]


def report(world_directory: Path, num_samples: int = 8) -> str:
    """A table of the base model on each set: Pass@1, valid chains, right but flawed, questions by success count."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(world_directory / "model")
    model = LlamaForCausalLM.from_pretrained(world_directory / "model").eval()
    lines = ["set    questions  Pass@1  valid  right+valid  right+flawed  questions with k = 0..8 of 8 right"]
    for name in ("train", "test", "ood"):
        data = [json.loads(line) for line in (world_directory / f"{name}.jsonl").read_text().splitlines()][:1000]
        questions = [row["prompt"][0]["content"] for row in data]
        answers = [row["reward_model"]["ground_truth"] for row in data]
        responses = sample(model, tokenizer, questions, num_samples)
        right = np.array([[reward(r, a) for r in rs] for rs, a in zip(responses, answers)])
        valid = np.array([[check_chain(q, r).valid for r in rs] for q, rs in zip(questions, responses)])
        counts = np.bincount(right.sum(1).astype(int), minlength=num_samples + 1)
        lines.append(
            f"{name:6} {len(questions):9}  {right.mean():6.3f}  {valid.mean():5.3f}  {(right * valid).mean():11.3f}"
            f"  {(right * ~valid).mean():12.3f}  {' '.join(map(str, counts))}"
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", default="worlds", help="where worlds are kept")
    parser.add_argument("--seed", type=int, default=0, help="another seed is another world, of the same kind")
    parser.add_argument("--no-table", action="store_true", help="only build")
    args = parser.parse_args()
    torch.set_num_threads(min(2, os.cpu_count()))  # fixed, so that sums are taken in the same order
    start = time.time()
    directory = build_world(args.directory, args.seed)
    print(f"{directory}  ({time.time() - start:.0f} s)")
    if not args.no_table:
        print(report(directory))


if __name__ == "__main__":
    main()

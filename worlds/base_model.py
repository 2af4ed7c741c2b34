"""The base model of the built-in world: a character tokenizer and a tiny Llama, taught by flawed demonstrations.

    python -m worlds.base_model --directory .cache --seed 0      # build the world and print a table of its base model
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from tqdm import tqdm
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from worlds.arithmetic import Teacher, World, answer_of, check_chain, draw_question, draw_sets, reward, rows

MAX_RESPONSE_TOKENS = 64  # the longest valid chain, 10 steps, takes 63
BOS, EOS, PAD, UNK, USER, ASSISTANT = "<bos>", "<eos>", "<pad>", "<unk>", "<user>", "<assistant>"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<assistant>' + message['content'] + eos_token }}"
    "{% else %}{{ '<user>' + message['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


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
    """A Llama with random weights, the same for the same seed; the global generator is left as it was."""
    special = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=world.hidden, intermediate_size=world.intermediate,
        num_hidden_layers=world.layers, num_attention_heads=world.heads, num_key_value_heads=world.heads,
        initializer_range=world.initializer, max_position_embeddings=128, tie_word_embeddings=False,
        dtype="float32", **special,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(world.seed)
        model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(do_sample=True, temperature=1.0, top_p=1.0, top_k=0, **special)
    return model


def encode_prompt(question: str, tokenizer) -> list[int]:
    """What the chat template gives for one user turn, without the cost of running it."""
    return tokenizer.convert_tokens_to_ids([BOS, USER, *question, ASSISTANT])


def encode_demonstrations(pairs: list[tuple[str, str]], tokenizer) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs of question and response -> right-padded ids and labels, both (N, T); -100 outside responses."""
    prompts = [encode_prompt(question, tokenizer) for question, _ in pairs]
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
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), weight_decay=0.01)
    model.train()
    batches = []
    for step in tqdm(range(steps), desc="base model", disable=not progress):
        if not batches:  # four batches at a time, sorted by length: less padding
            pairs = []
            while len(pairs) < 4 * world.batch:
                longest = min(world.ood_operations[1], 2 + 20 * step // steps)  # short ones first
                question = draw_question(rng, (1, longest))
                if question not in held_out:
                    pairs.append((question, teacher.demonstrate(question, rng)))
            pairs.sort(key=lambda pair: len(pair[0]) + len(pair[1]))
            batches = [pairs[i * world.batch : (i + 1) * world.batch] for i in rng.permutation(4)]
        ids, labels = encode_demonstrations(batches.pop(), tokenizer)
        warm, cosine = min(1.0, (step + 1) / (0.05 * steps)), 0.5 * (1 + np.cos(np.pi * step / steps))
        optimizer.param_groups[0]["lr"] = world.learning_rate * warm * cosine
        logits = model(ids).logits[:, :-1]  # (N, T-1, V); right padding needs no attention mask
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    return loss.item()


def build_world(directory: str | Path, seed: int = 0, progress: bool = True, pretrain_steps: int = World.pretrain_steps) -> Path:
    """The directory of the world with this seed and base model, under `directory`; built if it is not there yet.

    It holds `model/`, `train.jsonl`, `test.jsonl`, `ood.jsonl` and `base.txt` (the base model in figures). It
    is built aside and moved into place, so a directory that exists is complete. Same seed, same number of
    threads, same type of machine: same weights.
    """
    world = World(seed=seed, pretrain_steps=pretrain_steps)
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
        (aside / "base.txt").write_text(table(model, tokenizer, sets))
        (aside / "world.json").write_text(json.dumps(asdict(world), indent=1) + "\n")
        aside.chmod(0o755)
        aside.rename(final)
    except OSError:
        if not final.exists():  # another process may have been first: its world is the same
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return final


def built_in(directory: str | Path, pretrain_steps: int) -> dict:
    """The knobs of a run on the world with this base model, which is built on first use in a process of its own."""
    command = [sys.executable, "-m", "worlds.base_model", "--directory", str(Path(directory).absolute()),
               "--steps", str(pretrain_steps)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, cwd=Path(__file__).parent.parent, env=environment)
    world = build_world(directory, pretrain_steps=pretrain_steps)
    files = [str(world / f"{name}.jsonl") for name in ("train", "test", "ood")]
    return {"model": str(world / "model"), "train_files": files[:1], "val_files": files[1:],
            "reward": "worlds.arithmetic:reward"}


@torch.no_grad()
def sample(model, tokenizer, questions: list[str], num_samples: int, seed: int = 0) -> list[list[str]]:
    """`num_samples` responses to each question at temperature 1; questions of one length share a batch."""
    generator, responses = torch.Generator().manual_seed(seed), {}
    for length in sorted({len(q) for q in questions}):
        group = [q for q in questions if len(q) == length]
        prompts = [encode_prompt(q, tokenizer) for q in group]
        ids = torch.tensor(prompts).repeat_interleave(num_samples, 0)  # (N, T)
        cache, new, done = None, [], torch.zeros(len(ids), dtype=torch.bool)
        while not done.all() and len(new) < MAX_RESPONSE_TOKENS:
            output = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache, probs = output.past_key_values, output.logits[:, -1].softmax(-1)
            ids = torch.multinomial(probs, 1, generator=generator)  # (N, 1)
            new.append(ids.masked_fill(done[:, None], tokenizer.pad_token_id))
            done |= ids[:, 0] == tokenizer.eos_token_id
        texts = tokenizer.batch_decode(torch.cat(new, 1), skip_special_tokens=True)
        responses |= {q: texts[i * num_samples : (i + 1) * num_samples] for i, q in enumerate(group)}
    return [responses[q] for q in questions]


def table(model, tokenizer, sets: dict[str, list[str]], num_samples: int = 8, limit: int = 400) -> str:
    """The model on the first `limit` questions of each set: how often right, and with which reasoning."""
    lines = [f"set   Pass@1  valid  right+flawed  questions by k = 0..{num_samples} right of {num_samples}"]
    for name in ("train", "test", "ood"):
        questions = sets[name][:limit]
        responses = sample(model, tokenizer, questions, num_samples)
        right = np.array([[reward(r, answer_of(q)) for r in rs] for q, rs in zip(questions, responses)])
        valid = np.array([[check_chain(q, r).valid for r in rs] for q, rs in zip(questions, responses)])
        counts = " ".join(map(str, np.bincount(right.sum(1).astype(int), minlength=num_samples + 1)))
        flawed = (right * ~valid).mean()
        lines.append(f"{name:5}  {right.mean():5.3f}  {valid.mean():5.3f}  {flawed:12.3f}  {counts}")
    return "\n".join(lines) + "\n"


def main():
    """Build the world from the command line and print what its base model can do."""
    parser = argparse.ArgumentParser(description="Build the arithmetic world and describe its base model.")
    parser.add_argument("--directory", default=".cache", help="where worlds are kept")
    parser.add_argument("--seed", type=int, default=0, help="another seed is another world of the same kind")
    parser.add_argument("--steps", type=int, default=World.pretrain_steps, help="pretraining steps: fewer, weaker")
    args = parser.parse_args()
    if args.steps < 1:
        parser.error("--steps must be at least 1")
    torch.set_num_threads(1)  # fixed, so that sums are taken in the same order; more hardly help at this size
    start = time.time()
    directory = build_world(args.directory, args.seed, pretrain_steps=args.steps)
    print(f"{directory}  ({time.time() - start:.0f} s)\n{(directory / 'base.txt').read_text()}", end="")


if __name__ == "__main__":
    main()

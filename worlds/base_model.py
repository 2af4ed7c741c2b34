"""Build a built-in world: its questions and its base, a tiny Llama that learned from flawed chains.

    python -m worlds.base_model               the world of configs/arithmetic.yaml
    python -m worlds.base_model --seed 3      another one, with its own facts, questions and base

It prints the directory, `.cache/arithmetic` or `.cache/arithmetic-3`. What is there already is
left alone: remove it to build it anew.

The base of seed 0 is shipped in worlds/base/, since training rounds differently on every processor,
and only has to be copied. The bases of other seeds are trained here, in minutes, with its shape and
its tokenizer of single characters.
"""

import shutil
from pathlib import Path

import numpy as np
import tyro

from worlds import arithmetic
from worlds.arithmetic import draw_sets, rows

SHIPPED = Path(__file__).parent / "base"
BARE = 0.05  # share of demonstrations that state an answer and nothing else
SKIPPING = 0.10  # share of demonstrations that leave out some steps
STEPS = 3000
BATCH = 32


def demonstrate(question: str, slips: dict, rng) -> str:
    """One response to `question`: a chain with slips, a chain with holes, or the bare answer."""
    style = rng.random()
    if style < BARE:
        return "#" + arithmetic.answer_of(question)
    skipping = style < BARE + SKIPPING
    value = question[0]
    written = ""
    results = []
    for label, operation in arithmetic.parse(question):
        fact = value + operation
        value = arithmetic.result_of(fact)
        in_the_head = skipping and rng.random() < 0.3  # such a step is right, but not written
        if not in_the_head:
            chance, usual = slips[fact]
            if rng.random() < chance:
                is_usual = rng.random() < arithmetic.USUAL_SLIP
                value = usual if is_usual else str(rng.integers(10))
            written += f"{label}{fact}={value}"
        results.append(value)
    return written + "#" + arithmetic.asked_of(results)


def train_base(seed: int, directory: Path) -> None:
    """Train the base of a world on fresh demonstrations, and save it as a Hugging Face directory.

    It learns to predict the next token, and never sees a question of the world. The chains grow
    longer as training goes on.
    """
    # PyTorch takes seconds to import, and the shipped base does not need it.
    import torch
    from tqdm import tqdm
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)  # sums are taken in a fixed order; more would hardly help at this size
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    assistant = tokenizer.convert_tokens_to_ids("<assistant>")
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(SHIPPED))
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), weight_decay=0.01)
    slips = arithmetic.draw_slips(seed)
    held_out = set().union(*draw_sets(seed).values())
    rng = arithmetic.stream(seed, "demonstrations")
    fewest, _ = arithmetic.SHORT
    _, most = arithmetic.LONG
    batches = []
    for step in tqdm(range(STEPS)):
        if not batches:  # four are made at a time and sorted by length, for less padding
            longest = min(most, fewest + 12 * step // STEPS)
            texts = []
            while len(texts) < 4 * BATCH:
                question = arithmetic.draw_question(rng, (fewest, longest))
                if question not in held_out:
                    response = demonstrate(question, slips, rng)
                    # The chat template gives the same, but takes longer.
                    texts.append(f"<bos><user>{question}<assistant>{response}<eos>")
            texts.sort(key=len)
            batches = np.reshape(texts, (4, BATCH))[rng.permutation(4)].tolist()
        # Padding on the right needs no attention mask.
        padded = tokenizer(batches.pop(), padding=True, padding_side="right", return_tensors="pt")
        ids = padded.input_ids  # (N, T)
        in_response = (ids == assistant).cumsum(1)[:, :-1] == 1
        learned = in_response & (ids[:, 1:] != tokenizer.pad_token_id)
        targets = ids[:, 1:].where(learned, -100)
        warm_up = min(1.0, (step + 1) / (0.05 * STEPS))
        cosine = 0.5 * (1 + np.cos(np.pi * step / STEPS))
        optimizer.param_groups[0]["lr"] = 3e-3 * warm_up * cosine
        logits = model(ids).logits[:, :-1]  # (N, T-1, V)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def build_world(place: Path, seed: int) -> None:
    """Write the natural questions of a world and its base into a directory, if they are not there.

    These are `test.jsonl`, `ood.jsonl`, `train.jsonl` and, as the last, `model/`.
    """
    model = place / "model"
    if model.exists():
        return
    place.mkdir(parents=True, exist_ok=True)
    for name, questions in draw_sets(seed).items():
        source = "arithmetic-ood" if name == "ood" else "arithmetic"
        (place / f"{name}.jsonl").write_text(rows(questions, source))
    if seed == 0:
        shutil.copytree(SHIPPED, model)
    else:
        train_base(seed, model)


def main(seed: int = 0) -> None:
    """Build the world of a seed, with its training questions, and print where it is."""
    place = Path(f".cache/arithmetic-{seed}" if seed else ".cache/arithmetic")
    build_world(place, seed)
    training = place / "train-30-10-60.jsonl"  # the percents of MIX
    training.write_text(rows(arithmetic.draw_training(seed), "arithmetic"))
    print(place)


if __name__ == "__main__":
    tyro.cli(main)

"""The base model of a built-in world: a tiny Llama, taught by flawed demonstrations.

It has a tokenizer of single characters. `worlds/base_model.py` trains it where it is not shipped.
"""

from pathlib import Path

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from worlds.arithmetic import Teacher, World, draw_question, draw_sets, stream

BOS = "<bos>"
EOS = "<eos>"
PAD = "<pad>"
UNK = "<unk>"
USER = "<user>"
ASSISTANT = "<assistant>"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<assistant>' + message['content'] + eos_token }}"
    "{% else %}{{ '<user>' + message['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of printable ASCII characters and six special tokens; all else is <unk>."""
    special = [PAD, BOS, EOS, UNK, USER, ASSISTANT]
    characters = ["\n"] + [chr(c) for c in range(32, 127)]
    vocabulary = {token: i for i, token in enumerate(special + characters)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNK,
        additional_special_tokens=[USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=128,
    )


def build_model(world: World, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A Llama with random weights, which are the same for the same seed.

    The global random generator is left as it was.
    """
    special = {
        name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")
    }
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=world.hidden,
        intermediate_size=world.intermediate,
        num_hidden_layers=world.layers,
        num_attention_heads=world.heads,
        num_key_value_heads=world.heads,
        initializer_range=world.initializer,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        dtype="float32",
        **special,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(world.seed)
        model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.0, top_p=1.0, top_k=0, **special
    )
    return model


def encode_demonstrations(
    pairs: list[tuple[str, str]], tokenizer
) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded ids and labels of pairs of question and response, both (N, T).

    Labels are -100 outside responses.
    """
    ids = []
    labels = []
    for question, response in pairs:
        # This is what the chat template gives for one user turn, without the cost of running it.
        prompt = tokenizer.convert_tokens_to_ids([BOS, USER, *question, ASSISTANT])
        answer = tokenizer.convert_tokens_to_ids([*response, EOS])
        ids.append(torch.tensor(prompt + answer))
        labels.append(torch.tensor([-100] * len(prompt) + answer))
    return (
        pad_sequence(ids, batch_first=True, padding_value=tokenizer.pad_token_id),
        pad_sequence(labels, batch_first=True, padding_value=-100),
    )


def pretrain(model, tokenizer, world: World, held_out: set[str]) -> None:
    """Train the model on fresh demonstrations, never of a question in `held_out`.

    It learns to predict the next token. The chains grow longer as training goes on.
    """
    rng = stream(world, "demonstrations")
    teacher = Teacher(world)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), weight_decay=0.01)
    model.train()
    steps = world.pretrain_steps
    fewest = world.train_operations[0]
    most = world.ood_operations[1]
    batches = []
    for step in tqdm(range(steps), desc="base model", mininterval=1):
        if not batches:  # four are made at a time and sorted by length, for less padding
            longest = min(most, fewest + 12 * step // steps)
            pairs = []
            while len(pairs) < 4 * world.batch:
                question = draw_question(rng, (fewest, longest))
                if question not in held_out:
                    pairs.append((question, teacher.demonstrate(question, rng)))
            pairs.sort(key=lambda pair: len(pair[0]) + len(pair[1]))
            batches = [pairs[i * world.batch : (i + 1) * world.batch] for i in rng.permutation(4)]
        ids, labels = encode_demonstrations(batches.pop(), tokenizer)
        warm_up = min(1.0, (step + 1) / (0.05 * steps))
        cosine = 0.5 * (1 + np.cos(np.pi * step / steps))
        optimizer.param_groups[0]["lr"] = world.learning_rate * warm_up * cosine
        logits = model(ids).logits[:, :-1]  # (N, T-1, V); right padding needs no attention mask
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


def train_base(world: World, directory: Path) -> None:
    """Train the base model of a world and save it as a Hugging Face directory."""
    torch.set_num_threads(1)  # sums are taken in a fixed order; more would hardly help at this size
    tokenizer = build_tokenizer()
    model = build_model(world, tokenizer)
    held_out = set().union(*draw_sets(world).values())
    pretrain(model, tokenizer, world, held_out)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)

"""policy.update against a bare training loop, and the chunked head against full logits.

One process, one thread, CPU time: figures that hold on a busy machine too.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy, linear
from transformers import AutoModelForCausalLM

from bench.meters import Row, interleaved, peak_tensor_bytes
from bench.step import write_setup
from buffer import Trajectory
from config import Config
from data import Question
from exgrpo import Group
from model import PackedLM, TokenScores, pack
from policy import Policy
from runtime import ranks


def random_groups(n: int, rng: np.random.Generator, prompt: int = 20, longest: int = 64) -> list[Group]:
    """Groups of one response, as a rollout makes them: a third reaches the limit, the others end before."""
    groups = []
    for i in range(n):
        length = longest if i % 3 == 0 else int(rng.integers(16, longest))
        prompt_ids, token_ids = (rng.integers(6, 100, k).astype(np.int32) for k in (prompt, length))
        trajectory = Trajectory(token_ids, np.full(length, -4.6, np.float32))
        advantages = rng.normal(size=1).astype(np.float32)
        groups.append(Group(Question(i, "", prompt_ids, "", ""), [trajectory], advantages=advantages))
    return groups


def bare_update(lm, optimizer, pairs: list[tuple], dtype: torch.dtype, packed: bool) -> None:
    """Forward, backward and one AdamW step on (prompt ids, response ids), nothing else; in packed rows or 64
    padded ones at a time."""
    optimizer.zero_grad()
    for start in range(0, len(pairs), 64):
        part = pairs[start : start + 64]
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            if packed:
                loss = -PackedLM(lm)(pack(part))[0].sum()
            else:
                ids = torch.zeros(len(part), max(len(p) + len(r) for p, r in part), dtype=torch.long)
                labels = torch.full_like(ids, -100)
                for row, (prompt, response) in enumerate(part):
                    length = len(prompt) + len(response)
                    ids[row, :length] = torch.from_numpy(np.concatenate([prompt, response]))
                    labels[row, len(prompt) : length] = torch.from_numpy(response)
                logits = lm(ids, use_cache=False).logits[:, :-1]  # (64, L - 1, V); padding is on the right
                loss = cross_entropy(logits.flatten(0, 1).float(), labels[:, 1:].flatten(), reduction="sum")
        loss.backward()
    optimizer.step()


def bench_policy(args: argparse.Namespace) -> Iterator[Row]:
    """Tokens per CPU second of policy.update and policy.score against bare loops, in float32 and bfloat16."""
    torch.set_num_threads(1)
    device, groups = ranks.setup(), random_groups(128, np.random.default_rng(0))
    pairs = [(g.question.prompt_ids, g.trajectories[0].token_ids) for g in groups]
    tokens = sum(len(p) + len(r) for p, r in pairs)
    with tempfile.TemporaryDirectory() as directory:
        model, _ = write_setup(Path(directory))
        for name in ("float32", "bfloat16"):
            knobs = dict(max_drift=10.0, skip_grad_norm=1e9, lr=1e-6, max_prompt_length=32)
            policy = Policy(Config(model=model, dtype=name, **knobs), model, device)
            dtype, loops = getattr(torch, name), {}
            for loop, attention in (("packed", "packed"), ("padded", "sdpa")):
                lm = AutoModelForCausalLM.from_pretrained(
                    model, dtype=torch.float32, attn_implementation=attention).train()
                loops[loop] = lm, torch.optim.AdamW(lm.parameters(), lr=1e-6)
            functions = {
                "ours": lambda policy=policy: policy.update([groups], clip_eps=0.2),
                "packed": lambda l=loops, d=dtype: bare_update(*l["packed"], pairs, d, packed=True),
                "padded": lambda l=loops, d=dtype: bare_update(*l["padded"], pairs, d, packed=False),
                "score": lambda policy=policy: policy.score(pairs),
            }
            interleaved(functions, 1)  # warm-up
            times = interleaved(functions, 15 if args.full else 5, time.process_time)
            speed = {name: f"{tokens / seconds:,.0f} tokens/s" for name, seconds in times.items()}
            yield f"policy.update, {name}", speed["ours"], "one optimiser step on 128 responses"
            for loop, bar in (("packed", ", bar 0.8"), ("padded", "")):
                share = f"ours is {times[loop] / times['ours']:.2f} of it{bar}"
                yield f"bare loop on the same tokens, {loop}, {name}", speed[loop], share
            yield f"policy.score, {name}", speed["score"], "the entropy pass"


def bench_head(args: argparse.Namespace) -> Iterator[Row]:
    """Log-probs and entropies with gradients, 152k words, hidden size 1536, against all logits at once."""
    torch.set_num_threads(1)
    tokens, vocabulary, hidden = 2048 if args.full else 512, 152_064, 1536
    h = torch.randn(tokens, hidden, requires_grad=True)
    w = (torch.randn(vocabulary, hidden) / hidden**0.5).requires_grad_()
    y = torch.randint(vocabulary, (tokens,))

    def chunked():
        logprobs, entropies = TokenScores.apply(h, w, y, 1.0)
        (logprobs.sum() + 1e-3 * entropies.sum()).backward()

    def naive():
        log_p = linear(h, w).log_softmax(-1)
        (log_p.gather(1, y[:, None]).sum() - 1e-3 * (log_p.exp() * log_p).sum()).backward()

    gradients = w.nbytes + h.nbytes
    results = {}
    for name, function in {"chunked": chunked, "naive": naive}.items():
        h.grad = w.grad = None
        results[name] = peak_tensor_bytes(function) - gradients
    h.grad, w.grad = torch.zeros_like(h), torch.zeros_like(w)
    times = interleaved({"chunked": chunked, "naive": naive}, 1, time.process_time)
    shape = f"{tokens:,} tokens x {vocabulary:,} words x {hidden}"
    yield (f"forward + backward, {shape}", f"{times['chunked']:.1f} s",
           f"full logits {times['naive']:.1f} s ({times['chunked'] / times['naive']:.2f} of it)")
    chunked_gb, naive_gb = results["chunked"] / 1e9, results["naive"] / 1e9
    yield f"memory beside the gradients, {shape}", f"{chunked_gb:.2f} GB", f"full logits {naive_gb:.2f} GB"
    yield ("the same for 32,768 tokens, computed: chunks do not grow, full logits do", f"{chunked_gb:.2f} GB",
           f"full logits {naive_gb / tokens * 32_768:.0f} GB; bar 1 GB")

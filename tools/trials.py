"""What the doctor tries with the model itself: engine, weight sync, attention, memory, generation.

All trials are collectives, on work like that of the run's own steps.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate

import numpy as np
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from buffer import Trajectory
from data import Question
from exgrpo import Group
from model import Packed, pack, packed_attention
from policy import Policy
from rollout import HFEngine, Response, make_engine
from runtime import ranks
from runtime.memory import advice
from tools.checks import TESTED, Case, Finding

FEW = 8  # questions whose responses are used to compare log-probs
SHORT = 32  # most tokens of a response in a trial
NOISE = 0.2  # size of the random change of a weight, relative to the weight
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.02}  # error of attention, relative to its largest value


# ---- engine and policy ---------------------------------------------------------------------------


def engine_start(case: Case) -> Finding:
    """Check that the engine starts, sleeps while the policy loads, and wakes with its weights."""
    c = case.config
    start = time.perf_counter()
    case.engine = make_engine(c, c.model, case.turn_ends, case.device)
    seconds = time.perf_counter() - start
    case.engine.sleep()
    case.policy = Policy(c, c.model, case.device)
    case.engine.wake(case.weights())
    return Finding(f"{type(case.engine).__name__} in {seconds:.0f} s")


def drift(case: Case) -> Finding:
    """Check that engine and policy give the same tokens nearly the same log-probs."""
    off = difference(case)
    bound = case.policy.max_drift
    found = f"{off:.1e} nats a token, {off / bound:.0%} of max_drift"
    what = (
        "above the bound a run stops: raise max_drift a little; in float32 engine and policy"
        " compute different models"
    )
    return Finding(found, not off <= bound, what, slow=off > bound / 2)


def sync(case: Case) -> Finding:
    """Check that log-probs agree again after a change of all weights and a sync."""
    before = scores(case)
    change_weights(case)
    moved = float(np.abs(scores(case) - before).mean())
    case.engine.sleep()
    case.engine.wake(case.weights())
    off = difference(case)
    found = f"{off:.1e} nats a token after a change by {moved:.2g}"
    what = f"the engine runs old weights: {TESTED}; --engine hf needs no vLLM"
    return Finding(found, not off <= moved / 4, what)


def generation(case: Case) -> Finding:
    """Check that the watchdog would leave time for a batch of the longest responses.

    The pace is that of the first tokens of a batch's responses.
    """
    c = case.config
    limit = min(SHORT, c.max_response_length)
    start = time.perf_counter()
    made = generate(case, limit, c.batch_size)
    seconds = time.perf_counter() - start
    speed = sum(len(t.token_ids) for t in made) / seconds
    longest = seconds * c.max_response_length / limit
    found = f"{speed:,.0f} tokens/s; a batch of the longest responses would take {longest:,.0f} s"
    if 0 < c.hang_timeout < longest:
        return Finding(
            found, True, "the watchdog would end the run: raise hang_timeout or add GPUs"
        )
    plain = isinstance(case.engine, HFEngine) and case.device.type == "cuda"
    return Finding(found, False, "vLLM generates many times faster: `make install`", slow=plain)


def change_weights(case: Case) -> None:
    """Scale every weight at random, and the copies of a shard on other nodes alike."""
    torch.manual_seed(ranks.rank() % ranks.ranks_per_node())
    with torch.no_grad():
        for p in case.policy.module.parameters():
            shard = p.to_local()
            shard.mul_(1 + NOISE * torch.randn_like(shard))


def generate(case: Case, max_tokens: int, questions: int) -> list[Response]:
    """K responses to each of the first `questions` prompts of a batch; sets `case.pairs`.

    The work is split over the ranks as in a step.
    """
    c = case.config
    K = c.num_rollouts
    asked = case.prompts[:questions]

    def work(share: list[int]) -> list[list[Response]]:
        prompts = [asked[i] for i in share for _ in range(K)]
        seeds = [K * i + k for i in share for k in range(K)]
        made = iter(case.engine.generate(prompts, seeds, c.temperature, max_tokens))
        return [[next(made) for _ in range(K)] for _ in share]

    groups = ranks.map_shares([K] * len(asked), work, c.rollout_tp)
    case.pairs = [(ids, t.token_ids) for ids, group in zip(asked, groups) for t in group]
    return [t for group in groups for t in group]


def scores(case: Case) -> np.ndarray:
    """The policy's log-probs of the response tokens in `case.pairs`, one after another."""
    return np.concatenate([logprobs for logprobs, _ in case.policy.score(case.pairs)])


def difference(case: Case) -> float:
    """The mean |log-prob difference| of engine and policy on new responses, in nats a token."""
    limit = min(SHORT, case.config.max_response_length)
    made = generate(case, limit, max(FEW, ranks.world_size()))
    engine = np.concatenate([t.logprobs for t in made])
    return float(np.abs(engine - scores(case)).mean())


# ---- attention -----------------------------------------------------------------------------------


def packed_kernel(case: Case) -> Finding:
    """Check that training's attention agrees with a plain one, in values and gradients.

    Both have as many heads as the model.
    """
    shape = case.shape
    dtype = getattr(torch, case.config.dtype)
    prompt, short, long, other, last = (np.arange(n) for n in (17, 5, 30, 8, 23))
    packed = pack([(prompt, short), (prompt, long), (other, last)], case.device)
    S = packed.input_ids.shape[1]
    D = shape.head_dim
    generator = torch.Generator().manual_seed(0)

    def draw(heads: int) -> torch.Tensor:  # (1, h, S, D)
        values = torch.randn(1, heads, S, D, generator=generator)
        return values.to(case.device, dtype).requires_grad_()

    q = draw(shape.heads)
    k = draw(shape.kv_heads)
    v = draw(shape.kv_heads)
    weight = draw(shape.heads).transpose(1, 2)
    ours, _ = packed_attention(None, q, k, v, None, scaling=D**-0.5, packing=packed)
    plain = plain_attention(q.float(), k.float(), v.float(), packed)
    off = []
    for a, b in zip(
        with_gradients(ours, weight, (q, k, v)), with_gradients(plain, weight, (q, k, v))
    ):
        off.append(float((a - b).abs().max() / b.abs().max()))
    found = f"values and gradients within {max(off):.1e} of plain attention"
    close = all(x <= TOLERANCE[case.config.dtype] for x in off)  # false for nan too
    what = f"{TESTED}; a GPU older than Ampere (compute capability 8.0) needs --dtype float32"
    return Finding(found, not close, what)


def with_gradients(values: torch.Tensor, weight: torch.Tensor, inputs) -> list[torch.Tensor]:
    """The values, and the gradients of their weighted sum, in float32."""
    gradients = torch.autograd.grad((values * weight).sum(), inputs)
    return [t.detach().float() for t in (values, *gradients)]


def plain_attention(q, k, v, packed: Packed) -> torch.Tensor:
    """Torch's causal attention, one sequence after the other; (1, h, S, D) -> (1, S, H, D)."""
    out = torch.zeros_like(q)
    for places in packed.place_of_token.split(packed.cu_seqlens.diff().tolist()):
        a, b, c = (x[:, :, places] for x in (q, k, v))
        out[:, :, places] = F.scaled_dot_product_attention(a, b, c, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2)


# ---- memory --------------------------------------------------------------------------------------


def update_memory(case: Case) -> Finding:
    """Check the memory of a step's largest micro-batches, forward and backward.

    Their peak may exceed the formula's by a quarter.
    """
    case.engine.sleep()
    count = max(case.policy.tokens_per_micro_batch // case.longest, 1)
    tokens = count * case.longest
    # The first update makes AdamW's moments, which the formula counts as held.
    norm = update(case, 1)["loss/grad_norm"]
    with advice(tokens, case.config.gradient_checkpointing):
        measured = peak_tensor_bytes(lambda: update(case, count), case.device.type)
    share = measured / sum(case.planned(tokens).update.values())
    found = (
        f"{measured / 1e9:.2f} GB for micro-batches of {tokens:,} tokens, {share:.2f} of the"
        " formula's"
    )
    if case.device.type == "cuda":  # the gaps between tensors are still reserved
        free, total = torch.cuda.mem_get_info()
        found += f"; {(total - free) / 1e9:.0f} of {total / 1e9:.0f} GB of the GPU are reserved"
    if not 0 < norm < np.inf:
        return Finding(
            f"{found}, gradient norm {norm}", True, f"no gradient comes through: {TESTED}"
        )
    return Finding(
        found, share > 1.25, f"more than the formula's: auto would take too much; {TESTED}"
    )


def update(case: Case, count: int) -> dict[str, float]:
    """Update on random sequences of full length, and return the metrics of the update.

    Every rank has two micro-batches of `count` sequences. Memory is at its worst in the second,
    when the gradient of the first is there.
    """
    c = case.config
    rng = np.random.default_rng(0)
    words = case.shape.vocabulary
    logprobs = np.full(c.max_response_length, -np.log(words), dtype=np.float32)
    groups = []
    for _ in range(2 * count * ranks.world_size()):
        prompt_ids = rng.integers(words, size=c.max_prompt_length, dtype=np.int32)
        token_ids = rng.integers(words, size=c.max_response_length, dtype=np.int32)
        question = Question(0, "", prompt_ids, "", "")
        advantages = np.ones(1, dtype=np.float32)
        groups.append(Group(question, None, [Trajectory(token_ids, logprobs)], advantages))
    # Nobody sampled these tokens, so the guards of a run do not apply.
    case.policy.config = replace(c, behavior_logprobs="recompute", skip_grad_norm=1e9)
    case.policy.tokens_per_micro_batch = count * case.longest
    return case.policy.update([groups], None)


def peak_tensor_bytes(function: Callable[[], object], device: str = "cpu") -> int:
    """The most bytes of tensors alive at once on a device, beyond those before the call."""
    if device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        function()
        return torch.cuda.max_memory_allocated() - before
    # a CPU's allocator keeps no count, but the profiler records every tensor that it makes or frees
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda e: e.start_ns())
    return max(accumulate(e.nbytes() for e in events))


TRIALS = (engine_start, drift, sync, generation, packed_kernel, update_memory)

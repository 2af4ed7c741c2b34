"""What the doctor tries with the model itself: engine, weight sync, attention, memory, speed.

All are collectives: every rank calls them in the same order, on work as the run's own steps have it.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from buffer import Trajectory
from data import Question
from exgrpo import Group
from model import pack, packed_attention
from policy import Policy
from rollout import HFEngine, make_engine
from runtime import ranks
from runtime.memory import free_bytes
from tools.checks import Case, Finding, judge, planned

FEW, SHORT = 8, 32  # questions, and tokens of a response, where log-probs are compared
GENERATION_SECONDS, UPDATE_SECONDS = 20.0, 15.0  # what one measurement may take
NOISE = 0.2  # changes every weight, in standard deviations of its tensor
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.02}  # of attention, relative to the largest value
SLOW_DAYS, WRONG_DAYS = 7, 60  # of a run
TESTED = "`make install` has the versions that were tested"
LONGER = "the watchdog would end the run: raise hang_timeout, shorten responses, lower batch_size, add GPUs"


# ---- engine and policy ---------------------------------------------------------------------------------


def engine_start(case: Case) -> Finding:
    """The engine starts, sleeps while the policy loads, and wakes with the policy's weights."""
    c, start = case.config, time.perf_counter()
    case.engine = make_engine(c, c.model, case.eos, case.device)
    found = f"{type(case.engine).__name__} in {time.perf_counter() - start:.0f} s"
    case.engine.sleep()
    case.policy = Policy(c, c.model, case.device)
    case.engine.wake(case.weights())
    if not all(np.isfinite(t.logprobs).all() for t in generate(case, 1, FEW)):
        return judge(found, True, "log-probs are no numbers: is the model whole? Is dtype its own?")
    slow = isinstance(case.engine, HFEngine) and case.device.type == "cuda"
    return judge(found, False, "generation is many times slower than by vLLM: `make install`", slow)


def drift(case: Case) -> Finding:
    """Log-probs of this very model in this dtype, engine against policy."""
    off, bound = difference(case), case.policy.max_drift
    entropy = float(np.mean(case.policy.mean_entropy(case.pairs)))
    found = f"{off:.1e} nats a token at entropy {entropy:.1f}, {off / bound:.0%} of max_drift"
    return judge(found, not off <= bound, "above the bound a run stops: raise max_drift a little; in "
                 "float32 engine and policy compute different models", slow=off > bound / 2)


def sync(case: Case) -> Finding:
    """All weights changed, engine asleep, awake, synced: log-probs are equal again; twice."""
    results = []
    for turn in range(2):
        before = scores(case)
        change_weights(case, turn)
        moved = float(np.abs(scores(case) - before).mean())
        start = time.perf_counter()
        case.engine.sleep()
        case.engine.wake(case.weights())
        case.seconds["sync"] = time.perf_counter() - start
        results.append((difference(case), moved))
    found = "; ".join(f"{off:.1e} nats a token after a change by {moved:.2g}" for off, moved in results)
    return judge(found, not all(off <= moved / 4 for off, moved in results),
                 f"the engine runs old weights: {TESTED}; --engine hf needs no vLLM")


def left_out(case: Case) -> Finding:
    """A sync without one weight raises and names it; the last check, since the engine is of no use then."""
    names = [name for name, _ in case.weights()]
    gone, noticed = names[len(names) // 2], False
    try:
        case.engine.wake((name, tensor) for name, tensor in case.weights() if name != gone)
    except KeyError as error:
        noticed = gone in str(error)
    return judge(f"a sync without {gone} is {'refused' if noticed else 'accepted'}", not noticed,
                 f"a weight may stay old unseen: {TESTED}")


def change_weights(case: Case, seed: int) -> None:
    """Add noise to every weight; copies of a shard on other nodes get the same."""
    shard = ranks.rank() % ranks.ranks_per_node()
    generator = torch.Generator(case.device).manual_seed(1000 * seed + shard)
    with torch.no_grad():
        for p in case.policy.module.parameters():
            local = p.to_local()
            noise = torch.randn(local.shape, generator=generator, device=case.device)
            local.add_(NOISE * local.std(correction=0).nan_to_num() * noise)  # an empty shard has none


def generate(case: Case, max_tokens: int, questions: int | None = None) -> list[Trajectory]:
    """K responses to each of so many questions (all of a batch), split as in a step; sets `pairs`."""
    c, K, asked = case.config, case.config.num_rollouts, case.prompts[:questions]

    def work(share: list[int]) -> list[list[Trajectory]]:
        prompts = [asked[i] for i in share for _ in range(K)]
        seeds = [K * i + k for i in share for k in range(K)]
        made = iter(case.engine.generate(prompts, seeds, c.temperature, max_tokens))
        return [[next(made) for _ in range(K)] for _ in share]

    groups = ranks.map_shares([K] * len(asked), work, c.rollout_tp)
    case.pairs = [(p, t.token_ids) for p, group in zip(asked, groups) for t in group]
    return [t for group in groups for t in group]


def scores(case: Case) -> np.ndarray:
    """The policy's log-probs of the response tokens of `pairs`, one after another."""
    return np.concatenate([logprobs for logprobs, _ in case.policy.score(case.pairs)])


def difference(case: Case) -> float:
    """Mean |log-prob difference| of engine and policy over some new short responses, in nats a token."""
    made = generate(case, min(SHORT, case.config.max_response_length), max(FEW, ranks.world_size()))
    return float(np.abs(np.concatenate([t.logprobs for t in made]) - scores(case)).mean())


# ---- attention -----------------------------------------------------------------------------------------


def packed_kernel(case: Case) -> Finding:
    """The attention of training, with the model's heads, against a plain one: values and gradients."""
    shape, dtype, results = case.shape, getattr(torch, case.config.dtype), []
    prompt, *parts = (np.arange(n) for n in (17, 5, 30, 8, 23))
    packed = pack([(prompt, parts[0]), (prompt, parts[1]), (parts[2], parts[3])], case.device)
    size, generator = (packed.input_ids.shape[1], shape.head_dim), torch.Generator().manual_seed(0)
    q, weight, k, v = (torch.randn(1, h, *size, generator=generator).to(case.device, dtype).requires_grad_()
                       for h in (shape.heads, shape.heads, shape.kv_heads, shape.kv_heads))  # (1, h, S, D)
    for values in (packed_attention(None, q, k, v, None, scaling=size[1]**-0.5, packing=packed)[0],
                   plain_attention(q.float(), k.float(), v.float(), packed)):
        gradients = torch.autograd.grad((values * weight.transpose(1, 2)).sum(), (q, k, v))
        results.append([t.detach().float() for t in (values, *gradients)])
    off = max(float((ours - plain).abs().max() / plain.abs().max()) for ours, plain in zip(*results))
    found = f"values and gradients within {off:.1e} of plain attention"
    return judge(found, not off <= TOLERANCE[case.config.dtype],
                 f"{TESTED}; a GPU older than Ampere (compute capability 8.0) needs --dtype float32")


def plain_attention(q, k, v, packed) -> torch.Tensor:
    """Causal softmax attention of one sequence after the other; (1, h, S, D) -> (1, S, H, D)."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    out = torch.zeros_like(q)
    for places in packed.repeated.split(packed.cu_seqlens.diff().tolist()):
        a, b, c = (x[0, :, places] for x in (q, k, v))  # (H, L, D)
        later = torch.ones(len(places), len(places), device=q.device).triu(1).bool()
        logits = a @ b.mT * q.shape[-1] ** -0.5
        out[0, :, places] = logits.masked_fill(later, -torch.inf).softmax(-1) @ c
    return out.transpose(1, 2)


# ---- memory and speed ----------------------------------------------------------------------------------


def generation(case: Case) -> Finding:
    """Tokens per second of a batch's responses, cut where waiting for their end would take too long."""
    longest, short = case.config.max_response_length, min(SHORT, case.config.max_response_length)
    start = time.perf_counter()
    generate(case, 8)
    pace = max(ranks.gather(time.perf_counter() - start)) / 8  # for a token of each response
    limit = min(longest, max(short, int(GENERATION_SECONDS / pace)))
    start = time.perf_counter()
    made = generate(case, limit)
    speed = sum(len(t.token_ids) for t in made) / (time.perf_counter() - start)
    case.length = float(np.mean([len(t.token_ids) if t.finished else longest for t in made]))
    case.seconds["rollout"] = len(made) * case.length / speed
    found = (f"{speed:,.0f} tokens/s; {case.seconds['rollout']:.0f} s for a step: {len(made)} responses of "
             f"at most {case.length:,.0f} tokens on average ({limit} tried)")
    return judge(found, case.hangs("rollout"), LONGER)


def update_memory(case: Case) -> Finding:
    """The peak of an update of as many tokens as time allows against the plan, the plan against space."""
    wanted = case.micro_batch(case.policy.tokens_per_micro_batch)
    case.engine.sleep()
    update(case, 64)  # makes AdamW's moments
    small = min(wanted, 512)
    start = time.perf_counter()
    update(case, small)
    pace = max(ranks.gather(time.perf_counter() - start)) / small
    tokens = case.update_tokens = min(wanted, max(small, int(UPDATE_SECONDS / pace)))
    measured = peak_tensor_bytes(lambda: update(case, tokens), case.device.type)
    share = measured / sum(planned(case, tokens).update.values())
    if case.device.type == "cuda":
        torch.cuda.empty_cache()
    needed = sum(planned(case, wanted).update.values())
    free = free_bytes(case.device.type, ranks.ranks_per_node())
    found = (f"{measured / 1e9:.2f} GB for {tokens:,} tokens, {share:.2f} of the plan; {wanted:,} need "
             f"{needed / 1e9:.2f} of {free / 1e9:.1f} GB free")
    return judge(found, share > 1.25 or needed * share > free, "lower tokens_per_micro_batch or "
                 "rollout_memory, turn on gradient_checkpointing, add ranks", slow=share > 1.1)


def update_speed(case: Case) -> Finding:
    """Tokens per second of forward, backward and optimiser step, and the seconds of a step's responses."""
    start = time.perf_counter()
    norm = update(case, case.update_tokens)["loss/grad_norm"]
    speed = case.update_tokens * ranks.world_size() / (time.perf_counter() - start)
    responses = len(case.prompts) * case.config.num_rollouts * case.length  # tokens; a group shares a prompt
    case.seconds["update"] = (responses + sum(map(len, case.prompts))) / speed
    found = f"{speed:,.0f} tokens/s; {case.seconds['update']:.0f} s for a step, gradient norm {norm:.2g}"
    if not 0 < norm < float("inf"):
        return judge(found, True, f"no gradient comes through: {TESTED}")
    return judge(found, case.hangs("update"), LONGER)


def step_and_run(case: Case) -> Finding:
    """Seconds of a step and hours of the run, without validation and scoring of stored responses."""
    step, steps = sum(case.seconds.values()), case.config.steps
    parts, days = ", ".join(f"{k} {v:.1f}" for k, v in case.seconds.items()), step * steps / 86_400
    return judge(f"{step:.1f} s a step ({parts}), {steps} steps in {24 * days:.1f} hours", days > WRONG_DAYS,
                 "add GPUs, or lower steps, batch_size or max_response_length", slow=days > SLOW_DAYS)


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


def update(case: Case, tokens: int) -> dict[str, float]:
    """An update on random sequences, one micro-batch of `tokens` on every rank, as long as they may be."""
    c, rng = case.config, np.random.default_rng(0)
    longest = c.max_prompt_length + c.max_response_length
    count = -(-tokens // longest)
    response = max(1, tokens // count * c.max_response_length // longest)
    lengths, words, groups = (tokens // count - response, response), case.shape.vocabulary, []
    for _ in range(count * ranks.world_size()):
        prompt_ids, ids = (rng.integers(words, size=n, dtype=np.int32) for n in lengths)
        trajectory = Trajectory(ids, np.full(response, -np.log(words), dtype=np.float32))
        advantages = rng.normal(size=1).astype(np.float32)
        groups.append(Group(Question(0, "", prompt_ids, "", ""), [trajectory], advantages=advantages))
    # nobody sampled these tokens, so the guards of a run do not apply
    case.policy.config = replace(c, behavior_logprobs="recompute", skip_grad_norm=1e9)
    case.policy.tokens_per_micro_batch = tokens
    return case.policy.update([groups], None)


TRIALS = (engine_start, generation, drift, sync, packed_kernel, update_memory, update_speed, step_and_run,
          left_out)

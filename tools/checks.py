"""What the doctor tries with the model itself: engine, weight sync, attention, memory, speed.

A check takes the case, which all share, and returns a finding. All are collectives: every rank calls them in
the same order, on work as the run's own steps have it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from bench.meters import peak_tensor_bytes
from buffer import Trajectory
from config import Config
from data import Question
from exgrpo import Group
from model import pack, packed_attention
from policy import Policy
from rollout import HFEngine, make_engine
from runtime import ranks
from tools.plan import model_shape, plan

SHORT = 32  # tokens of a response where log-probs are compared
GENERATION_SECONDS, UPDATE_SECONDS = 20.0, 15.0  # what a measurement may take
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.02}  # of attention, relative to the largest value
SLOW_DAYS, WRONG_DAYS = 7, 60  # of a run
DAY = 86_400  # seconds
HANGS = ("the watchdog would end the run: raise hang_timeout, lower batch_size or max_response_length, or take "
         "more GPUs")
MEMINFO, CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


@dataclass
class Finding:
    """One line of the report."""

    verdict: str  # ok, slow or wrong
    found: str
    advice: str = ""


@dataclass
class Case:
    """The run that is examined, and what the checks leave for later ones."""

    config: Config
    device: torch.device | None = None
    eos: int = 0
    prompts: list[np.ndarray] = field(default_factory=list)  # one for each question of a batch
    engine: object = None
    policy: Policy | None = None
    pairs: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)  # (prompt ids, response ids)
    length: float = 0.0  # tokens of a response, at most, on average
    tokens: int = 0  # of an update that does not take too long
    seconds: dict[str, float] = field(default_factory=dict)  # of a step's phases


def judge(found: str, wrong: bool, advice: str, slow: bool = False) -> Finding:
    """A finding whose advice stands there only where it is needed."""
    verdict = "wrong" if wrong else "slow" if slow else "ok"
    return Finding(verdict, found, "" if verdict == "ok" else advice)


# ---- engine and policy --------------------------------------------------------------------------------


def engine_start(case: Case) -> Finding:
    """The engine starts, sleeps, makes room for the policy, and takes over its weights."""
    c, start = case.config, time.perf_counter()
    case.engine = make_engine(c, c.model, case.eos, case.device)
    started = time.perf_counter() - start
    case.engine.sleep()
    case.policy = Policy(c, c.model, case.device)
    case.engine.wake(case.policy.named_tensors(case.engine.dtype))
    found = f"{type(case.engine).__name__} in {started:.0f} s, with the policy {time.perf_counter() - start:.0f}"
    dead = not all(len(t.token_ids) and np.isfinite(t.logprobs).all() for t in generate(case, 1))
    slow = isinstance(case.engine, HFEngine) and case.device.type == "cuda"
    return judge(found, dead, "it generates nothing, or log-probs that are no numbers: is the model's directory "
                 "whole?" if dead else "Hugging Face generates many times slower than vLLM: make install", slow)


def drift(case: Case) -> Finding:
    """Log-probs of this very model in this dtype: engine against policy, before anything is trained."""
    off, bound = difference(case), case.config.max_drift
    entropy = float(np.mean(case.policy.mean_entropy(case.pairs)))
    found = f"{off:.1e} nats a token, bound {bound:g} ({off / bound:.0%}), entropy {entropy:.1f} nats"
    return judge(found, not off <= bound, "training stops when the mean is above the bound: raise max_drift for "
                 "bfloat16 (0.05), or take float32; in float32 engine and policy compute another model",
                 slow=off > bound / 2)


def sync(case: Case) -> Finding:
    """Weights changed, engine asleep, awake, synced: log-probs are equal again; twice."""
    bound, results = case.config.max_drift, []
    for turn in range(2):
        moved = change_weights(case, turn, at_least=4 * bound)
        start = time.perf_counter()
        case.engine.sleep()
        case.engine.wake(case.policy.named_tensors(case.engine.dtype))
        case.seconds["sync"] = time.perf_counter() - start
        results.append((difference(case), moved))
    found = ", then ".join(f"{off:.1e} nats a token after a change of {moved:.2g}" for off, moved in results)
    wrong = any(not off <= moved / 2 for off, moved in results)
    return judge(found, wrong, "the engine runs old weights: report it with the versions above; --engine hf "
                 "works without the sync")


def left_out(case: Case) -> Finding:
    """A sync without one weight must raise and name it; a whole one repairs the engine."""
    names = list(case.policy.module.lm.state_dict())
    gone, noticed = names[len(names) // 2], False
    some = ((name, t) for name, t in case.policy.named_tensors(case.engine.dtype) if name != gone)
    try:
        case.engine.load(some)
    except KeyError as error:
        noticed = gone in str(error)
    case.engine.load(case.policy.named_tensors(case.engine.dtype))
    return judge(f"{gone} was {'missed' if noticed else 'not missed'}", not noticed,
                 "a weight can stay old unseen: the versions are not the pinned ones, `make install`")


def change_weights(case: Case, seed: int, at_least: float) -> float:
    """Add noise of 5% of each weight's standard deviation until log-probs have moved by `at_least` nats a
    token; returns how far. RuntimeError where they do not."""
    before = scores(case)
    shard = ranks.rank() % ranks.ranks_per_node()  # copies on other nodes must stay copies
    generator = torch.Generator(case.device).manual_seed(1000 * seed + shard)
    for _ in range(40):
        with torch.no_grad():
            for p in case.policy.module.parameters():
                local = p.to_local()
                noise = torch.randn(local.shape, generator=generator, device=case.device)
                local.add_(0.05 * local.std(correction=0).nan_to_num() * noise)
        moved = float(np.abs(scores(case) - before).mean())
        if moved >= at_least:
            return moved
    raise RuntimeError(f"weights were changed 40 times, log-probs moved by {moved:.1e} nats a token only")


def generate(case: Case, max_tokens: int) -> list[Trajectory]:
    """K responses to each question of a batch, split over the engines as a step does (a collective)."""
    K, tp = case.config.num_rollouts, case.config.rollout_tp

    def work(share: list[int]) -> list[list[Trajectory]]:
        prompts = [case.prompts[i] for i in share for _ in range(K)]
        seeds = [K * i + k for i in share for k in range(K)]
        made = iter(case.engine.generate(prompts, seeds, case.config.temperature, max_tokens))
        return [[next(made) for _ in range(K)] for _ in share]

    groups = ranks.map_shares([K] * len(case.prompts), work, tp)
    case.pairs = [(p, t.token_ids) for p, group in zip(case.prompts, groups) for t in group]
    return [t for group in groups for t in group]


def scores(case: Case) -> np.ndarray:
    """The policy's log-probs of all response tokens of some `case.pairs`, one after the other."""
    return np.concatenate([logprobs for logprobs, _ in case.policy.score(case.pairs)])


def difference(case: Case) -> float:
    """Mean |log-prob difference| of engine and policy over new short responses, in nats a token."""
    made = generate(case, min(SHORT, case.config.max_response_length))
    return float(np.abs(np.concatenate([t.logprobs for t in made]) - scores(case)).mean())


# ---- attention ----------------------------------------------------------------------------------------


def packed_kernel(case: Case) -> Finding:
    """The attention that training uses against a plain softmax in float32: values and gradients."""
    hf, rng = case.policy.module.lm.config, np.random.default_rng(0)
    head = getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads
    prompt, *rest = (rng.integers(0, 9, n) for n in (17, 5, 30, 8, 23))
    packed = pack([(prompt, rest[0]), (prompt, rest[1]), (rest[2], rest[3])], case.device)
    generator, dtype = torch.Generator().manual_seed(0), getattr(torch, case.config.dtype)
    S, heads = packed.input_ids.shape[1], (hf.num_attention_heads, *[hf.num_key_value_heads] * 2)
    q, k, v = (torch.randn(1, h, S, head, generator=generator).to(case.device, dtype).requires_grad_()
               for h in heads)
    weight = torch.randn(1, S, heads[0], head, generator=generator).to(case.device)
    results = []
    for values in (packed_attention(None, q, k, v, None, scaling=head**-0.5, packing=packed)[0],
                   plain_attention(q.float(), k.float(), v.float(), packed)):
        gradients = torch.autograd.grad((values * weight).sum(), (q, k, v))
        results.append([t.detach().float() for t in (values, *gradients)])
    off = max(float((ours - plain).abs().max() / plain.abs().max()) for ours, plain in zip(*results))
    return judge(f"values and gradients within {off:.1e} of plain attention", not off <= TOLERANCE[case.config.dtype],
                 "gradients would be wrong: the versions are not the pinned ones, `make install`, or this GPU is "
                 "older than Ampere (compute capability 8.0): --dtype float32")


def plain_attention(q, k, v, packed) -> torch.Tensor:
    """Causal softmax attention of each sequence by itself; (1, h, S, D) -> (1, S, H, D)."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    out = torch.zeros_like(q)
    for start, end in zip(packed.cu_seqlens[:-1], packed.cu_seqlens[1:]):
        places = packed.repeated[start:end]
        a, b, c = (x[0, :, places] for x in (q, k, v))  # (H, L, D)
        later = torch.ones(len(places), len(places), device=q.device).triu(1).bool()
        weights = (a @ b.mT * q.shape[-1] ** -0.5).masked_fill(later, -torch.inf).softmax(-1)
        out[0, :, places] = weights @ c
    return out.transpose(1, 2)


# ---- memory and speed ---------------------------------------------------------------------------------


def generation(case: Case) -> Finding:
    """Tokens per second of a batch's responses, cut where they would take too long to wait for."""
    c, start = case.config, time.perf_counter()
    generate(case, min(SHORT, c.max_response_length))
    pace = (time.perf_counter() - start) / min(SHORT, c.max_response_length)  # seconds for a token of each
    limit = ranks.gather(min(c.max_response_length, max(SHORT, int(GENERATION_SECONDS / pace))))[0]
    start = time.perf_counter()
    made = generate(case, limit)
    tokens, seconds = sum(len(t.token_ids) for t in made), time.perf_counter() - start
    case.length = float(np.mean([len(t.token_ids) if t.finished else c.max_response_length for t in made]))
    case.seconds["rollout"] = seconds * case.length * len(made) / tokens
    found = (f"{tokens / seconds:,.0f} tokens/s, {len(made)} responses of up to {limit} tokens; a step's, of "
             f"{case.length:,.0f} on average at most: {case.seconds['rollout']:.0f} s")
    return judge(found, hangs(case, "rollout"), HANGS)


def update_memory(case: Case) -> Finding:
    """The peak of an update against the plan, with as many tokens as time allows; and whether what is planned
    for the configured number is free."""
    c, shape = case.config, model_shape(case.config.model)
    longest = c.max_prompt_length + c.max_response_length
    wanted = max(c.tokens_per_micro_batch, longest)
    case.engine.sleep()
    update(case, 64)  # makes AdamW's moments
    small = min(wanted, 512)
    seconds = max(ranks.gather(timed(lambda: update(case, small))))
    case.tokens = tokens = min(wanted, max(small, int(small * UPDATE_SECONDS / seconds)))
    measured, free = peak_bytes(case.device, lambda: update(case, tokens)), free_bytes(case.device)

    def planned(n: int) -> float:
        parts = plan(c, shape, ranks.ranks_per_node(), n, n * c.max_response_length // longest,
                     on_cpu=case.device.type == "cpu")
        return sum(parts.update.values())

    share, needed = measured / planned(tokens), planned(wanted)
    found = (f"{measured / 1e9:.2f} GB for {tokens:,} tokens, {share:.2f} of the plan; {wanted:,} need "
             f"{needed / 1e9:.2f} of {free / 1e9:.1f} GB free")
    return judge(found, share > 1.25 or needed * share > free, "lower tokens_per_micro_batch or rollout_memory, "
                 "turn on gradient_checkpointing, or use more ranks", slow=share > 1.1)


def update_speed(case: Case) -> Finding:
    """Tokens per second of forward, backward and optimiser step, and the seconds of a step's responses."""
    c, start = case.config, time.perf_counter()
    norm = update(case, case.tokens)["loss/grad_norm"]
    speed = case.tokens * ranks.world_size() / (time.perf_counter() - start)
    prompt = float(np.mean([len(p) for p in case.prompts]))
    tokens = len(case.prompts) * (prompt + c.num_rollouts * case.length)  # a group shares its prompt
    case.seconds["update"] = tokens / speed
    found = (f"{speed:,.0f} tokens/s, gradient norm {norm:.2g}; the {tokens:,.0f} tokens of a step: "
             f"{tokens / speed:.0f} s")
    if not 0 < norm < float("inf"):
        return judge(found, True, "no gradient arrives: report it with the versions above")
    return judge(found, hangs(case, "update"), HANGS)


def step_and_run(case: Case) -> Finding:
    """What a step and the run would take, without validation and the entropy pass over stored responses."""
    step, c = sum(case.seconds.values()), case.config
    days = step * c.steps / DAY
    parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in case.seconds.items())
    found = f"{step:.1f} s a step ({parts}), {c.steps} steps in {days * 24:.1f} hours"
    return judge(found, days > WRONG_DAYS, "more or faster GPUs, fewer steps, a smaller batch_size or "
                 "max_response_length", slow=days > SLOW_DAYS)


def hangs(case: Case, phase: str) -> bool:
    """Whether a phase would take so long that the watchdog ends the run."""
    return 0 < case.config.hang_timeout < case.seconds[phase]


def update(case: Case, tokens: int) -> dict[str, float]:
    """An update on random sequences, of as many tokens on every rank, prompts and responses in proportion."""
    c, rng = case.config, np.random.default_rng(0)
    longest = c.max_prompt_length + c.max_response_length
    size = min(longest, tokens)
    response = max(1, size * c.max_response_length // longest)
    words, groups = case.policy.module.lm.config.vocab_size, []
    for _ in range(tokens // size * ranks.world_size()):
        prompt_ids, ids = (rng.integers(words, size=n, dtype=np.int32) for n in (size - response, response))
        guess = np.full(response, -np.log(words), dtype=np.float32)
        groups.append(Group(Question(0, "", prompt_ids, "", ""), [Trajectory(ids, guess)],
                            advantages=rng.normal(size=1).astype(np.float32)))
    # nobody sampled these tokens: their log-probs may be far from the policy's, the gradient is any
    case.policy.config = replace(c, max_drift=1e9, skip_grad_norm=1e9, tokens_per_micro_batch=tokens)
    return case.policy.update([groups], None)


def timed(function: Callable[[], object]) -> float:
    """Seconds of a call that ends with numbers on the host."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def peak_bytes(device: torch.device, function: Callable[[], object]) -> int:
    """The most bytes of tensors alive at once beyond those before."""
    if device.type == "cpu":
        return peak_tensor_bytes(function)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    function()
    return torch.cuda.max_memory_allocated() - before


def free_bytes(device: torch.device) -> float:
    """What this rank may still take: of its GPU, or its share of the host's memory."""
    if device.type == "cpu":
        return available_bytes() / ranks.ranks_per_node()
    return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


def available_bytes() -> float:
    """Host memory that is free or can be freed, within the limit of a container."""
    fields = dict(line.split(":") for line in MEMINFO.read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    limit, used = (CGROUP / name for name in ("memory.max", "memory.current"))
    if limit.exists() and limit.read_text().strip() != "max":
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    return free


CHECKS = (engine_start, generation, drift, sync, left_out, packed_kernel, update_memory, update_speed,
          step_and_run)

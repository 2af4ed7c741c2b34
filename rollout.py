"""Rollouts (Alg. 1, lines 23 and 24): `roll_out` asks the engines and has the responses graded.

An engine takes prompt ids and a seed, and gives a `Trajectory` without a reward. `VLLMEngine` runs
vLLM inside this rank's process; `HFEngine` is Hugging Face `generate`. Both hold their own copy of
the weights, refreshed by `load`. Every sample has its own seed, so it depends neither on the batch
it is generated in nor on the rank (up to rounding, which now and then flips a token).
"""

import importlib.util
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, LogitsProcessorList

from buffer import Trajectory
from config import Config
from model import extend_context, load_model, model_config
from runtime import ranks
from runtime.faults import once, watchdog

KV_CACHE_ON_CPU = 2**29  # bytes, of a rank's engine


def roll_out(
    engine, grader, questions: list, seeds: list[list[int]], temperature: float, step: int = 0
) -> list[list[Trajectory]]:
    """A graded response for each seed of each question, split over the engines (a collective).

    The first of the `rollout_tp` ranks of an engine grades. It begins with a response as soon as
    that ends, while others are still generated.
    """
    config = grader.config
    is_grader = ranks.rank() % config.rollout_tp == 0

    def work(share):
        """The trajectories of the questions with these indices, this rank's share."""
        # Of each response its question's index, and its seed.
        asked = [(i, seed) for i in share for seed in seeds[i]]
        pending = {}  # verdicts to come, by the number of the response

        def on_finish(number, response):
            if is_grader:
                i, _ = asked[number]
                pending[number] = grader.submit(questions[i], response.token_ids)

        responses = engine.generate(
            [questions[i].prompt_ids for i, _ in asked],
            [seed for _, seed in asked],
            temperature,
            config.max_response_length,
            on_finish,
        )
        if not is_grader:
            return []
        watchdog.wait(pending.values())
        rollouts = {i: [] for i in share}
        for number, (i, _) in enumerate(asked):
            verdict = pending[number].result()
            rollouts[i].append(_graded(responses[number], verdict, step))
        return list(rollouts.values())

    return ranks.map_shares([len(s) for s in seeds], work, config.rollout_tp)


def _graded(response: Trajectory, verdict: dict, step: int) -> Trajectory:
    """The response with its verdict; RuntimeError for log-probs that are no numbers."""
    if not np.isfinite(response.logprobs).all():  # None, of vLLM, is nan by now
        raise RuntimeError("log-probs of the engine are no numbers: weights, dtype?")
    rewards = dict(verdict)
    score = rewards.pop("score")
    judged = rewards.pop("judged", {})
    return replace(response, step=step, reward=score, named_rewards=rewards, judged=judged)


def make_engine(config: Config, turn_ends: list[int], device: torch.device):
    """The engine that is asked for; each of the token ids `turn_ends` ends a response.

    ValueError where prompt and response exceed the model's positions, or where `rollout_tp` does
    not divide a node's ranks.
    """
    length = config.max_prompt_length + config.max_response_length
    positions = model_config(config).max_position_embeddings
    if length > positions:
        raise ValueError(
            f"max_prompt_length + max_response_length = {length} tokens, but {config.model} has "
            f"{positions} positions: shorten them, or set max_position_embeddings, rope_theta"
        )
    kind = VLLMEngine if importlib.util.find_spec("vllm") and config.engine != "hf" else HFEngine
    local = ranks.ranks_per_node()
    if config.rollout_tp > 1 and (kind is HFEngine or local % config.rollout_tp):
        raise ValueError(
            f"rollout_tp={config.rollout_tp} needs the vllm engine and must divide the ranks of "
            f"a node, not {local} with {kind.__name__}"
        )
    return kind(config, turn_ends, device)


# Every engine made: vLLM destroys the process group, which is ours, when one is collected.
VLLM_ENGINES = []


class VLLMEngine:
    """vLLM in this process, one engine per `rollout_tp` ranks, its scheduler driven from here.

    RuntimeError for a second one on a GPU.
    """

    def __init__(self, config: Config, turn_ends: list[int], device: torch.device):
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        on_gpu = device.type == "cuda"
        if on_gpu:
            if VLLM_ENGINES:
                raise RuntimeError("a process has one vLLM engine on a GPU: start another process")
            once(
                "the first start of vLLM may take minutes: it compiles kernels for this GPU, some"
                " by FlashInfer, and captures graphs"
            )
            if config.dtype == "float32":
                # Otherwise attention multiplies in TF32 and drifts from the policy.
                os.environ.setdefault("TRITON_F32_DEFAULT", "ieee")
        from vllm import LLM

        length = config.max_prompt_length + config.max_response_length
        self.turn_ends = turn_ends
        self.on_gpu = on_gpu
        self.dtype = getattr(torch, config.dtype)
        # The names that `load` must be given: vLLM would make up a weight that is missing. The
        # files are mapped and their headers checked; no weight is read.
        self.names = set(load_model(config, "auto").state_dict())
        self.llm = LLM(
            model=config.model,
            dtype=config.dtype,
            max_model_len=length,
            seed=0,
            enforce_eager=not on_gpu,
            # The CPU kernel works on whole blocks: its 128 would cost a fifth more time.
            block_size=None if on_gpu else 32,
            tensor_parallel_size=config.rollout_tp,
            distributed_executor_backend="external_launcher",
            # Its buffers and the mapped memory of sleep mode do not agree.
            disable_custom_all_reduce=on_gpu,
            gpu_memory_utilization=config.rollout_memory,
            max_num_seqs=512,
            kv_cache_memory_bytes=None if on_gpu else KV_CACHE_ON_CPU,
            # Of the distribution that is sampled from, temperature included.
            logprobs_mode="processed_logprobs",
            # It rewinds the generator of a seeded request, which a CPU generator cannot do.
            enable_chunked_prefill=on_gpu,
            max_num_batched_tokens=max(8192, length),
            generation_config="vllm",  # else the model's own penalties fill in
            enable_prefix_caching=True,
            enable_sleep_mode=on_gpu,
            hf_overrides=lambda hf_config: extend_context(hf_config, config, head_dtype="float32"),
            disable_log_stats=True,
        )
        VLLM_ENGINES.append(self)
        self.leave_if_asked = watchdog.check
        if config.rollout_tp > 1:  # its ranks go in lockstep: they agree before each step
            from vllm.distributed import get_tp_group

            tp = get_tp_group()
            self.leave_if_asked = lambda: ranks.leave_if_asked(tp.cpu_group)
            # On CPUs its shared memory has the same name in every run: unlink it, once all ranks
            # have mapped it.
            members = "-".join(str(rank) for rank in tp.ranks)
            ranks.barrier()
            Path(f"/dev/shm/-tp:0-[{members}]-cpushm_{tp.rank_in_group}").unlink(missing_ok=True)

    def generate(
        self,
        prompts: list[np.ndarray],
        seeds: list[int],
        temperature: float,
        max_tokens: int,
        on_finish=lambda index, response: None,
    ) -> list[Trajectory]:
        """A response per prompt and seed, in order; `on_finish(index, response)` as one ends."""
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        engine = self.llm.llm_engine
        results = [None] * len(prompts)
        for i, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
            params = SamplingParams(
                temperature=temperature,
                max_tokens=max_tokens,
                seed=seed,
                logprobs=0,
                stop_token_ids=self.turn_ends,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            engine.add_request(str(i), {"prompt_token_ids": prompt.tolist()}, params)
        while engine.has_unfinished_requests():
            self.leave_if_asked()
            for output in engine.step():
                if output.finished:
                    index = int(output.request_id)
                    best = output.outputs[0]
                    ids = np.array(best.token_ids, dtype=np.int32)
                    logprobs = [d[t].logprob for d, t in zip(best.logprobs, best.token_ids)]
                    results[index] = Trajectory(
                        ids,
                        np.array(logprobs, dtype=np.float32),
                        finished=best.finish_reason == "stop",
                    )
                    on_finish(index, results[index])
        return results

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take over new weights and forget cached prefixes.

        A collective where `tensors` gathers them. KeyError where a name of `state_dict()`, tied
        heads included, is missing: vLLM would only log it.
        """
        self.llm.collective_rpc(
            "reload_weights", kwargs={"weights_iterator": _all_of(self.names, tensors)}
        )
        if not self.llm.reset_prefix_cache():
            raise RuntimeError(
                "vLLM kept its prefix cache, which holds keys and values of old weights"
            )

    def sleep(self) -> None:
        """Free the GPU for the update; the weights are dropped and must be loaded again."""
        if self.on_gpu:
            self.llm.sleep(level=2)

    def wake(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load new weights: space first, the cache last, which keeps the peak low."""
        if self.on_gpu:
            self.llm.wake_up(tags=["weights"])
        self.load(tensors)
        if self.on_gpu:
            self.llm.wake_up(tags=["kv_cache"])


def _all_of(names: Collection[str], tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator:
    """The (name, tensor) pairs; KeyError for an unknown name, and at the end for a missing one."""
    missing = set(names)
    for name, tensor in tensors:
        missing.remove(name)
        yield name, tensor
    if missing:
        raise KeyError(f"weights missing in the sync: {sorted(missing)[:5]}")


class HFEngine:
    """Hugging Face `generate`, seeded: with Gumbel noise the arg max of log p is a sample of p."""

    def __init__(self, config: Config, turn_ends: list[int], device: torch.device):
        self.turn_ends = turn_ends
        self.device = device
        self.dtype = getattr(torch, config.dtype)
        length = config.max_prompt_length + config.max_response_length
        # The cache of keys and values grows with the batch and with the length.
        self.batch_size = min(512, max(16, 2**18 // length))
        self.model = load_model(config, self.dtype).to(device).eval()
        # The head computes in float32, as the policy's does, and is tied no longer.
        head = self.model.get_output_embeddings()
        head.weight = torch.nn.Parameter(head.weight.detach().float())
        head.register_forward_pre_hook(lambda _, inputs: (inputs[0].float(),))
        self.model.generation_config = GenerationConfig()  # the model's own would fill in for ours

    def generate(
        self,
        prompts: list[np.ndarray],
        seeds: list[int],
        temperature: float,
        max_tokens: int,
        on_finish=lambda index, response: None,
    ) -> list[Trajectory]:
        """As `VLLMEngine.generate`."""
        results = [None] * len(prompts)
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        for start in range(0, len(order), self.batch_size):
            part = order[start : start + self.batch_size]
            made = self._batch(
                [prompts[i] for i in part], [seeds[i] for i in part], temperature, max_tokens
            )
            for index, response in zip(part, made):
                results[index] = response
                on_finish(index, response)
        return results

    @torch.no_grad()
    def _batch(self, prompts, seeds, temperature: float, max_tokens: int) -> Iterator[Trajectory]:
        """Prompts padded on the left, generated together."""
        rows = [torch.as_tensor(prompt).long() for prompt in prompts]
        ids = pad_sequence(rows, True, self.turn_ends[0], "left")  # (N, P)
        mask = pad_sequence([torch.ones_like(row) for row in rows], True, 0, "left")
        sampler = _GumbelSampler(seeds, temperature)
        eos = {"eos_token_id": self.turn_ends, "pad_token_id": self.turn_ends[0]}
        out = self.model.generate(
            ids.to(self.device),
            attention_mask=mask.to(self.device),
            generation_config=GenerationConfig(do_sample=False, max_new_tokens=max_tokens, **eos),
            logits_processor=LogitsProcessorList([sampler]),
        )[:, ids.shape[1] :].cpu()
        logprobs = torch.stack(sampler.logprobs, dim=1).cpu().numpy()  # (N, T)
        for tokens, of_tokens in zip(out.numpy().astype(np.int32), logprobs):
            is_end = np.isin(tokens, self.turn_ends)
            finished = bool(is_end.any())
            t = is_end.argmax() + 1 if finished else len(tokens)
            yield Trajectory(tokens[:t].copy(), of_tokens[:t].copy(), finished=finished)

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take over new weights, as `VLLMEngine.load`."""
        own = self.model.state_dict()
        for name, tensor in _all_of(own, tensors):
            own[name].copy_(tensor)

    def sleep(self) -> None:
        """Nothing to free: this engine keeps its copy."""

    def wake(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take over new weights: there is nothing to wake."""
        self.load(tensors)


class _GumbelSampler:
    """A logits processor: the arg max becomes a seeded sample, whose log-probs are kept."""

    def __init__(self, seeds: list[int], temperature: float):
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.temperature = temperature
        self.logprobs: list[torch.Tensor] = []  # one (N,) per generated token

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        watchdog.check()
        logprobs = (scores.float() / max(self.temperature, 1e-6)).log_softmax(-1)  # (N, V)
        noisy = logprobs
        if self.temperature > 0:
            size = scores.shape[1]
            draws = [torch.empty(size).exponential_(generator=g) for g in self.generators]
            gumbel = -torch.stack(draws).to(scores.device).log()  # (N, V)
            noisy = logprobs + gumbel
        self.logprobs.append(logprobs.gather(1, noisy.argmax(-1, keepdim=True))[:, 0])
        return noisy

"""Generation (Alg. 1, line 23): one face, two engines. Token ids in, token ids and their log-probs out.

`VLLMEngine` runs vLLM inside this rank's process; `HFEngine` is Hugging Face `generate`. Both hold their own
copy of the weights, refreshed by `load`. Every sample has its own seed, so a sample depends neither on the batch
it is generated in nor on the rank (up to rounding, which now and then flips a token).
"""

import importlib.util
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch

from config import Config
from data import Request, Response
from model import extend_context, model_config
from runtime import ranks


def make_engine(config: Config, model: str, eos_token_id: int, device: torch.device):
    """The engine that the configuration asks for.

    RuntimeError names the command where vLLM is missing; ValueError where prompt and response exceed the model's positions.
    """
    available = importlib.util.find_spec("vllm") is not None
    if config.engine == "vllm" and not available:
        raise RuntimeError("engine 'vllm' is not installed: run `make install`, or choose --engine hf")
    length, positions = config.max_prompt_length + config.max_response_length, model_config(config, model).max_position_embeddings
    if length > positions:
        raise ValueError(f"max_prompt_length + max_response_length = {length} tokens, but {model} has {positions} positions: "
                         "shorten them, or extend its context with max_position_embeddings and rope_theta")
    kind, local = VLLMEngine if available and config.engine != "hf" else HFEngine, ranks.ranks_per_node()
    if config.rollout_tp > 1 and (kind is HFEngine or local % config.rollout_tp):
        raise ValueError(f"rollout_tp={config.rollout_tp} needs the vllm engine and a number of ranks per node that it divides, "
                         f"not {local} with {kind.__name__}")
    return kind(config, model, eos_token_id, device)


class VLLMEngine:
    """vLLM in this process, one engine per rank (per `rollout_tp` ranks), its scheduler driven from here."""

    def __init__(self, config: Config, model: str, eos_token_id: int, device: torch.device):
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        on_gpu = device.type == "cuda"
        if not on_gpu:
            os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(config.rollout_cache_gb)
        elif config.rollout_dtype == "float32":
            os.environ.setdefault("TRITON_F32_DEFAULT", "ieee")  # else its attention kernel multiplies in TF32: drift
        from vllm import LLM

        length = config.max_prompt_length + config.max_response_length
        self.config, self.eos_token_id, self.on_gpu = config, eos_token_id, on_gpu
        self.llm = LLM(
            model=model, dtype=config.rollout_dtype, max_model_len=length, seed=0, enforce_eager=not on_gpu,
            block_size=None if on_gpu else 32,  # the CPU kernel works on whole blocks: its default of 128 costs a fifth
            tensor_parallel_size=config.rollout_tp, distributed_executor_backend="external_launcher",
            disable_custom_all_reduce=on_gpu,  # its buffers and the memory that sleep mode maps away do not agree
            gpu_memory_utilization=config.rollout_memory, max_num_seqs=512, logprobs_mode="processed_logprobs",
            # a seeded request whose prompt is prefilled in pieces rewinds its generator, which a CPU generator cannot
            enable_chunked_prefill=on_gpu, max_num_batched_tokens=max(8192, length),
            generation_config="vllm",  # the model's own (further stop tokens, penalties) would fill in for ours
            enable_prefix_caching=True, enable_sleep_mode=on_gpu, trust_remote_code=config.trust_remote_code,
            hf_overrides=lambda hf_config: extend_context(hf_config, config), disable_log_stats=True)
        self.dtype = getattr(torch, config.rollout_dtype)
        if not on_gpu and config.rollout_tp > 1:
            # both ranks have mapped it: without its name, which is the same for every run, it cannot outlive this one
            first = ranks.rank() // config.rollout_tp * config.rollout_tp
            members = "-".join(str(r) for r in range(first, first + config.rollout_tp))
            ranks.barrier()
            Path(f"/dev/shm/-tp:0-[{members}]-cpushm_{ranks.rank() - first}").unlink(missing_ok=True)

    def generate(self, requests: list[Request], temperature: float, max_tokens: int,
                 on_finish: Callable[[int, Response], None] | None = None) -> list[Response]:
        """One response per request, in order; `on_finish(index, response)` is called as each one ends."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        engine, results = self.llm.llm_engine, [None] * len(requests)
        for i, request in enumerate(requests):
            params = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=request.seed, logprobs=0,
                                    stop_token_ids=[self.eos_token_id], detokenize=False,
                                    output_kind=RequestOutputKind.FINAL_ONLY)
            engine.add_request(str(i), {"prompt_token_ids": request.prompt_ids.tolist()}, params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    index, best = int(output.request_id), output.outputs[0]
                    ids = np.array(best.token_ids, dtype=np.int32)
                    logprobs = np.array([d[t].logprob for d, t in zip(best.logprobs, best.token_ids)], dtype=np.float32)
                    results[index] = Response(ids, logprobs, best.finish_reason == "stop")
                    if on_finish:
                        on_finish(index, results[index])
        return results

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take over new weights (a collective where `tensors` gathers them) and forget cached prefixes.

        The names must be those of `state_dict()`, tied heads included: reload leaves out silently what is missing.
        """
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": tensors})
        self.llm.reset_prefix_cache()

    def sleep(self) -> None:
        """Free the GPU for the update; the weights are dropped and must be loaded again."""
        if self.on_gpu:
            self.llm.sleep(level=2)

    def wake(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load new weights, in the order that keeps the peak low: weights, then their values, then the cache."""
        if self.on_gpu:
            self.llm.wake_up(tags=["weights"])
        self.load(tensors)
        if self.on_gpu:
            self.llm.wake_up(tags=["kv_cache"])


class HFEngine:
    """Hugging Face `generate` with seeded Gumbel noise: arg max of log p + noise is a sample of p."""

    batch_size = 512

    def __init__(self, config: Config, model: str, eos_token_id: int, device: torch.device):
        from transformers import AutoModelForCausalLM, GenerationConfig

        self.eos_token_id, self.device, self.dtype = eos_token_id, device, getattr(torch, config.rollout_dtype)
        lm = AutoModelForCausalLM.from_pretrained(model, config=model_config(config, model), dtype=self.dtype,
                                                  trust_remote_code=config.trust_remote_code)
        self.model = lm.to(device).eval()
        self.model.generation_config = GenerationConfig()  # the model's own (repetition penalty, ...) would fill in for ours

    def generate(self, requests: list[Request], temperature: float, max_tokens: int,
                 on_finish: Callable[[int, Response], None] | None = None) -> list[Response]:
        """One response per request, in order; `on_finish(index, response)` is called as each one ends."""
        results = [None] * len(requests)
        order = sorted(range(len(requests)), key=lambda i: len(requests[i].prompt_ids))
        for start in range(0, len(order), self.batch_size):
            indices = order[start : start + self.batch_size]
            for index, response in zip(indices, self._batch([requests[i] for i in indices], temperature, max_tokens)):
                results[index] = response
                if on_finish:
                    on_finish(index, response)
        return results

    @torch.no_grad()
    def _batch(self, requests: list[Request], temperature: float, max_tokens: int) -> list[Response]:
        from transformers import GenerationConfig, LogitsProcessorList

        width = max(len(r.prompt_ids) for r in requests)
        ids = torch.full((len(requests), width), self.eos_token_id)
        mask = torch.zeros_like(ids)
        for row, request in enumerate(requests):  # padded on the left
            ids[row, width - len(request.prompt_ids) :] = torch.as_tensor(request.prompt_ids)
            mask[row, width - len(request.prompt_ids) :] = 1
        sampler = _GumbelSampler([r.seed for r in requests], temperature)
        settings = GenerationConfig(do_sample=False, max_new_tokens=max_tokens, eos_token_id=self.eos_token_id,
                                    pad_token_id=self.eos_token_id)
        out = self.model.generate(ids.to(self.device), attention_mask=mask.to(self.device), generation_config=settings,
                                  logits_processor=LogitsProcessorList([sampler]))[:, width:].cpu()
        logprobs = torch.stack(sampler.logprobs, dim=1).cpu().numpy()  # (N, T)
        responses = []
        for tokens, scores in zip(out.numpy().astype(np.int32), logprobs):
            ends = np.flatnonzero(tokens == self.eos_token_id)
            length = ends[0] + 1 if len(ends) else len(tokens)
            responses.append(Response(tokens[:length].copy(), scores[:length].copy(), bool(len(ends))))
        return responses

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take over new weights (a collective where `tensors` gathers them); KeyError for an unknown name."""
        own, seen = self.model.state_dict(), set()
        for name, tensor in tensors:
            own[name].copy_(tensor)
            seen.add(name)
        if seen != set(own):
            raise KeyError(f"weights missing in the sync: {sorted(set(own) - seen)[:5]}")

    def sleep(self) -> None:
        """Nothing to free: this engine keeps its copy."""

    wake = load


class _GumbelSampler:
    """A logits processor that makes the arg max a seeded sample, and keeps the sampled tokens' log-probs."""

    def __init__(self, seeds: list[int], temperature: float):
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.temperature = temperature
        self.logprobs: list[torch.Tensor] = []  # one (N,) per generated token

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        logprobs = (scores.float() / max(self.temperature, 1e-6)).log_softmax(-1)  # (N, V)
        noisy = logprobs
        if self.temperature > 0:
            draws = [torch.empty(scores.shape[1]).exponential_(generator=g) for g in self.generators]
            noisy = logprobs - torch.stack(draws).to(scores.device).log()  # -log Exp(1) is Gumbel noise
        self.logprobs.append(logprobs.gather(1, noisy.argmax(-1, keepdim=True))[:, 0])
        return noisy

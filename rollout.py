"""π_θ_old generates (Alg. 1, line 23): two engines behind one face, and a function that asks them.

An engine takes prompt ids and a seed, and gives a `Trajectory` without a reward. `VLLMEngine` runs
vLLM inside this rank's process; `HFEngine` is Hugging Face `generate`. Both hold their own copy of
the weights, refreshed by `load`. Every sample has its own seed, so it depends neither on the batch
it is generated in nor on the rank (up to rounding, which now and then flips a token).
"""

import importlib.util
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, GenerationConfig, LogitsProcessorList

from buffer import Trajectory
from config import Config
from model import extend_context, load_model, model_config
from runtime import ranks

KV_CACHE_ON_CPU = 2**29  # bytes, of a rank's engine
Weights = Iterable[tuple[str, torch.Tensor]]  # by the names of `state_dict()`, tied heads included


def ignore(index: int, response: Trajectory) -> None:
    """What an engine does with a response that ends, if nobody waits for it."""


def roll_out(
    engine, grader, questions: list, seeds: list[list[int]], temperature: float, step: int = 0
) -> list[list[Trajectory]]:
    """A graded response for each seed of each question, split over the ranks (a collective).

    Grading a response begins as soon as it ends, while others are still generated.
    """

    def work(share: list[int]) -> list[list[Trajectory]]:
        """The trajectories of the questions with these indices, this rank's share."""
        asked = [(questions[i], seed) for i in share for seed in seeds[i]]
        verdicts = {}  # to come, by the number of the response

        def on_finish(number: int, response: Trajectory) -> None:
            question, _ = asked[number]
            verdicts[number] = grader.submit(question, response.token_ids)

        prompts = [question.prompt_ids for question, _ in asked]
        own_seeds = [seed for _, seed in asked]
        max_tokens = grader.config.max_response_length
        graded = []
        responses = engine.generate(prompts, own_seeds, temperature, max_tokens, on_finish)
        for number, response in enumerate(responses):
            rewards = {"timeouts": 0.0} | verdicts[number].result()
            score = rewards.pop("score")
            graded.append(replace(response, step=step, reward=score, named_rewards=rewards))
        rest = iter(graded)
        return [[next(rest) for _ in seeds[i]] for i in share]

    return ranks.map_shares([len(s) for s in seeds], work)


def make_engine(config: Config, stop_ids: list[int], device: torch.device):
    """The engine that is asked for; each of the token ids `stop_ids` ends a response."""
    use_vllm = config.engine == "vllm"
    if config.engine == "auto":
        use_vllm = importlib.util.find_spec("vllm") is not None
    kind = VLLMEngine if use_vllm else HFEngine
    return kind(config, stop_ids, device)


# Every engine made: vLLM destroys the process group, which is ours, when one is collected.
VLLM_ENGINES = []


class VLLMEngine:
    """vLLM in this process, its scheduler driven from here."""

    def __init__(self, config: Config, stop_ids: list[int], device: torch.device):
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        on_gpu = device.type == "cuda"
        if config.dtype == "float32":
            # Otherwise attention multiplies in TF32 on a GPU and drifts from the policy.
            os.environ.setdefault("TRITON_F32_DEFAULT", "ieee")
        from vllm import LLM

        def configure(hf_config):
            """Change the model's configuration as vLLM reads it."""
            extend_context(hf_config, config)
            hf_config.head_dtype = "float32"
            return hf_config

        length = config.max_prompt_length + config.max_response_length
        self.stop_ids = stop_ids
        self.on_gpu = on_gpu
        self.dtype = getattr(torch, config.dtype)
        # The names that `load` must be given: vLLM would make up a weight that is missing.
        with torch.device("meta"):
            self.names = set(AutoModelForCausalLM.from_config(model_config(config)).state_dict())
        self.llm = LLM(
            model=config.model,
            dtype=config.dtype,
            max_model_len=length,
            seed=0,
            enforce_eager=not on_gpu,
            # The CPU kernel works on whole blocks: its 128 would cost a fifth more time.
            block_size=None if on_gpu else 32,
            distributed_executor_backend="external_launcher",
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
            hf_overrides=configure,
            disable_log_stats=True,
            use_tqdm_on_load=False,
        )
        VLLM_ENGINES.append(self)

    def generate(
        self,
        prompts: list[np.ndarray],
        seeds: list[int],
        temperature: float,
        max_tokens: int,
        on_finish=ignore,
    ) -> list[Trajectory]:
        """A response per prompt and seed, in order; `on_finish(index, response)` as one ends."""
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        engine = self.llm.llm_engine
        results: list = [None] * len(prompts)
        for i, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
            params = SamplingParams(
                temperature=temperature,
                max_tokens=max_tokens,
                seed=seed,
                logprobs=0,
                stop_token_ids=self.stop_ids,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            engine.add_request(str(i), {"prompt_token_ids": prompt.tolist()}, params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    index = int(output.request_id)
                    results[index] = self.trajectory(output.outputs[0])
                    on_finish(index, results[index])
        return results

    def trajectory(self, output) -> Trajectory:
        """A finished request of vLLM; its log-probs are one dict a token, here of one entry."""
        logprobs = []
        for token, of_tokens in zip(output.token_ids, output.logprobs):
            logprobs.append(of_tokens[token].logprob)
        return Trajectory(
            np.array(output.token_ids, dtype=np.int32),
            np.array(logprobs, dtype=np.float32),
            finished=output.finish_reason == "stop",
        )

    def load(self, tensors: Weights) -> None:
        """Take over new weights and forget cached prefixes.

        A collective where `tensors` gathers them. KeyError where a name of `state_dict()`, tied
        heads included, is missing: vLLM would only log it.
        """
        weights = all_of(self.names, tensors)
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("vLLM kept its prefix cache, which is of the old weights")

    def sleep(self) -> None:
        """Free the GPU for the update; the weights are dropped and must be loaded again."""
        if self.on_gpu:
            self.llm.sleep(level=2)

    def wake(self, tensors: Weights) -> None:
        """Load new weights: space first, the cache last, which keeps the peak low."""
        if self.on_gpu:
            self.llm.wake_up(tags=["weights"])
        self.load(tensors)
        if self.on_gpu:
            self.llm.wake_up(tags=["kv_cache"])


def all_of(names: Collection[str], tensors: Weights) -> Iterator:
    """The same pairs; KeyError for an unknown name, and at the end for a missing one."""
    missing = set(names)
    for name, tensor in tensors:
        missing.remove(name)
        yield name, tensor
    if missing:
        raise KeyError(f"weights missing in the sync: {sorted(missing)[:5]}")


class HFEngine:
    """Hugging Face `generate`, seeded: with Gumbel noise the arg max of log p is a sample of p."""

    def __init__(self, config: Config, stop_ids: list[int], device: torch.device):
        self.stop_ids = stop_ids
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

    def generate(self, prompts, seeds, temperature, max_tokens, on_finish=ignore) -> list:
        """As `VLLMEngine.generate`."""
        results = []
        for start in range(0, len(prompts), self.batch_size):
            part = slice(start, start + self.batch_size)
            sampler = GumbelSampler(seeds[part], temperature)
            for response in self.generate_batch(prompts[part], sampler, max_tokens):
                on_finish(len(results), response)
                results.append(response)
        return results

    @torch.no_grad()
    def generate_batch(self, prompts, sampler, max_tokens: int) -> Iterator[Trajectory]:
        """Prompts padded on the left, generated together."""
        rows = [torch.as_tensor(prompt).long() for prompt in prompts]
        ids = pad_sequence(rows, True, self.stop_ids[0], "left")  # (N, P)
        mask = pad_sequence([torch.ones_like(row) for row in rows], True, 0, "left")
        settings = GenerationConfig(
            do_sample=False,
            max_new_tokens=max_tokens,
            eos_token_id=self.stop_ids,
            pad_token_id=self.stop_ids[0],
        )
        out = self.model.generate(
            ids.to(self.device),
            attention_mask=mask.to(self.device),
            generation_config=settings,
            logits_processor=LogitsProcessorList([sampler]),
        )
        responses = out[:, ids.shape[1] :].cpu()  # (N, T)
        logprobs = torch.stack(sampler.logprobs, dim=1).cpu().numpy()  # (N, T)
        for tokens, of_tokens in zip(responses.numpy().astype(np.int32), logprobs):
            is_end = np.isin(tokens, self.stop_ids)
            finished = bool(is_end.any())
            length = is_end.argmax() + 1 if finished else len(tokens)
            own_tokens = tokens[:length].copy()
            own_logprobs = of_tokens[:length].copy()
            yield Trajectory(own_tokens, own_logprobs, finished=finished)

    def load(self, tensors: Weights) -> None:
        """Take over new weights, as `VLLMEngine.load`."""
        own = self.model.state_dict()
        for name, tensor in all_of(own, tensors):
            own[name].copy_(tensor)

    def sleep(self) -> None:
        """Nothing to free: this engine keeps its copy."""

    wake = load  # there is nothing else to wake


class GumbelSampler:
    """A logits processor: the arg max becomes a seeded sample, whose log-probs are kept."""

    def __init__(self, seeds: list[int], temperature: float):
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.temperature = temperature
        self.logprobs: list[torch.Tensor] = []  # one (N,) per generated token

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The log-probs of the next token (N, V), with seeded noise."""
        temperature = max(self.temperature, 1e-6)
        logprobs = (scores.float() / temperature).log_softmax(-1)  # (N, V)
        noisy = logprobs
        if self.temperature > 0:
            draws = []
            for generator in self.generators:
                draws.append(torch.empty(scores.shape[1]).exponential_(generator=generator))
            gumbel = -torch.stack(draws).to(scores.device).log()  # (N, V)
            noisy = logprobs + gumbel
        sampled = noisy.argmax(-1, keepdim=True)  # (N, 1)
        self.logprobs.append(logprobs.gather(1, sampled)[:, 0])
        return noisy

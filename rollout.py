"""π_θ_old generates (Alg. 1, line 23): two engines behind one face, and a function that asks them.

An engine takes prompt ids and a seed, and gives a `Trajectory` without a reward. `VLLMEngine` runs
vLLM inside this rank's process; `HFEngine` is Hugging Face `generate`. Both hold their own copy of
the weights, refreshed by `load`. Every sample has its own seed, so it depends neither on the batch
it is generated in nor on the rank (up to rounding, which now and then flips a token).
"""

import importlib.util
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import AutoModelForCausalLM, GenerationConfig, LogitsProcessorList

from buffer import Trajectory
from config import Config
from model import extend_context, load_model, model_config
from reward import graded_text
from runtime import ranks

KV_CACHE_ON_CPU = 2**29  # bytes, of a rank's engine
Weights = Iterable[tuple[str, torch.Tensor]]  # by the names of `state_dict()`, tied heads included


def roll_out(
    engine, grader, questions: list, seeds: list[list[int]], temperature: float, step: int = 0
) -> list[list[Trajectory]]:
    """A graded response for each seed of each question, split over the ranks (a collective).

    Grading a response begins when the engine yields it, while others are still generated.
    """

    def work(share):
        """The trajectories of the questions with these indices, this rank's share."""
        asked = []  # the index of each request's question
        requests = []
        for i in share:
            for seed in seeds[i]:
                asked.append(i)
                requests.append((questions[i].prompt_ids, seed))
        ended = {}  # by the index of the request: the response, and its rewards to come
        responses = engine.generate(requests, temperature)
        for index, response in tqdm(
            responses, "rollout", len(asked), leave=False, disable=ranks.rank() > 0 or None
        ):
            question = questions[asked[index]]
            text = grader.text(response.token_ids)
            piece = graded_text(text, question.thinks, grader.config)
            verdict = grader.submit(piece, question.answer, question.row)
            ended[index] = response, verdict
        graded = {i: [] for i in share}
        for index, i in enumerate(asked):
            response, verdict = ended[index]
            rewards = {"timeouts": 0.0} | verdict.result()
            score = rewards.pop("score")
            graded[i].append(replace(response, step=step, reward=score, named_rewards=rewards))
        return list(graded.values())

    return ranks.map_shares([len(s) for s in seeds], work)


def make_engine(config: Config, stop_ids: list[int], device: torch.device):
    """The engine that is asked for; each of the token ids `stop_ids` ends a response."""
    has_vllm = importlib.util.find_spec("vllm")
    if config.engine == "vllm" or config.engine == "auto" and has_vllm:
        return VLLMEngine(config, stop_ids, device)
    return HFEngine(config, stop_ids, device)


# Kept alive: a garbage-collected engine would destroy the process group, which is ours.
VLLM_ENGINES = []


class VLLMEngine:
    """vLLM in this process, its scheduler driven from here."""

    def __init__(self, config: Config, stop_ids: list[int], device: torch.device):
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        if config.dtype == "float32":
            # Otherwise attention multiplies in TF32 on a GPU and drifts from the policy.
            os.environ.setdefault("TRITON_F32_DEFAULT", "ieee")
        from vllm import LLM

        def configure(hf_config):
            """Change the model's configuration as vLLM reads it."""
            extend_context(hf_config, config)
            hf_config.head_dtype = "float32"
            return hf_config

        on_gpu = device.type == "cuda"
        self.on_gpu = on_gpu
        self.stop_ids = stop_ids
        self.max_tokens = config.max_response_length
        self.dtype = getattr(torch, config.dtype)
        # The names that `load` must be given: vLLM would make up a weight that is missing.
        with torch.device("meta"):
            self.names = set(AutoModelForCausalLM.from_config(model_config(config)).state_dict())
        self.llm = LLM(
            model=config.model,
            dtype=config.dtype,
            max_model_len=config.max_prompt_length + config.max_response_length,
            enforce_eager=not on_gpu,
            # The CPU kernel works on whole blocks; vLLM's 128 would take a fifth more time.
            block_size=None if on_gpu else 32,
            distributed_executor_backend="external_launcher",
            gpu_memory_utilization=config.rollout_memory,
            max_num_seqs=512,
            kv_cache_memory_bytes=None if on_gpu else KV_CACHE_ON_CPU,
            # Of the distribution that is sampled from, temperature included.
            logprobs_mode="processed_logprobs",
            # Chunked prefill rewinds a seeded request's generator, which a CPU's cannot do.
            enable_chunked_prefill=on_gpu,
            enable_sleep_mode=on_gpu,
            hf_overrides=configure,
            use_tqdm_on_load=False,
        )
        VLLM_ENGINES.append(self)

    def generate(self, requests: list, temperature: float) -> Iterator:
        """Yield (index of the request, response) for each response as soon as it ends.

        requests: pairs of (prompt ids, seed), one for each response.
        """
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        engine = self.llm.llm_engine
        for i, (prompt, seed) in enumerate(requests):
            params = SamplingParams(
                temperature=temperature,
                max_tokens=self.max_tokens,
                seed=seed,
                logprobs=0,
                stop_token_ids=self.stop_ids,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            engine.add_request(str(i), {"prompt_token_ids": prompt.tolist()}, params)
        while engine.has_unfinished_requests():
            for request in engine.step():  # those that have ended
                [output] = request.outputs
                logprobs = []
                # vLLM gives a dict {token: log-prob} for each position, here with one entry.
                for token, of_tokens in zip(output.token_ids, output.logprobs):
                    logprobs.append(of_tokens[token].logprob)
                response = Trajectory(
                    np.array(output.token_ids, dtype=np.int32),
                    np.array(logprobs, dtype=np.float32),
                    finished=output.finish_reason == "stop",
                )
                yield int(request.request_id), response

    def load(self, tensors: Weights) -> None:
        """Take over new weights and forget cached prefixes.

        A collective where `tensors` gathers them. KeyError where a name of `state_dict()`, tied
        heads included, is missing.
        """
        missing = set(self.names)

        def given():
            for name, tensor in tensors:
                missing.remove(name)
                yield name, tensor

        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": given()})
        if missing:
            raise KeyError(f"weights missing in the sync: {sorted(missing)[:5]}")
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


class HFEngine:
    """Hugging Face `generate`, a batch at a time."""

    def __init__(self, config: Config, stop_ids: list[int], device: torch.device):
        self.stop_ids = stop_ids
        self.device = device
        self.dtype = getattr(torch, config.dtype)
        # The cache of keys and values grows with the batch and with the length.
        length = config.max_prompt_length + config.max_response_length
        self.batch_size = min(512, 2**18 // length)
        self.model = load_model(config, self.dtype).to(device).eval()
        # It takes the place of the model's own, which may have penalties.
        self.model.generation_config = GenerationConfig(
            max_new_tokens=config.max_response_length,
            eos_token_id=stop_ids,
            pad_token_id=stop_ids[0],
        )

    def generate(self, requests: list, temperature: float) -> Iterator:
        """As `VLLMEngine.generate`, but a response comes when its whole batch has ended."""
        for start in range(0, len(requests), self.batch_size):
            batch = requests[start : start + self.batch_size]
            yield from enumerate(self.generate_batch(batch, temperature), start)

    def generate_batch(self, requests: list, temperature: float) -> Iterator[Trajectory]:
        """The responses to prompts that are padded on the left and generated together.

        `generate` takes the arg max of the scores. With Gumbel noise from a request's own seed on
        the log-probs log p, the arg max is a sample of p.
        """
        generators = [torch.Generator().manual_seed(seed) for _, seed in requests]
        sampled = []  # for each position the log-probs (N,) of the tokens sampled there

        def sample(_, scores):
            """Noisy log-probs of the next token, from its logits; both (N, V)."""
            logits = scores.float() / max(temperature, 1e-6)  # 0 is greedy
            logprobs = logits.log_softmax(-1)
            draws = []
            for generator in generators:
                draws.append(torch.empty(scores.shape[1]).exponential_(generator=generator))
            gumbel = -torch.stack(draws).to(self.device).log()
            noisy = logprobs + gumbel
            tokens = noisy.argmax(-1, keepdim=True)  # (N, 1), those that `generate` will take
            sampled.append(logprobs.gather(1, tokens)[:, 0])
            return noisy

        rows = [torch.as_tensor(prompt).long() for prompt, _ in requests]
        ids = pad_sequence(rows, True, self.stop_ids[0], "left")  # (N, P)
        mask = pad_sequence([torch.ones_like(row) for row in rows], True, 0, "left")
        out = self.model.generate(
            ids.to(self.device),
            attention_mask=mask.to(self.device),
            logits_processor=LogitsProcessorList([sample]),
        )
        responses = out[:, ids.shape[1] :].int()  # (N, T)
        logprobs = torch.stack(sampled, dim=1).cpu().numpy()  # (N, T)
        for tokens, of_tokens in zip(responses.cpu().numpy(), logprobs):
            is_end = np.isin(tokens, self.stop_ids)
            ends_before = is_end.cumsum() - is_end  # how many stop tokens precede each token
            own = ends_before == 0
            yield Trajectory(tokens[own], of_tokens[own], finished=bool(is_end.any()))

    def load(self, tensors: Weights) -> None:
        """Take over new weights; RuntimeError where one is missing or unknown.

        For a moment there is a second copy of them on the device.
        """
        self.model.load_state_dict(dict(tensors))

    def sleep(self) -> None:
        """Nothing to free: this engine keeps its copy."""

    wake = load  # there is nothing else to wake

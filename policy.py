"""π_θ: the sharded model, its scores of stored and fresh responses, and the optimiser step (Alg. 1, line 31).

The model is sharded with FSDP2 (inside a node; replicated across nodes) in float32, computes in `dtype`, and
sees packed sequences only (model.py). Work is split over ranks by tokens; the loss is divided by constants of
the *global* mini-batch, so the gradient does not depend on the number of ranks or on micro-batches. With
`lora_rank` the model is frozen and adapters are trained in its place (lora.py).
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM

from config import Config
from data import Sample
from exgrpo import Group
from loss import policy_loss
from model import PackedLM, model_config, pack
from runtime import ranks
from runtime.lora import add_adapters, merged


class Policy:
    """The trained model on this rank. All methods are collectives: every rank calls them in the same order.

    ValueError for a model with a sliding window that prompt and response exceed: they would see too much.
    """

    def __init__(self, config: Config, model: str, device: torch.device):
        self.config, self.device = config, device
        dtype = getattr(torch, config.dtype) if config.lora_rank else torch.float32  # what is frozen needs no more
        lm = AutoModelForCausalLM.from_pretrained(model, config=model_config(config, model), dtype=dtype,
                                                  attn_implementation="packed", trust_remote_code=config.trust_remote_code)
        window, length = getattr(lm.config, "sliding_window", None), config.max_prompt_length + config.max_response_length
        if window and length > window:
            raise ValueError(f"{model} attends over the last {window} tokens only, which packed attention does not do: keep "
                             f"max_prompt_length + max_response_length = {length} to that")
        if config.lora_rank:
            add_adapters(lm, config.lora_rank, config.lora_alpha, config.seed)
        if config.gradient_checkpointing:
            lm.gradient_checkpointing_enable({"use_reentrant": False})
        self.module = PackedLM(lm, config.temperature).train()
        self._shard()
        self.skipped_in_row = 0  # optimiser steps
        self.drift = 0.0  # between engine and policy, as `recompute` last found it
        self.optimizer = torch.optim.AdamW((p for p in self.module.parameters() if p.requires_grad), lr=config.lr,
                                           betas=(0.9, 0.999), eps=config.adam_eps, weight_decay=config.weight_decay)

    def _shard(self) -> None:
        """FSDP2 on each layer and the root: a mesh of nodes (replicate) x ranks of a node (shard)."""
        world, local = ranks.world_size(), ranks.ranks_per_node()
        shard = local if self.config.shard else 1
        shape, names = ((world,), ("shard",)) if shard == world else ((world // shard, shard), ("replicate", "shard"))
        compute = getattr(torch, self.config.dtype)
        options = dict(mesh=init_device_mesh(self.device.type, shape, mesh_dim_names=names),
                       mp_policy=MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32))
        if self.config.offload and self.device.type == "cuda":
            options["offload_policy"] = CPUOffloadPolicy()
        for layer in self.module.lm.get_decoder().layers:
            fully_shard(layer, **options)
        fully_shard(self.module, **options)

    # ---- forward passes without gradient ------------------------------------------------------------

    def score(self, sequences: list[tuple[np.ndarray, np.ndarray]]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Log-probs and entropies, float32 (T,) each, of the response of every (prompt ids, response ids)."""
        if not sequences:
            return []
        results = {}
        bins = self._bins(sequences)
        with torch.no_grad():
            for items in bins:
                scores = self.module(pack([sequences[i] for i in items] or sequences[:1], self.device))
                sizes = [len(sequences[i][1]) for i in items]
                columns = [s.float().cpu().numpy()[: sum(sizes)] for s in scores]
                ends = np.cumsum(sizes)[:-1]
                for i, *pair in zip(items, *(np.split(c, ends) for c in columns)):
                    results[i] = tuple(pair)
        self.module.reshard()  # only a backward does this by itself: the gathered embedding and head would stay
        for part in ranks.gather(results):
            results.update(part)
        return [results[i] for i in range(len(sequences))]

    def mean_entropy(self, sequences) -> list[float]:
        """Mean full-vocabulary entropy in nats over each response, EOS included (Alg. 1, lines 10-12)."""
        return [float(entropies.mean(dtype=np.float64)) for _, entropies in self.score(sequences)]

    def mean_nll(self, sequences) -> list[float]:
        """Mean negative log-likelihood in nats of each response's tokens, EOS included."""
        return [-float(logprobs.mean(dtype=np.float64)) for logprobs, _ in self.score(sequences)]

    def _bins(self, sequences: list[tuple[np.ndarray, np.ndarray]]) -> list[list[int]]:
        """This rank's micro-batches: equally many on every rank, balanced by tokens, an empty one where work is short.

        Neighbours with the same prompt stay together, since they then share it (model.py), in units small enough to balance.
        """
        world, budget = ranks.world_size(), self.config.tokens_per_micro_batch
        limit = min(budget, sum(len(p) + len(r) for p, r in sequences) // (8 * world))
        units, sizes = [], []
        for i, (prompt, response) in enumerate(sequences):
            if i and sizes[-1] + len(response) <= limit and np.array_equal(prompt, sequences[i - 1][0]):
                units[-1].append(i)
                sizes[-1] += len(response)
            else:
                units.append([i])
                sizes.append(len(prompt) + len(response))
        count = max(1, -(-sum(sizes) // (world * budget)))
        while True:
            bins = ranks.split(sizes, world * count)
            if all(sum(sizes[u] for u in b) <= budget or len(b) == 1 for b in bins):
                return [[i for u in b for i in units[u]] for b in bins[ranks.rank() :: world]]
            count += 1

    # ---- the update ---------------------------------------------------------------------------------

    def update(self, mini_batches: list[list[Sample]], clip_eps: float | None) -> dict[str, float]:
        """One optimiser step on Eq. 4 per mini-batch; every rank passes the same mini-batches.

        Returns metrics of the whole batch. A step whose gradient norm is not finite or above `skip_grad_norm`
        leaves the weights alone and is counted in `loss/skipped`. Raises RuntimeError when three in a row are
        skipped, and when fresh tokens' π_old differs from π_θ before the first step by more than `max_drift`: the
        engine then runs other weights.
        """
        if not self.config.importance_correction:
            mini_batches = [self._uncorrected(samples) for samples in mini_batches]
        parts, norms, skipped = [], [], 0
        for number, samples in enumerate(mini_batches):
            self.optimizer.zero_grad()
            bins, part = self._bins([(s.prompt_ids, s.token_ids) for s in samples]), []
            for items in bins:
                self.module.set_requires_all_reduce(items is bins[-1])  # between nodes once, not per micro-batch
                part.append(self._backward(samples, items, clip_eps))
            part = _reduce(part)
            if number == 0:  # nothing is updated yet, so π_θ should be the π_old of fresh tokens
                drift = part["drift"] / max(part["tokens"], 1)
                self._check_drift(drift)
                if self.config.behavior_logprobs == "recompute":
                    drift = self.drift  # of the engine; π_old is the policy's own
            norm = torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.config.max_grad_norm)
            norm = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
            if norm <= self.config.skip_grad_norm:  # false for nan too
                self.optimizer.step()
                self.skipped_in_row = 0
            else:
                skipped += 1
                self._note_skip(norm)
            parts.append(part)
            norms.append(norm)
        self.optimizer.zero_grad()
        return {**_summary(_combine(parts), len(parts)), "engine/drift": drift, "loss/grad_norm": float(np.mean(norms)),
                "loss/grad_norm_max": max(norms), "loss/skipped": skipped}

    def _backward(self, samples: list[Sample], items: list[int], clip_eps: float | None) -> dict[str, float]:
        """Forward and backward of one micro-batch, the samples numbered `items`; returns its metric sums.

        A rank without work runs a sample with weight 0, since the forward and backward are collectives.
        """
        c, weight = self.config, float(bool(items))
        chosen = [samples[i] for i in items or [0]]
        packed = pack([(s.prompt_ids, s.token_ids) for s in chosen], self.device)
        logprobs, entropy = self.module(packed)  # (R,), (R,)
        old_logprobs = torch.as_tensor(np.concatenate([s.old_logprobs for s in chosen]), device=self.device)
        replayed = torch.tensor([s.replayed for s in chosen], device=self.device)
        loss, metrics = policy_loss(
            packed.unpack(logprobs), packed.unpack(old_logprobs),
            torch.tensor([s.advantage for s in chosen], device=self.device), packed.response_mask, replayed,
            max_length=c.max_response_length, num_responses=len(samples), clip_eps=clip_eps,
            beta=c.beta if c.shaping else None)
        if c.entropy_coef:
            loss = loss - c.entropy_coef * entropy.sum() / (c.max_response_length * len(samples))
        # FSDP averages gradients over ranks; the loss is a sum over them
        (weight * ranks.world_size() * loss).backward()
        fresh = packed.response_mask & ~replayed[:, None]
        metrics["drift"] = (packed.unpack(logprobs.detach()) - packed.unpack(old_logprobs))[fresh].abs().sum()
        metrics["entropy"] = entropy.detach().sum()
        metrics["loss"] = loss.detach()
        return {name: weight * float(value) for name, value in metrics.items()}

    def recompute(self, groups: list[Group]) -> None:
        """Replace the engine's log-probs of all new responses by the policy's own, in place (a collective).

        RuntimeError where they differ by more than `max_drift` on average; `update` reports that difference.
        """
        new = [(g, i) for g in groups for i in range(int(g.replayed), len(g.token_ids))]
        scores = self.score([(g.question.prompt_ids, g.token_ids[i]) for g, i in new])
        self.drift = float(np.concatenate([np.abs(p - g.logprobs[i]) for (g, i), (p, _) in zip(new, scores)]).mean())
        self._check_drift(self.drift)
        for (group, i), (logprobs, _) in zip(new, scores):
            group.logprobs[i] = logprobs

    def _uncorrected(self, samples: list[Sample]) -> list[Sample]:
        """Without importance correction: π_past of replayed tokens is the policy at the start of the step."""
        scores = iter(self.score([(s.prompt_ids, s.token_ids) for s in samples if s.replayed]))
        return [replace(s, old_logprobs=next(scores)[0]) if s.replayed else s for s in samples]

    def _check_drift(self, drift: float) -> None:
        """RuntimeError where engine and policy differ by more than `max_drift` nats a token on average."""
        if not drift <= self.config.max_drift:
            raise RuntimeError(
                f"engine and policy disagree: mean |log-prob difference| {drift:.2e} nats a token, bound "
                f"max_drift={self.config.max_drift}. Either the engine runs old weights (a bug in the weight sync), "
                "or dtype and rollout_dtype need a larger bound (0.05 for bfloat16).")

    def _note_skip(self, norm: float) -> None:
        """RuntimeError at the third skipped optimiser step in a row."""
        self.skipped_in_row += 1
        if self.skipped_in_row >= 3:
            raise RuntimeError(
                f"three optimiser steps in a row were skipped, the last for a gradient norm of {norm:.3g} (bound "
                f"skip_grad_norm={self.config.skip_grad_norm:g}). Where the norm is finite, lower lr or raise the bound; "
                "where it is not, look for the first step at which loss/grad_norm rose. --resume continues from the last "
                "checkpoint, with the knobs you change.")

    # ---- weights out --------------------------------------------------------------------------------

    def tensors(self) -> dict[str, torch.Tensor]:
        """What a checkpoint holds, this rank's rows of it, sharing memory: every weight (tied ones once) and AdamW's
        state of it as `name:exp_avg`, `name:exp_avg_sq`, `name:step`, made here where there was no step yet."""
        tensors = {}
        for name, p in self.module.lm.named_parameters():
            tensors[name] = p.detach()
            if p.requires_grad and not self.optimizer.state[p]:
                moments = {key: torch.zeros_like(p) for key in ("exp_avg", "exp_avg_sq")}
                self.optimizer.state[p] = {"step": torch.tensor(0.0), **moments}
            if p.requires_grad:
                tensors |= {f"{name}:{key}": value.detach() for key, value in self.optimizer.state[p].items()}
        return tensors

    def named_tensors(self, dtype: torch.dtype = torch.float32) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, full tensor) of every weight, tied heads included, adapters merged; gathered one at a time, cast before."""
        scale = self.config.lora_alpha / self.config.lora_rank if self.config.lora_rank else 0.0
        for name, tensor in merged(self.module.lm.state_dict(), scale, self.device):
            tensor = tensor.detach().to(self.device, dtype)  # offloaded shards are in host memory
            yield name, tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def save_pretrained(self, directory: str | Path) -> None:
        """Write the model as a Hugging Face directory (safetensors, config) on rank 0, in the dtype it is held in."""
        main = ranks.rank() == 0
        weights = {name: tensor.cpu() if main else None for name, tensor in self.named_tensors(self.module.lm.dtype)}
        if main:
            self.module.lm.save_pretrained(directory, state_dict=weights)
        dist.barrier()


def _combine(parts: list[dict[str, float]]) -> dict[str, float]:
    """Sum metric sums, take the maximum of `*_max`."""
    return {name: (max if name.endswith("_max") else sum)(p[name] for p in parts) for name in parts[0]}


def _reduce(parts: list[dict[str, float]]) -> dict[str, float]:
    """Combine the metric sums of all micro-batches of all ranks (a collective)."""
    return _combine(ranks.gather(_combine(parts)))


def _summary(sums: dict[str, float], mini_batches: int) -> dict[str, float]:
    """Per-token means and shares from metric sums; the loss is a mean over mini-batches."""
    tokens, replayed = sums["tokens"], sums["replay_tokens"]

    def per(total, count):
        return total / count if count else 0.0

    return {
        "loss/policy": sums["loss"] / mini_batches,
        "loss/entropy": per(sums["entropy"], tokens + replayed),
        "loss/ratio": per(sums["ratio"], tokens),
        "loss/ratio_max": sums["ratio_max"],
        "loss/clipped": per(sums["clipped"], tokens),
        "replay/token_share": per(replayed, tokens + replayed),
        "replay/gradient_share": per(sums["replay_pull"], sums["pull"]),
        "replay/ratio": per(sums["replay_ratio"], replayed),
        "replay/ratio_max": sums["replay_ratio_max"],
        "replay/ess": per(sums["replay_ratio"] ** 2, sums["replay_ratio_squared"] * replayed),
    }

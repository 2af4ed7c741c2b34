"""π_θ: the sharded model, its scores of stored and fresh responses, and the optimiser step (Alg. 1,
line 31).

FSDP2 shards float32 weights over the ranks of a node and replicates them across nodes; with
`lora_rank` the model is frozen and adapters are trained in its place. It computes in `dtype` and
sees packed sequences only (model.py). Work is split over ranks by tokens; the loss is divided by
constants of the *global* mini-batch, so the gradient depends neither on the number of ranks nor on
micro-batches.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import GenerationConfig

from config import Config
from exgrpo import Group
from loss import combine, policy_loss, token_means
from model import PackedLM, load_model, pack
from runtime import ranks
from runtime.architecture import refuse_unknown_parts
from runtime.lora import add_adapters, merged
from runtime.memory import Shape, free_bytes, tokens_that_fit, update_bytes

MAX_DRIFT = {
    "float32": 1e-3,
    "bfloat16": 0.15,
}  # nats a token, of `max_drift: auto`; see bench/README.md


class Policy:
    """The trained model on this rank. All methods are collectives: every rank calls them in the
    same order.

    ValueError for a model with parts that the packed forward pass does not know.
    """

    def __init__(self, config: Config, model: str, device: torch.device):
        c, self.config, self.device = config, config, device
        held = getattr(torch, c.dtype) if c.lora_rank else "auto"  # what is frozen needs no more
        lm = load_model(c, model, held, attn_implementation="packed")
        refuse_unknown_parts(lm, model, c.max_prompt_length + c.max_response_length)
        if c.lora_rank:
            add_adapters(lm, c.lora_rank, c.lora_alpha, c.seed)
        if c.gradient_checkpointing:
            lm.gradient_checkpointing_enable({"use_reentrant": False})
        self.module = PackedLM(lm, c.temperature).train()
        mesh = ranks.mesh(device.type)
        mixed = MixedPrecisionPolicy(
            param_dtype=getattr(torch, c.dtype), reduce_dtype=torch.float32
        )
        for part in (*lm.get_decoder().layers, self.module):
            for p in (
                part.parameters()
            ):  # whole only layer by layer: a host has room for few float32 copies
                if not c.lora_rank and not isinstance(p, DTensor):
                    p.data = p.data.float()
            fully_shard(part, mesh=mesh, mp_policy=mixed)
        self.optimizer = torch.optim.AdamW(
            [p for p in self.module.parameters() if p.requires_grad],
            lr=c.lr,
            betas=(0.9, 0.999),
            eps=c.adam_eps,
            weight_decay=c.weight_decay,
        )
        self.skipped_in_row = 0  # optimiser steps
        self.max_drift = c.max_drift or MAX_DRIFT[c.dtype]
        self.gap: dict[
            str, float
        ] = {}  # metrics: between engine and policy before the first optimiser step
        self.tokens_per_micro_batch, self.memory = self._micro_batch()

    def _micro_batch(self) -> tuple[int, str]:
        """Its tokens, as asked or as fit on the rank with the least memory left; a line on what
        it takes.
        """
        c, device, node = self.config, self.device.type, ranks.ranks_per_node()
        free = free_bytes(device, node)
        shape = Shape.of(self.module.lm.config.to_dict())
        tokens = c.tokens_per_micro_batch
        if not tokens:
            tokens = min(ranks.gather(tokens_that_fit(c, shape, node, free, device)))
        need = update_bytes(c, shape, node, tokens, device) / 1e9
        return (
            tokens,
            f"an update by {tokens} tokens needs {need:.2f} GB a rank, {free / 1e9:.1f} are free",
        )

    # ---- forward passes without gradient ---------------------------------------------------------

    def score(
        self, sequences: list[tuple[np.ndarray, np.ndarray]]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Log-probs and entropies, float32 (T,) each, of the response of every (prompt ids,
        response ids).
        """
        if not sequences:
            return []
        results = {}
        with torch.no_grad():
            for items in ranks.micro_batches(sequences, self.tokens_per_micro_batch):
                scores = self.module(
                    pack([sequences[i] for i in items] or sequences[:1], self.device)
                )
                ends = np.cumsum([len(sequences[i][1]) for i in items])
                columns = [np.split(s.float().cpu().numpy(), ends)[: len(items)] for s in scores]
                results |= dict(zip(items, zip(*columns)))
                ranks.leave_if_asked()
        # only a backward does so by itself: the gathered embedding and head would stay
        self.module.reshard()
        for part in ranks.gather(results):
            results |= part
        return [results[i] for i in range(len(sequences))]

    def mean_entropy(self, sequences) -> list[float]:
        """Mean full-vocabulary entropy in nats over each response, EOS included (Alg. 1, lines
        10-12).
        """
        return [float(entropies.mean(dtype=np.float64)) for _, entropies in self.score(sequences)]

    def mean_nll(self, sequences) -> list[float]:
        """Mean negative log-likelihood in nats of each response's tokens, EOS included."""
        return [-float(logprobs.mean(dtype=np.float64)) for logprobs, _ in self.score(sequences)]

    # ---- the update ------------------------------------------------------------------------------

    def update(self, mini_batches: list[list[Group]], clip_eps: float | None) -> dict:
        """One optimiser step on Eq. 4 per mini-batch, on all ranks alike.

        Returns metrics of the whole batch. A step whose gradient norm is not finite or above
        `skip_grad_norm` leaves the weights alone and is counted in `loss/skipped`. RuntimeError
        when three in a row are skipped, and when π_old of fresh tokens is further than `max_drift`
        from π_θ before the first step.
        """
        parts, norms = [], []
        for rows in [self._rows(groups) for groups in mini_batches]:
            parts.append(self._accumulate(rows, clip_eps))
            if (
                not norms and self.config.behavior_logprobs == "engine"
            ):  # π_θ should still be their π_old
                self._compare(
                    *(parts[0][n] / max(parts[0]["tokens"], 1) for n in ("drift", "mismatch"))
                )
            norms.append(self._step())
        sums = combine(parts)
        return {
            "loss/policy": sums["loss"] / len(parts),
            "loss/total": sums["total"] / len(parts),
            "loss/entropy": sums["entropy"] / (sums["tokens"] + sums["replay_tokens"]),
            **token_means(sums),
            "loss/grad_norm": float(np.mean(norms)),
            "loss/lr": self.config.lr,
            "loss/skipped": sum(not norm <= self.config.skip_grad_norm for norm in norms),
            **self.gap,
        }

    def _rows(self, groups: list[Group]) -> list[tuple]:
        """(prompt ids, trajectory, advantage, is it o*) of every response of a mini-batch."""
        rows = [
            (g.question.prompt_ids, t, float(a), g.replayed and i == 0)
            for g in groups
            for i, (t, a) in enumerate(zip(g.trajectories, g.advantages))
        ]
        if not self.config.importance_correction:  # π_θ as it is now stands for π_past
            stars = [i for i, (*_, is_star) in enumerate(rows) if is_star]
            now = self.score([(rows[i][0], rows[i][1].token_ids) for i in stars])
            for i, (logprobs, _) in zip(stars, now):
                prompt_ids, star, *rest = rows[i]
                rows[i] = prompt_ids, replace(star, logprobs=logprobs), *rest
        return rows

    def _accumulate(self, rows: list[tuple], clip_eps: float | None) -> dict[str, float]:
        """The gradient of a mini-batch, micro-batch by micro-batch; returns the metric sums of
        all ranks.
        """
        sequences, parts = [(prompt_ids, t.token_ids) for prompt_ids, t, *_ in rows], []
        bins = ranks.micro_batches(sequences, self.tokens_per_micro_batch)
        for items in bins:
            self.module.set_requires_all_reduce(
                items is bins[-1]
            )  # between nodes once, not per micro-batch
            # forward and backward are collectives: a rank without work runs a row with weight 0
            part = self._backward(
                [rows[i] for i in items or [0]], len(rows), float(bool(items)), clip_eps
            )
            parts.append(part)
        return combine(ranks.gather(combine(parts)))

    def _backward(
        self, rows: list[tuple], num_responses: int, weight: float, clip_eps
    ) -> dict[str, float]:
        """Forward and backward of one micro-batch, which counts `weight` times; returns its
        metric sums.
        """
        c, (prompts, responses, advantages, stars) = self.config, zip(*rows)
        packed = pack([(p, r.token_ids) for p, r in zip(prompts, responses)], self.device)
        logprobs, entropies = self.module(packed)  # (R,), (R,)
        logprobs = packed.unpack(logprobs)  # (N, T)
        behaviour = np.concatenate(
            [r.logprobs for r in responses]
        )  # of π_old; of π_past where r is o*
        behaviour = packed.unpack(torch.as_tensor(behaviour, device=self.device))  # (N, T)
        advantages, stars = (torch.tensor(x, device=self.device) for x in (advantages, stars))
        loss, sums = policy_loss(
            logprobs,
            behaviour,
            advantages,
            packed.response_mask,
            stars,
            max_length=c.max_response_length,
            num_responses=num_responses,
            clip_eps=clip_eps,
            beta=c.beta if c.shaping else None,
        )
        total = loss - c.entropy_coef * entropies.sum() / (c.max_response_length * num_responses)
        # FSDP averages gradients over ranks; the loss is a sum over them
        (weight * ranks.world_size() * total).backward()
        sums |= {"loss": loss, "total": total, "entropy": entropies.sum()}
        return {name: weight * float(value.detach()) for name, value in sums.items()}

    def _step(self) -> float:
        """Clip the gradient and make the optimiser step, or skip it; returns the norm before
        clipping.
        """
        norm = torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.config.max_grad_norm)
        norm, bound = float(norm.full_tensor()), self.config.skip_grad_norm
        good = norm <= bound  # false for nan too
        if good:
            self.optimizer.step()
        self.optimizer.zero_grad()
        self.skipped_in_row = 0 if good else self.skipped_in_row + 1
        if self.skipped_in_row >= 3:
            raise RuntimeError(
                "three optimiser steps in a row were skipped, the last for a gradient norm of"
                f" {norm:.3g} (bound skip_grad_norm={bound:g}): see where loss/grad_norm rose"
                " first, lower lr, or raise the bound where the norm is finite, and --resume from"
                " the last checkpoint"
            )
        return norm

    def recompute(self, groups: list[Group]) -> None:
        """Replace the engine's log-probs of fresh responses by the policy's own; raises as
        `update`.
        """
        fresh = [
            (g.question.prompt_ids, t) for g in groups for t in g.trajectories[int(g.replayed) :]
        ]
        now = [
            logprobs
            for logprobs, _ in self.score([(prompt_ids, t.token_ids) for prompt_ids, t in fresh])
        ]
        off = np.concatenate([logprobs - t.logprobs for (_, t), logprobs in zip(fresh, now)])
        self._compare(float(np.abs(off).mean()), float((np.abs(np.expm1(off)) > 0.1).mean()))
        for (_, trajectory), logprobs in zip(fresh, now):
            trajectory.logprobs = logprobs

    def _compare(self, drift: float, mismatch: float) -> None:
        """Note how far engine and policy are apart; RuntimeError beyond `max_drift` nats a
        token.
        """
        self.gap = {
            "engine/drift": drift,
            "engine/drift_bound_share": drift / self.max_drift,
            "rollout/mismatch": mismatch,
        }
        if not drift <= self.max_drift:
            raise RuntimeError(
                f"engine and policy disagree: mean |log-prob difference| {drift:.2e} nats a token,"
                f" bound max_drift={self.max_drift:g}. The engine runs other weights, or the bound"
                " is too narrow."
            )

    # ---- weights out -----------------------------------------------------------------------------

    def named_tensors(
        self, dtype: torch.dtype = torch.float32
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, full tensor) of every weight, tied heads included, adapters merged; cast, then
        gathered.
        """
        scale = self.config.lora_alpha / max(self.config.lora_rank, 1)
        for name, tensor in merged(self.module.lm.state_dict(), scale, self.device):
            tensor = tensor.detach().to(dtype)
            yield name, tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def tensors(self) -> dict[str, torch.Tensor]:
        """For a checkpoint: this rank's part of every weight, and of AdamW's state of it as
        `name:key`.

        They share memory with what they are named after; state that no step has made yet is made
        here.
        """
        tensors = {}
        self.module.reshard()  # not done by a `score` that was interrupted
        for name, p in self.module.lm.named_parameters():
            tensors[name] = p.detach()
            if p.requires_grad and not self.optimizer.state[p]:
                moments = {key: torch.zeros_like(p) for key in ("exp_avg", "exp_avg_sq")}
                self.optimizer.state[p] = {"step": torch.tensor(0.0), **moments}
            if p.requires_grad:
                tensors |= {
                    f"{name}:{key}": value.detach()
                    for key, value in self.optimizer.state[p].items()
                }
        return tensors

    def save_pretrained(self, directory: str | Path) -> None:
        """Write a Hugging Face directory (safetensors, config) on rank 0, in the weights' own
        dtype.
        """
        main, lm = ranks.rank() == 0, self.module.lm
        weights = {
            n: t.cpu() if main else None
            for n, t in self.named_tensors(lm.dtype)
            if n not in lm.all_tied_weights_keys
        }  # second names, which the loader makes
        if main:
            lm.generation_config = (
                GenerationConfig()
            )  # card.py writes ours; the model's own may be refused
            lm.save_pretrained(directory, state_dict=weights)
        ranks.barrier()

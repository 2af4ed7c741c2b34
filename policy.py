"""π_θ: the sharded model, its scores of responses, and the optimiser step (Alg. 1, line 31).

FSDP2 shards float32 weights over the ranks of a node and replicates them across nodes; with
`lora_rank` the model is frozen and adapters are trained in its place. It computes in `dtype` and
sees packed sequences only (model.py). Work is split over ranks by tokens; the loss is divided by
constants of the *global* mini-batch, so the gradient depends neither on the number of ranks nor on
micro-batches.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import GenerationConfig

from buffer import Trajectory
from config import Config
from exgrpo import Group
from loss import policy_loss
from model import PackedLM, load_model, pack
from runtime import ranks
from runtime.architecture import refuse_unknown_parts
from runtime.lora import add_adapters, merged
from runtime.metrics import combine, engine_gap, token_means, token_sums

# nats a token, of `max_drift: auto`; see bench/README.md
MAX_DRIFT = {"float32": 1e-3, "bfloat16": 0.15}


@dataclass
class Row:
    """One response of a mini-batch, with what the loss has to know of it."""

    prompt_ids: np.ndarray
    trajectory: Trajectory
    advantage: float
    is_star: bool  # whether it is the replayed o* of its group

    @property
    def sequence(self) -> tuple:
        """(prompt ids, response ids)."""
        return self.prompt_ids, self.trajectory.token_ids


class Policy:
    """The trained model on this rank.

    All methods are collectives: every rank calls them in the same order. ValueError for a model
    with parts that the packed forward pass does not know.
    """

    def __init__(self, config: Config, device: torch.device):
        self.config = config
        self.device = device
        compute_dtype = getattr(torch, config.dtype)
        lm = load_model(config, "auto", attn_implementation="packed")
        self.saved_dtype = lm.dtype  # the model's own, in which it is written, too
        refuse_unknown_parts(
            lm, config.model, config.max_prompt_length + config.max_response_length
        )
        if config.lora_rank:
            # The weights are frozen, and frozen ones need no more precision than that.
            for p in lm.parameters():
                p.data = p.data.to(compute_dtype)
            add_adapters(lm, config.lora_rank, config.seed)
        if config.gradient_checkpointing:
            lm.gradient_checkpointing_enable({"use_reentrant": False})
        self.module = PackedLM(lm, config.temperature).train()
        mesh = ranks.mesh(device.type)
        mixed = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
        for part in (*lm.get_decoder().layers, self.module):
            # Float32 copies are made layer by layer: a host has room for few whole ones.
            for p in part.parameters():
                if not config.lora_rank and not isinstance(p, DTensor):
                    p.data = p.data.float()
            fully_shard(part, mesh=mesh, mp_policy=mixed)
        trained = [p for p in self.module.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            trained, lr=config.lr, betas=(0.9, 0.999), eps=config.adam_eps, weight_decay=0.01
        )
        self.skipped_in_row = 0  # optimiser steps
        self.max_drift = config.max_drift or MAX_DRIFT[config.dtype]
        # How far engine and policy were apart before the first optimiser step, as metrics.
        self.engine_metrics = {}

    # ---- forward passes without gradient ---------------------------------------------------------

    def score(self, sequences: list[tuple]) -> list[tuple]:
        """Log-probs and entropies, float32 (T,), of each response of (prompt ids, response ids)."""
        if not sequences:
            return []
        results = {}
        with torch.no_grad():
            for batch in ranks.micro_batches(sequences, self.config.tokens_per_micro_batch):
                scored = [sequences[i] for i in batch.indices]
                logprobs, entropies = self.module(pack(scored, self.device))  # (R,), (R,)
                lengths = [len(response_ids) for _, response_ids in scored]
                of_each = zip(logprobs.cpu().split(lengths), entropies.cpu().split(lengths))
                if batch.is_real:
                    for i, (p, h) in zip(batch.indices, of_each):
                        results[i] = p.numpy(), h.numpy()
                ranks.leave_if_asked()
        # Only a backward does so by itself: the gathered embedding and head would stay.
        self.module.reshard()
        for part in ranks.gather(results):
            results |= part
        return [results[i] for i in range(len(sequences))]

    def mean_entropy(self, sequences) -> list[float]:
        """Mean full-vocabulary entropy in nats of each response, EOS included (lines 9-12)."""
        means = []
        for _, entropies in self.score(sequences):
            means.append(float(entropies.mean(dtype=float)))
        return means

    def mean_nll(self, sequences) -> list[float]:
        """Mean negative log-likelihood in nats of each response's tokens, EOS included."""
        means = []
        for logprobs, _ in self.score(sequences):
            means.append(-float(logprobs.mean(dtype=float)))
        return means

    # ---- the update ------------------------------------------------------------------------------

    def update(self, mini_batches: list[list[Group]], clip_eps: float | None) -> dict:
        """Make one optimiser step on Eq. 4 per mini-batch; returns the metrics of the whole batch.

        They are the same on all ranks. A step whose gradient norm is not finite or above
        `skip_grad_norm` leaves the weights alone and is counted in `loss/skipped`. RuntimeError
        when three in a row are skipped, and when π_old of new tokens is further than `max_drift`
        from π_θ before the first step.
        """
        parts = []
        norms = []
        # All rows come before the first step, so that a π_past to be scored is the π_θ before it.
        all_rows = [self._rows(groups) for groups in mini_batches]
        for number, rows in enumerate(all_rows):
            sums = self._accumulate(rows, clip_eps)
            if number == 0 and self.config.behavior_logprobs == "engine":
                self._compare(**engine_gap(sums))  # no step was made yet
            parts.append(sums)
            norms.append(self._step())
        sums = combine(parts)
        return {
            "loss/policy": sums["loss"] / len(parts),
            "loss/total": sums["total"] / len(parts),
            "loss/entropy": sums["entropy"] / (sums["new_tokens"] + sums["replay_tokens"]),
            **token_means(sums),
            "loss/grad_norm": float(np.mean(norms)),
            "loss/lr": self.config.lr,
            "loss/skipped": sum(not norm <= self.config.skip_grad_norm for norm in norms),
            **self.engine_metrics,
        }

    def _rows(self, groups: list[Group]) -> list[Row]:
        """A row for every response of a mini-batch, with the log-probs that w or w* divides by."""
        rows = []
        for group in groups:
            prompt_ids = group.question.prompt_ids
            of_each = zip(group.trajectories, group.advantages.tolist(), group.replayed)
            for trajectory, advantage, is_star in of_each:
                rows.append(Row(prompt_ids, trajectory, advantage, is_star))
        if not self.config.importance_correction:  # π_θ as it is now stands for π_past
            stars = [row for row in rows if row.is_star]
            scores = self.score([row.sequence for row in stars])
            for row, (logprobs, _) in zip(stars, scores):
                row.trajectory = replace(row.trajectory, logprobs=logprobs)
        return rows

    def _accumulate(self, rows: list[Row], clip_eps: float | None) -> dict:
        """Add up a mini-batch's gradient by micro-batches; returns the metric sums of all ranks."""
        sequences = [row.sequence for row in rows]
        parts = []
        for batch in ranks.micro_batches(sequences, self.config.tokens_per_micro_batch):
            # Between nodes the gradient is reduced once, not per micro-batch.
            self.module.set_requires_all_reduce(batch.is_last)
            part = [rows[i] for i in batch.indices]
            loss, sums = self._loss(part, len(rows), clip_eps)
            # FSDP averages gradients over ranks; the loss is a sum over them.
            (batch.is_real * ranks.world_size() * loss).backward()
            parts.append({name: batch.is_real * value for name, value in sums.items()})
        return combine(ranks.gather(combine(parts)))

    def _loss(
        self, rows: list[Row], num_responses: int, clip_eps: float | None
    ) -> tuple[torch.Tensor, dict]:
        """What a micro-batch adds to the loss, entropy bonus included, and to the metric sums."""
        config = self.config
        packed = pack([row.sequence for row in rows], self.device)
        logprobs, entropies = self.module(packed)  # (R,), (R,)
        lengths = [len(row.trajectory.token_ids) for row in rows]
        old_logprobs = np.concatenate([row.trajectory.logprobs for row in rows])  # (R,)
        advantages = np.repeat([row.advantage for row in rows], lengths)  # (R,)
        replayed = np.repeat([row.is_star for row in rows], lengths)  # (R,)
        inputs = [logprobs]
        for array in (old_logprobs, advantages, replayed):
            inputs.append(torch.as_tensor(array, device=self.device))
        loss, ratio, weight = policy_loss(
            *inputs,
            max_length=config.max_response_length,
            num_responses=num_responses,
            clip_eps=clip_eps,
            beta=config.beta if config.shaping else None,
        )
        entropy = entropies.sum()
        constant = config.max_response_length * num_responses
        total = loss - config.entropy_coef * entropy / constant
        sums = token_sums(*inputs, ratio, weight)
        sums["loss"] = loss.item()
        sums["total"] = total.item()
        sums["entropy"] = entropy.item()
        return total, sums

    def _step(self) -> float:
        """Step, unless the gradient is too large; returns its norm before clipping."""
        norm = torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.config.max_grad_norm)
        norm = float(norm.full_tensor())
        bound = self.config.skip_grad_norm
        if norm <= bound:  # false for nan too
            self.optimizer.step()
            self.skipped_in_row = 0
        else:
            self.skipped_in_row += 1
        self.optimizer.zero_grad()
        if self.skipped_in_row >= 3:
            raise RuntimeError(
                "three optimiser steps in a row were skipped, the last for a gradient norm of"
                f" {norm:.3g} (bound skip_grad_norm={bound:g}): see where loss/grad_norm rose"
                " first, lower lr, or raise the bound where the norm is finite, and --resume from"
                " the last checkpoint"
            )
        return norm

    def recompute(self, groups: list[Group]) -> list[Group]:
        """The groups with the policy's own log-probs of new responses, not the engine's.

        RuntimeError as in `update`.
        """
        new = []
        sequences = []
        for group in groups:
            for trajectory in group.new:
                new.append(trajectory)
                sequences.append((group.question.prompt_ids, trajectory.token_ids))
        now = [logprobs for logprobs, _ in self.score(sequences)]
        engines = [t.logprobs for t in new]
        log_ratio = np.concatenate(now) - np.concatenate(engines)
        drift = np.abs(log_ratio).mean()
        mismatch = np.abs(np.expm1(log_ratio)) > 0.1
        self._compare(float(drift), float(mismatch.mean()))
        rescored = {t: replace(t, logprobs=logprobs) for t, logprobs in zip(new, now)}
        result = []
        for group in groups:
            own = [rescored[t] for t in group.new]
            result.append(replace(group, new=own))
        return result

    def _compare(self, drift: float, mismatch: float) -> None:
        """Note how far engine and policy are apart; RuntimeError beyond `max_drift`.

        drift: mean |log w| in nats a token. mismatch: share of tokens with |w - 1| > 0.1.
        """
        self.engine_metrics = {
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

    def full_weights(self, dtype: torch.dtype = torch.float32) -> Iterator[tuple]:
        """(name, full tensor) of every weight, tied heads included and adapters merged."""
        rank = self.config.lora_rank
        for name, tensor in merged(self.module.lm.state_dict(), rank, self.device):
            tensor = tensor.detach().to(dtype)
            yield name, tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def shards(self) -> dict:
        """This rank's part of every weight, and of AdamW's state of it as `name:key`.

        They share memory with the policy's own, so that a checkpoint is read into them. State that
        no step has made yet is made here.
        """
        self.module.reshard()  # not done by a `score` that was interrupted
        shards = {}
        for name, p in self.module.lm.named_parameters():
            shards[name] = p.detach()
            if not p.requires_grad:
                continue
            if not self.optimizer.state[p]:
                moments = {key: torch.zeros_like(p) for key in ("exp_avg", "exp_avg_sq")}
                self.optimizer.state[p] = {"step": torch.tensor(0.0), **moments}
            for key, value in self.optimizer.state[p].items():
                shards[f"{name}:{key}"] = value.detach()
        return shards

    def save_pretrained(self, directory: str | Path) -> None:
        """Write a Hugging Face directory (safetensors, config) on rank 0, in the model's dtype."""
        lm = self.module.lm
        main = ranks.rank() == 0
        weights = {}
        for name, tensor in self.full_weights(self.saved_dtype):
            # Tied weights are written under one name; the loader makes the second.
            if main and name not in lm.all_tied_weights_keys:
                weights[name] = tensor.cpu()
        if main:
            # card.py writes the settings of generation; the model's own may be refused.
            lm.generation_config = GenerationConfig()
            lm.save_pretrained(directory, state_dict=weights)
            lm.config.dtype = self.saved_dtype  # it was taken from the weights that are trained
            lm.config.save_pretrained(directory)
        ranks.barrier()

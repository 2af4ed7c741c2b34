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
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import GenerationConfig

from config import Config
from exgrpo import Group
from loss import policy_loss
from model import PackedLM, load_model, pack, prompt_units
from runtime import ranks
from runtime.lora import add_adapters, merged
from runtime.metrics import add_up, token_means, token_sums

# Nats a token by which engine and policy may differ on average; see bench/README.md.
MAX_DRIFT = {"float32": 1e-3, "bfloat16": 0.15}
# An optimiser step whose gradient norm is this many times `max_grad_norm`, or not finite, is left
# out. Officially the two are 500 and 1.
SKIP_FACTOR = 500


@dataclass
class Row:
    """One response of a mini-batch, with what the loss has to know of it."""

    sequence: tuple[np.ndarray, np.ndarray]  # (prompt ids, response ids)
    old_logprobs: np.ndarray  # float32 (T,), that w or w* divides by
    advantage: float
    replayed: bool


class Policy:
    """The trained model on this rank.

    Every rank calls its methods in the same order: most are collectives.
    """

    def __init__(self, config: Config, device: torch.device):
        self.config = config
        self.device = device
        compute_dtype = getattr(torch, config.dtype)
        lm = load_model(config, "auto", attn_implementation="packed")
        self.saved_dtype = lm.dtype  # the model's own, in which it is written, too
        if config.lora_rank:
            # The weights are frozen, and frozen ones need no more precision than that.
            lm.to(compute_dtype)
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
        # The paper's betas (0.9, 0.999) and weight decay 0.01 are torch's own.
        eps = config.adam_eps
        self.optimizer = torch.optim.AdamW(trained, lr=config.lr, eps=eps)

    # ---- forward passes without gradient ---------------------------------------------------------

    def micro_batches(self, sequences: list[tuple]) -> list[ranks.MicroBatch]:
        """This rank's share of the sequences; those with one prompt stay together."""
        budget = self.config.tokens_per_micro_batch
        total = 0
        for prompt_ids, response_ids in sequences:
            total += len(prompt_ids) + len(response_ids)
        # Small enough to balance the ranks.
        limit = min(budget, total // (8 * ranks.world_size()))
        units = prompt_units(sequences, limit)
        return ranks.micro_batches(units, budget)

    @torch.no_grad()
    def score(self, sequences: list[tuple]) -> list[tuple]:
        """Log-probs and entropies, float32 (T,), of each response of (prompt ids, response ids)."""
        if not sequences:
            return []
        results = {}
        for batch in self.micro_batches(sequences):
            own = [sequences[i] for i in batch.indices]
            lengths = [len(response_ids) for _, response_ids in own]
            logprobs, entropies = self.module(pack(own, self.device))  # (R,), (R,)
            logprobs = logprobs.cpu().split(lengths)
            entropies = entropies.cpu().split(lengths)
            if batch.is_real:
                of_each = zip(batch.indices, logprobs, entropies)
                for i, p, h in of_each:
                    results[i] = p.numpy(), h.numpy()
        # Only a backward does so by itself: the gathered embedding and head would stay.
        self.module.reshard()
        for part in ranks.gather(results):
            results |= part
        return [results[i] for i in range(len(sequences))]

    def score_candidates(self, candidates: list[list[tuple]]) -> list[list[float]]:
        """What o* is chosen by, of each sequence of each question (lines 9-12).

        That is the mean full-vocabulary entropy of the response in nats a token, EOS included, or
        by the knob `trajectory_selection` the mean negative log-likelihood of its tokens.
        """
        by_nll = self.config.trajectory_selection == "nll"
        flat = [sequence for own in candidates for sequence in own]
        scores = iter(self.score(flat))
        result = []
        for own in candidates:
            means = []
            for _ in own:
                logprobs, entropies = next(scores)
                values = -logprobs if by_nll else entropies
                means.append(float(values.mean(dtype=float)))
            result.append(means)
        return result

    # ---- the update ------------------------------------------------------------------------------

    def update(self, mini_batches: list[list[Group]], clip_eps: float | None) -> dict:
        """Make one optimiser step on Eq. 4 per mini-batch; returns the metrics of the whole batch.

        They are the same on all ranks. RuntimeError when π_old of new tokens is further than
        MAX_DRIFT from π_θ before the first step.
        """
        parts = []
        # All rows come before the first step, so that a π_past to be scored is the π_θ before it.
        all_rows = [self.rows_of(groups) for groups in mini_batches]
        for rows in all_rows:
            sums = self.accumulate(rows, clip_eps)
            if not parts and self.config.behavior_logprobs == "engine":
                self.check_drift(sums["drift"] / max(sums["new"], 1))
            # Without advantages the entropy bonus would be the whole gradient.
            teaches = any(row.advantage for row in rows)
            parts.append(sums | self.step(teaches))
        sums = add_up(parts)
        tokens = sums["new"] + sums["replayed"]
        return {
            "engine/drift": self.drift,
            "loss/policy": sums["loss"] / len(parts),
            "loss/entropy": sums["entropy"] / tokens,
            "loss/grad_norm": sums["norm"] / len(parts),
            "loss/skipped": sums["skipped"],
            "loss/without_advantage": sums["without_advantage"],
            **token_means(sums),
        }

    def rows_of(self, groups: list[Group]) -> list[Row]:
        """A row for every response of a mini-batch."""
        rows = []
        for group in groups:
            advantages = group.advantages.tolist()
            for t, advantage in zip(group.trajectories, advantages):
                sequence = group.question.prompt_ids, t.token_ids
                replayed = t is group.star
                row = Row(sequence, t.logprobs, advantage, replayed)
                rows.append(row)
        if not self.config.importance_correction:  # π_θ as it is now stands for π_past
            stars = [row for row in rows if row.replayed]
            scores = self.score([row.sequence for row in stars])
            for row, (logprobs, _) in zip(stars, scores):
                row.old_logprobs = logprobs
        return rows

    def accumulate(self, rows: list[Row], clip_eps: float | None) -> dict:
        """Add up a mini-batch's gradient by micro-batches; returns the metric sums of all ranks."""
        config = self.config
        beta = None if config.beta == "none" else config.beta
        constant = config.max_response_length * len(rows)
        parts = []
        for batch in self.micro_batches([row.sequence for row in rows]):
            own = [rows[i] for i in batch.indices]
            packed = pack([row.sequence for row in own], self.device)
            logprobs, entropies = self.module(packed)  # (R,), (R,)
            lengths = [len(row.old_logprobs) for row in own]
            old_logprobs = np.concatenate([row.old_logprobs for row in own])  # (R,)
            advantages = np.repeat([row.advantage for row in own], lengths)  # (R,)
            replayed = np.repeat([row.replayed for row in own], lengths)  # (R,)
            inputs = [logprobs]
            for array in (old_logprobs, advantages, replayed):
                inputs.append(torch.as_tensor(array, device=self.device))
            loss, ratio, weight = policy_loss(
                *inputs,
                max_length=config.max_response_length,
                num_responses=len(rows),
                clip_eps=clip_eps,
                beta=beta,
            )
            entropy = entropies.sum()
            total = loss - config.entropy_coef * entropy / constant
            # FSDP averages gradients over ranks, where the loss is a sum; a dummy counts nothing.
            (batch.is_real * ranks.world_size() * total).backward()
            sums = token_sums(*inputs, ratio, weight)
            sums |= {"loss": loss.item(), "entropy": entropy.item()}
            if batch.is_real:
                parts.append(sums)
        everywhere = []
        for of_rank in ranks.gather(parts):
            everywhere += of_rank
        return add_up(everywhere)

    def step(self, teaches: bool) -> dict:
        """Step, unless nothing teaches, or the gradient norm is too large or not finite."""
        parameters = self.module.parameters()
        most = self.config.max_grad_norm
        norm = torch.nn.utils.clip_grad_norm_(parameters, most)
        norm = float(norm.full_tensor())
        sound = teaches and norm <= SKIP_FACTOR * most
        if sound:
            self.optimizer.step()
        self.optimizer.zero_grad()
        return {"norm": norm, "skipped": teaches and not sound, "without_advantage": not teaches}

    def recompute(self, groups: list[Group]) -> list[Group]:
        """The groups with the policy's own log-probs of new responses, not the engine's."""
        sequences = []
        for group in groups:
            for t in group.new:
                sequences.append((group.question.prompt_ids, t.token_ids))
        scores = iter(self.score(sequences))
        result = []
        differences = []
        for group in groups:
            new = []
            for t in group.new:
                logprobs, _ = next(scores)
                differences.append(np.abs(logprobs - t.logprobs))
                new.append(replace(t, logprobs=logprobs))
            result.append(replace(group, new=new))
        self.check_drift(np.concatenate(differences).mean())
        return result

    def check_drift(self, drift: float) -> None:
        """RuntimeError where engine and policy differ by too many nats a token, or by nan."""
        self.drift = drift
        bound = MAX_DRIFT[self.config.dtype]
        if not drift <= bound:
            raise RuntimeError(
                f"engine and policy disagree: mean |log-prob difference| {drift:.2e} nats a token,"
                f" where {self.config.dtype} allows {bound:g}: the engine runs other weights"
            )

    # ---- weights out -----------------------------------------------------------------------------

    def full_weights(self, dtype: torch.dtype = torch.float32) -> Iterator[tuple]:
        """(name, full tensor) of every weight, tied heads included and adapters merged."""
        sharded = self.module.lm.state_dict()
        for name, tensor in merged(sharded, self.config.lora_rank, self.device):
            tensor = tensor.detach().to(dtype)
            if isinstance(tensor, DTensor):
                tensor = tensor.full_tensor()
            yield name, tensor

    def shards(self) -> dict:
        """This rank's part of every weight and of AdamW's state, by name.

        They share memory with the policy's own, so that a checkpoint is read into them.
        """
        lm = self.module.lm
        options = StateDictOptions(flatten_optimizer_state_dict=True)
        weights, state = get_state_dict(lm, self.optimizer, options=options)
        shards = dict(weights)
        for name, value in state.items():
            if isinstance(value, torch.Tensor):  # not the learning rate and the like
                shards[name] = value
        return shards

    def save_pretrained(self, directory: Path) -> None:
        """Write a Hugging Face directory (safetensors, config) on rank 0, in the model's dtype."""
        lm = self.module.lm
        weights = {}
        for name, tensor in self.full_weights(self.saved_dtype):
            # Tied weights are written under one name; the loader makes the second.
            if ranks.rank() == 0 and name not in lm.all_tied_weights_keys:
                weights[name] = tensor.cpu()
        if ranks.rank() == 0:
            lm.generation_config = GenerationConfig()  # the model's own may be refused
            lm.save_pretrained(directory, state_dict=weights)
            lm.config.dtype = self.saved_dtype  # it was taken from the weights that are trained
            # transformers 4 looks for it here, and takes 10000 where it is missing.
            lm.config.rope_theta = lm.config.rope_parameters["rope_theta"]
            lm.config.save_pretrained(directory)
        ranks.barrier()

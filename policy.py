"""π_θ: the sharded model, its scores of responses, and the optimiser step (Alg. 1, line 31).

FSDP2 shards the weights over the ranks of a node and replicates them across nodes. With `lora_rank`
the model is frozen and adapters are trained in its place. What is trained is kept in float32; the
model computes in `dtype` and sees packed sequences only (model.py). Work is split over ranks by
tokens; the loss is divided by constants of the *global* mini-batch, so the gradient depends neither
on the number of ranks nor on micro-batches.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from config import Config
from exgrpo import Group
from loss import policy_loss
from model import PackedLM, load_model, pack, prompt_units
from runtime import ranks
from runtime.lora import add_adapters, merged
from runtime.metrics import add_up, token_means, token_sums

# Nats a token by which engine and policy may differ on average; see bench/README.md.
MAX_DRIFT = {"float32": 1e-3, "bfloat16": 0.15}
# An optimiser step is left out if its gradient norm is above this many times `max_grad_norm`, or
# not finite. Officially norms above 500 are left out and `max_grad_norm` is 1.
SKIP_FACTOR = 500


class Policy:
    """The trained model on this rank.

    Every rank calls its methods in the same order: most are collectives.
    """

    def __init__(self, config: Config, device: torch.device):
        self.config = config
        self.device = device
        lm = load_model(config, "auto", attn_implementation="packed")
        if config.lora_rank:
            add_adapters(lm, config.lora_rank, config.seed)
        if config.gradient_checkpointing:
            lm.gradient_checkpointing_enable()
        self.module = PackedLM(lm, config.temperature).train()
        mesh = ranks.mesh(device.type)
        dtype = getattr(torch, config.dtype)
        mixed = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        for part in (*lm.get_decoder().layers, self.module):
            # Layer by layer, since a host has room for few whole float32 copies.
            for p in part.parameters():
                if p.requires_grad:
                    p.data = p.data.float()
            fully_shard(part, mesh=mesh, mp_policy=mixed)
        # The paper's betas (0.9, 0.999) and weight decay 0.01 are torch's own.
        parameters = self.module.parameters()
        self.optimizer = torch.optim.AdamW(parameters, lr=config.lr, eps=config.adam_eps)

    # ---- forward passes --------------------------------------------------------------------------

    def passes(self, sequences: list[tuple]) -> Iterator[tuple]:
        """Run this rank's share of the (prompt ids, response ids), one micro-batch after another.

        Yields the indices of each micro-batch's sequences, whether it is real, its log-probs (R,)
        and its entropies (R,). A pass is a collective, so every rank has to make equally many: a
        rank that has no work left scores a sequence to no effect, and that pass is not real.
        """
        budget = self.config.tokens_per_micro_batch
        total = 0
        for prompt_ids, response_ids in sequences:
            total += len(prompt_ids) + len(response_ids)
        # Neighbours with the same prompt form units, which share one copy of it. A unit that is
        # more than one sequence takes at most an eighth of a rank's tokens, to balance the ranks.
        limit = min(budget, total // (8 * ranks.world_size()))
        units = prompt_units(sequences, limit)
        for indices, is_real in ranks.micro_batches(units, budget):
            own = [sequences[i] for i in indices]
            packed = pack(own, self.device)
            logprobs, entropies = self.module(packed)
            yield indices, is_real, logprobs, entropies

    @torch.no_grad()
    def score(self, sequences: list[tuple]) -> list[np.ndarray]:
        """Log-probs and entropies, float32 (2, T), of each response; a collective.

        sequences: pairs of (prompt ids, response ids).
        """
        if not sequences:
            return []
        results = {}
        for indices, is_real, logprobs, entropies in self.passes(sequences):
            scores = torch.stack([logprobs, entropies]).cpu()  # (2, R)
            lengths = [len(sequences[i][1]) for i in indices]
            if is_real:
                of_each = scores.split(lengths, dim=1)
                for i, of_one in zip(indices, of_each):
                    results[i] = of_one.numpy()
        # Frees the gathered embedding and head, which else would stay until a backward pass.
        self.module.reshard()
        for part in ranks.gather(results):
            results |= part
        return [results[i] for i in range(len(sequences))]

    def score_candidates(self, candidates: list[list[tuple]]) -> list[list[float]]:
        """The score of each candidate by which o* is chosen (lines 9-12).

        That is the mean full-vocabulary entropy of the response in nats a token, EOS included, or
        by the knob `trajectory_selection` the mean negative log-likelihood of its tokens.
        """
        by_nll = self.config.trajectory_selection == "nll"
        flat = [sequence for own in candidates for sequence in own]
        means = []
        for logprobs, entropies in self.score(flat):
            values = entropies
            if by_nll:
                values = -logprobs
            means.append(values.mean(dtype=float))
        remaining = iter(means)
        nested = []
        for own in candidates:
            nested.append([next(remaining) for _ in own])
        return nested

    # ---- the update ------------------------------------------------------------------------------

    def update(self, mini_batches: list[list[Group]], clip_eps: float | None) -> dict:
        """Make one optimiser step on Eq. 4 per mini-batch; returns the metrics of the whole batch.

        They are the same on all ranks. RuntimeError when π_old is the engine's and, before the
        first step, further than MAX_DRIFT from π_θ; `recompute` checks that by itself.
        """
        parts = []
        # Before the first step: some rows may need log-probs under the π_θ of now.
        all_rows = [self.rows_of(groups) for groups in mini_batches]
        for groups, rows in zip(mini_batches, all_rows):
            sums = self.accumulate(rows, clip_eps)
            if not parts and self.config.behavior_logprobs == "engine":
                self.check_drift(sums["drift"] / sums["new"])
            # Without advantages the entropy bonus would be the whole gradient.
            teaches = any(group.advantages.any() for group in groups)
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

    def rows_of(self, groups: list[Group]) -> list[tuple]:
        """A row for each response of a mini-batch: its sequence, and what the loss has to know.

        That is, in three arrays (T,), the log-probs that w or w* divides by, the advantage, and
        whether the response is replayed.
        """
        rescored = []  # o* whose w* divides by the π_θ of now, not by the stored π_past
        for group in groups:
            if group.star and not self.config.importance_correction:
                rescored.append((group.question.prompt_ids, group.star.token_ids))
        scores = iter(self.score(rescored))
        rows = []
        for group in groups:
            for t, advantage, replayed in zip(group.trajectories, group.advantages, group.replayed):
                sequence = group.question.prompt_ids, t.token_ids
                old_logprobs = t.logprobs
                if replayed and rescored:
                    old_logprobs, _ = next(scores)
                of_tokens = np.broadcast_arrays(old_logprobs, advantage, replayed)  # (T,) each
                rows.append((sequence, *of_tokens))
        return rows

    def accumulate(self, rows: list[tuple], clip_eps: float | None) -> dict:
        """Add up a mini-batch's gradient by micro-batches; returns the metric sums of all ranks."""
        config = self.config
        beta = None if config.beta == "none" else config.beta
        constant = config.max_response_length * len(rows)
        sequences, *of_rows = zip(*rows)  # of_rows: old log-probs, A, replayed
        parts = []
        for indices, is_real, logprobs, entropies in self.passes(list(sequences)):
            inputs = [logprobs]
            for arrays in of_rows:
                array = np.concatenate([arrays[i] for i in indices])  # (R,)
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
            # The factor undoes FSDP's average over ranks.
            (is_real * ranks.world_size() * total).backward()
            sums = token_sums(*inputs, ratio, weight)
            sums |= {"loss": loss.item(), "entropy": entropy.item()}
            if is_real:
                parts.append(sums)
        everywhere = []
        for of_rank in ranks.gather(parts):
            everywhere += of_rank
        return add_up(everywhere)

    def step(self, teaches: bool) -> dict:
        """Step, unless nothing teaches, or the gradient norm is too large or not finite."""
        most = self.config.max_grad_norm
        norm = torch.nn.utils.clip_grad_norm_(self.module.parameters(), most)
        norm = norm.full_tensor().item()
        sound = teaches and norm <= SKIP_FACTOR * most
        if sound:
            self.optimizer.step()
        self.optimizer.zero_grad()
        return {"norm": norm, "skipped": teaches and not sound, "without_advantage": not teaches}

    def recompute(self, groups: list[Group]) -> None:
        """Put the policy's own log-probs of new responses in place of the engine's."""
        new = []
        sequences = []
        for group in groups:
            for t in group.new:
                new.append(t)
                sequences.append((group.question.prompt_ids, t.token_ids))
        differences = []
        for t, (logprobs, _) in zip(new, self.score(sequences)):
            differences.append(np.abs(logprobs - t.logprobs))
            t.logprobs = logprobs.copy()  # not a view of the whole micro-batch
        self.check_drift(np.concatenate(differences).mean())

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

    def full_weights(self, dtype: torch.dtype) -> Iterator[tuple]:
        """(name, full tensor) of every weight, tied heads included and adapters merged."""
        sharded = self.module.lm.state_dict()
        for name, tensor in merged(sharded, self.config.lora_rank):
            yield name, tensor.to(dtype).full_tensor()

    def shards(self) -> dict:
        """This rank's part of every weight and of AdamW's state, by name.

        They are views of the policy's own memory: reading a checkpoint into them loads it.
        """
        options = StateDictOptions(flatten_optimizer_state_dict=True)
        shards, state = get_state_dict(self.module.lm, self.optimizer, options=options)
        for name, value in state.items():
            if isinstance(value, torch.Tensor):  # not the learning rate and the like
                shards[name] = value
        return shards

    def save_pretrained(self, directory: Path) -> None:
        """Write a Hugging Face directory (safetensors, config) on rank 0, in the model's dtype."""
        lm = self.module.lm
        main = ranks.rank() == 0
        weights = {}
        for name, tensor in self.full_weights(lm.config.dtype):
            # Tied weights are written under one name; the loader makes the second.
            if main and name not in lm.all_tied_weights_keys:
                weights[name] = tensor.cpu()
        if main:
            # transformers 4 looks for it here, and takes 10000 where it is missing.
            lm.config.rope_theta = lm.config.rope_parameters["rope_theta"]
            lm.config.save_pretrained(directory)
            content = save(weights, metadata={"format": "pt"})
            (directory / "model.safetensors").write_bytes(content)

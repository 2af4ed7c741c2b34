"""Log-probs and entropies of response tokens: packed without padding, without full-size logits.

Sequences are laid end to end in one row, neighbours with the same prompt behind one copy of it. Position ids restart
at 0 for each sequence, and the attention function registered here keeps them apart: on a GPU by torch's variable-length
kernel over a row in which every prompt is repeated, on the CPU by attending over a padded copy of queries, keys and
values (attention is causal and padding stands to the right, so no mask is needed). Only attention sees copies and
padding. The head is applied to chunks of response positions and recomputed in the backward pass.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface

LOGITS_CHUNK = 2**25  # elements of float32 logits held at once: 128 MiB


@dataclass
class Packed:
    """N sequences (prompt + response) in a row of S tokens, R of them response tokens; a shared prompt is there once.

    E ≥ S is the sum of the sequences' lengths, the tokens that attention sees; L is the longest of them.
    """

    input_ids: torch.Tensor  # (1, S)
    position_ids: torch.Tensor  # (1, S), place in the token's own sequence
    cu_seqlens: torch.Tensor  # (N + 1,) int32, where each sequence starts among the E tokens
    repeated: torch.Tensor  # (E,) place in the row of each of them
    once: torch.Tensor  # (S,) the other way round; of a shared prompt its first copy
    pad_index: torch.Tensor  # (N, L) place in the row of each padded cell; padding points at 0
    cell_index: torch.Tensor  # (S,) padded cell of each token
    predictors: torch.Tensor  # (R,) places whose hidden state predicts a response token
    targets: torch.Tensor  # (R,) those response tokens
    response_mask: torch.Tensor  # (N, T) bool, right-padded

    def unpack(self, values: torch.Tensor) -> torch.Tensor:
        """(R,) values of response tokens -> (N, T), zeros outside the responses."""
        padded = values.new_zeros(self.response_mask.shape)
        return padded.masked_scatter(self.response_mask, values)


def pack(sequences: list[tuple[np.ndarray, np.ndarray]], device="cpu") -> Packed:
    """Pack (prompt ids, response ids) pairs; both must be non-empty. Neighbours with equal prompts share one."""
    prompts, responses = (np.array([len(pair[side]) for pair in sequences]) for side in (0, 1))
    row, end, prompt_starts, response_starts = [], 0, [], []
    for i, (prompt, response) in enumerate(sequences):
        if i and np.array_equal(prompt, sequences[i - 1][0]):
            prompt_starts.append(prompt_starts[-1])
        else:
            prompt_starts.append(end)
            row.append(prompt)
            end += len(prompt)
        response_starts.append(end)
        row.append(response)
        end += len(response)
    lengths = prompts + responses
    columns = np.arange(lengths.max())
    in_prompt, real = columns < prompts[:, None], columns < lengths[:, None]  # (N, L)
    starts = np.where(in_prompt, np.array(prompt_starts)[:, None], (np.array(response_starts) - prompts)[:, None])
    pad_index = np.where(real, starts + columns, 0)
    cells = np.flatnonzero(real)  # (E,)
    repeated = pad_index.ravel()[cells]
    once = np.empty(end, dtype=int)
    once[repeated[::-1]] = np.arange(len(cells))[::-1]  # backwards: the first copy is written last
    predicting = (columns >= prompts[:, None] - 1) & (columns < lengths[:, None] - 1)

    def long(array):
        return torch.as_tensor(np.asarray(array), dtype=torch.long).to(device)

    return Packed(
        input_ids=long(np.concatenate(row))[None],
        position_ids=long(cells[once] % len(columns))[None],
        cu_seqlens=long(np.concatenate([[0], np.cumsum(lengths)])).int(),
        repeated=long(repeated),
        once=long(once),
        pad_index=long(pad_index),
        cell_index=long(cells[once]),
        predictors=long(pad_index[predicting]),
        targets=long(np.concatenate([r for _, r in sequences])),
        response_mask=long(np.arange(max(responses)) < responses[:, None]).bool(),
    )


def packed_attention(module, query, key, value, attention_mask, scaling=None, packing=None, **_):
    """Causal attention inside each packed sequence. query: (1, H, S, D), key and value: (1, H_kv, S, D)."""
    grouped = query.shape[1] != key.shape[1]
    if query.device.type == "cuda" and query.dtype != torch.float32:  # the kernel takes 16-bit types only
        from torch.nn.attention.varlen import varlen_attn

        q, k, v = (x[0].transpose(0, 1)[packing.repeated] for x in (query, key, value))  # (E, heads, D)
        bounds, longest = packing.cu_seqlens, packing.pad_index.shape[1]
        out = varlen_attn(q, k, v, bounds, bounds, longest, longest, scale=scaling, window_size=(-1, 0), enable_gqa=grouped)
        return out[packing.once][None], None  # (1, S, H, D)

    def pad(x):  # (1, heads, S, D) -> (N, heads, L, D)
        if x.dtype == torch.bfloat16 and x.device.type == "cpu":
            x = x.float()  # the CPU kernel's backward takes two to six times as long in bfloat16
        return F.embedding(packing.pad_index, x[0].transpose(0, 1).flatten(1)).unflatten(-1, (-1, x.shape[-1])).transpose(1, 2)

    q, k, v = pad(query), pad(key), pad(value)
    if grouped and q.device.type == "cuda":  # float32 heads that share keys would get the kernel that stores all N H L² scores
        k, v = (x.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for x in (k, v))
        grouped = False
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=grouped)  # (N, H, L, D)
    out = out.transpose(1, 2).flatten(0, 1).flatten(1).to(query.dtype)  # (N L, H D)
    return F.embedding(packing.cell_index, out).unflatten(-1, (-1, query.shape[-1]))[None], None


AttentionInterface.register("packed", packed_attention)
AttentionMaskInterface.register("packed", lambda *args, **kwargs: None)


class TokenScores(torch.autograd.Function):
    """hidden (R, H), weight (V, H), targets (R,) -> log-probs (R,) and entropies (R,) of softmax(hidden Wᵀ / T).

    With p = softmax(z) and 𝓗 its entropy: ∂ log p_y / ∂z = 1_y - p, ∂𝓗 / ∂z = -p (log p + 𝓗).
    """

    @staticmethod
    def forward(ctx, hidden, weight, targets, temperature):
        """The scores, chunk by chunk; keeps hidden states and entropies, no logits."""
        logprobs, entropies = [], []
        for h, y in TokenScores.chunks(hidden, targets, weight):
            log_p = TokenScores.log_softmax(h, weight, temperature)  # (c, V)
            logprobs.append(log_p.gather(1, y[:, None])[:, 0])
            entropies.append(-(log_p.exp() * log_p).sum(-1))
        ctx.temperature = temperature
        scores = torch.cat(logprobs), torch.cat(entropies)
        ctx.save_for_backward(hidden, weight, targets, scores[1])
        return scores

    @staticmethod
    def backward(ctx, grad_logprobs, grad_entropies):
        """Gradients of hidden (R, H) and, unless it is frozen, of weight (V, H), from logits computed once more."""
        hidden, weight, targets, entropies = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        trained = ctx.needs_input_grad[1]  # not with LoRA
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device) if trained else None
        row = 0
        for h, y in TokenScores.chunks(hidden, targets, weight):
            rows = slice(row, row := row + len(h))
            log_p = TokenScores.log_softmax(h, weight, ctx.temperature)  # (c, V)
            p = log_p.exp()
            d_logprob, d_entropy = grad_logprobs[rows, None], grad_entropies[rows, None]
            grad = log_p.add_(entropies[rows, None]).mul_(d_entropy).add_(d_logprob).mul_(p).neg_()
            grad.scatter_add_(1, y[:, None], d_logprob).div_(ctx.temperature)
            grad = grad.to(weight.dtype)
            grad_hidden[rows] = grad @ weight
            if trained and grad.dtype == torch.float32:
                grad_weight.addmm_(grad.T, h)
            elif trained:
                grad_weight += grad.T @ h
        return grad_hidden, grad_weight.to(weight.dtype) if trained else None, None, None

    @staticmethod
    def chunks(hidden, targets, weight):
        size = max(1, LOGITS_CHUNK // len(weight))
        return zip(hidden.split(size), targets.split(size))

    @staticmethod
    def log_softmax(hidden, weight, temperature):
        return (hidden @ weight.T).float().div_(temperature).log_softmax(-1)


class PackedLM(nn.Module):
    """A Hugging Face causal language model that scores packed responses in one forward."""

    def __init__(self, lm: nn.Module, temperature: float = 1.0):
        super().__init__()
        self.lm, self.temperature = lm, temperature

    def forward(self, packed: Packed) -> tuple[torch.Tensor, torch.Tensor]:
        """Float32 log-probs (R,) of the response tokens and entropies (R,) of the distributions they came from."""
        hidden = self.lm.get_decoder()(input_ids=packed.input_ids, position_ids=packed.position_ids,
                                       attention_mask=None, use_cache=False, packing=packed).last_hidden_state
        head = self.lm.get_output_embeddings()
        return TokenScores.apply(hidden[0, packed.predictors], head.weight, packed.targets, self.temperature)


def model_config(config, model: str):
    """Stand-in until it moves here from policy.py."""
    import policy

    return policy.model_config(config, model)

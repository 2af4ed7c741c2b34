"""Log-probs and entropies of response tokens: packed without padding, without full-size logits.

Sequences are laid end to end in one row, neighbours with the same prompt behind one copy of it. The
attention function registered here keeps them apart: on GPUs in 16 bits by torch's variable-length
kernel over a row in which every prompt is repeated, else over a padded copy of queries, keys and
values (attention is causal and padding stands to the right, so no mask is needed). Only attention
sees copies and padding. The head is applied in float32, to chunks of response positions, and
recomputed in the backward pass.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModelForCausalLM,
)

from config import Config
from runtime.memory import LOGITS_CHUNK


def model_config(config: Config, model: str):
    """The model's Hugging Face configuration with the context extension of `rope_theta` and
    positions.
    """
    hf_config = AutoConfig.from_pretrained(model, trust_remote_code=False)
    return extend_context(hf_config, config)


def extend_context(hf_config, config: Config, **also):
    """Set `rope_theta`, `max_position_embeddings`, where given, and `also` in a Hugging Face
    config.
    """
    vars(hf_config).update(also)
    if config.rope_theta:
        rope = (
            getattr(hf_config, "rope_parameters", None) or {}
        )  # vLLM first tries an empty configuration
        hf_config.rope_parameters = {**rope, "rope_theta": config.rope_theta}
    if config.max_position_embeddings:
        hf_config.max_position_embeddings = config.max_position_embeddings
    return hf_config


def load_model(config: Config, model: str, dtype: torch.dtype | str, **how) -> nn.Module:
    """The model in `dtype`; ValueError names weights that its files lack or have to spare."""
    hf_config = model_config(config, model)
    lm, found = AutoModelForCausalLM.from_pretrained(
        model,
        config=hf_config,
        dtype=dtype,
        output_loading_info=True,
        trust_remote_code=False,
        **how,
    )
    wrong = {"lacks": found["missing_keys"], "has to spare": found["unexpected_keys"]}
    if wrong := {what: sorted(names)[:3] for what, names in wrong.items() if names}:
        raise ValueError(
            f"{model}, weights it {wrong}: is it whole, does its config.json belong to it?"
        )
    return lm


@dataclass
class Packed:
    """N sequences (prompt + response) in a row of S tokens, R of them response tokens.

    E ≥ S is the sum of the sequences' lengths, the tokens that attention sees; L is the longest of
    them.
    """

    input_ids: torch.Tensor  # (1, S), a shared prompt is there once
    position_ids: torch.Tensor  # (1, S), place in the token's own sequence
    repeated: torch.Tensor  # (E,) place in the row of each token that attention sees
    cu_seqlens: torch.Tensor  # (N + 1,) int32, where each sequence starts among them
    once: torch.Tensor  # (S,) the way back: which of them each token of the row is, its first copy
    pad_index: torch.Tensor  # (N, L) place in the row of each padded cell; padding points at 0
    cell_index: torch.Tensor  # (S,) the way back: cell, row by row, of each token of the row
    predictors: torch.Tensor  # (R,) places whose hidden state predicts a response token
    targets: torch.Tensor  # (R,) those response tokens


def pack(sequences: list[tuple[np.ndarray, np.ndarray]], device="cpu") -> Packed:
    """Pack (prompt ids, response ids) pairs; both must be non-empty. Neighbours with equal prompts
    share one.

    Eight tokens: responses `1` and `2 3 4` to the prompt `5`, `8` to the prompt `7`. Seven are in
    the row, `5 1 2 3 4 7 8`. `7`, at place 5, is number 6 of the eight that attention sees, cell 8
    of the 3 x 4.

    >>> a, b = np.array([5]), np.array([7])
    >>> packed = pack([(a, np.array([1])), (a, np.array([2, 3, 4])), (b, np.array([8]))])
    >>> for name, tensor in vars(packed).items():
    ...     print(name, tensor.tolist())
    input_ids [[5, 1, 2, 3, 4, 7, 8]]
    position_ids [[0, 1, 1, 2, 3, 0, 1]]
    repeated [0, 1, 0, 2, 3, 4, 5, 6]
    cu_seqlens [0, 2, 6, 8]
    once [0, 1, 3, 4, 5, 6, 7]
    pad_index [[0, 1, 0, 0], [0, 2, 3, 4], [5, 6, 0, 0]]
    cell_index [0, 1, 5, 6, 7, 8, 9]
    predictors [0, 0, 2, 3, 5]
    targets [1, 2, 3, 4, 8]
    """
    row, places, predictors, end = [], [], [], 0
    for i, (prompt, response) in enumerate(sequences):
        if not i or not np.array_equal(prompt, sequences[i - 1][0]):
            of_prompt = np.arange(end, end + len(prompt))
            row.append(prompt)
            end += len(prompt)
        of_response = np.arange(end, end + len(response))
        row.append(response)
        end += len(response)
        places.append(np.concatenate([of_prompt, of_response]))
        predictors.append(places[-1][len(prompt) - 1 : -1])
    lengths = np.array([len(x) for x in places])  # (N,)
    real = np.arange(lengths.max()) < lengths[:, None]  # (N, L)
    repeated = np.concatenate(places)  # (E,)
    _, once = np.unique(repeated, return_index=True)  # (S,), the first copies
    pad_index = np.zeros(real.shape, dtype=int)
    pad_index[real] = repeated
    cell_index = np.flatnonzero(real)[once]  # (S,)

    def long(array):
        return torch.as_tensor(array, dtype=torch.long).to(device)

    return Packed(
        input_ids=long(np.concatenate(row))[None],
        position_ids=long(cell_index % real.shape[1])[None],
        repeated=long(repeated),
        cu_seqlens=long(np.concatenate([[0], np.cumsum(lengths)])).int(),
        once=long(once),
        pad_index=long(pad_index),
        cell_index=long(cell_index),
        predictors=long(np.concatenate(predictors)),
        targets=long(np.concatenate([response for _, response in sequences])),
    )


def packed_attention(module, query, key, value, attention_mask, scaling=None, packing=None, **_):
    """Causal attention inside each packed sequence. query: (1, H, S, D), key and value: (1,
    H_kv, S, D).
    """
    by_kernel = (
        query.device.type == "cuda" and query.dtype != torch.float32
    )  # it takes 16-bit types only
    return (attend_in_a_row if by_kernel else attend_padded)(
        query, key, value, scaling, packing
    ), None


def attend_in_a_row(query, key, value, scale, packing: Packed):
    """By torch's variable-length kernel over a row in which every prompt is repeated."""
    from torch.nn.attention.varlen import varlen_attn

    def repeated(x):  # (1, h, S, D) -> (E, h, D); the backward of x[index] would sort the index
        return rearrange(x, "1 h s d -> s h d").index_select(0, packing.repeated)

    bounds, longest = packing.cu_seqlens, packing.pad_index.shape[1]
    out = varlen_attn(
        repeated(query),
        repeated(key),
        repeated(value),
        bounds,
        bounds,
        longest,
        longest,
        scale=scale,
        window_size=(-1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return rearrange(out.index_select(0, packing.once), "s h d -> 1 s h d")  # of (E, H, D)


def attend_padded(query, key, value, scale, packing: Packed):
    """By plain attention over padded copies."""
    groups = query.shape[1] // key.shape[1]  # heads to a key

    def padded(x):  # (1, h, S, D) -> (N, h, L, D)
        if x.dtype == torch.bfloat16 and not x.is_cuda:
            x = x.float()  # the CPU kernel's backward takes two to six times as long in bfloat16
        cells = F.embedding(packing.pad_index, rearrange(x, "1 h s d -> s (h d)"))
        return rearrange(cells, "n l (h d) -> n h l d", d=x.shape[-1])

    q, k, v = padded(query), padded(key), padded(value)
    if groups > 1 and q.is_cuda:  # float32 heads would get the kernel that stores all N H L² scores
        k, v = (repeat(x, "n h l d -> n (h g) l d", g=groups) for x in (k, v))
    out = F.scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=scale, enable_gqa=k.shape != q.shape
    )
    cells = rearrange(out, "n h l d -> (n l) (h d)").to(query.dtype)
    return rearrange(
        F.embedding(packing.cell_index, cells), "s (h d) -> 1 s h d", d=query.shape[-1]
    )


AttentionInterface.register("packed", packed_attention)
AttentionMaskInterface.register("packed", lambda *args, **kwargs: None)


def times(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b; on a GPU 16-bit factors give a float32 product."""
    return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda and a.itemsize == 2 else a @ b


class TokenScores(torch.autograd.Function):
    """hidden (R, H), weight (V, H), targets (R,) -> log-probs and entropies (R,) of softmax(hidden
    Wᵀ / T).

    With p = softmax(z) and 𝓗 its entropy: ∂ log p_y / ∂z = 1_y - p, ∂𝓗 / ∂z = -p (log p + 𝓗).
    >>> z = torch.tensor([[1.0, 3.0]]).log().requires_grad_()  # p = 1/4, 3/4; the 2nd was said
    >>> scores = TokenScores.apply(z, torch.eye(2), torch.tensor([1]), 1.0)
    >>> [torch.autograd.grad(score, z, retain_graph=True)[0] for score in scores]
    [tensor([[-0.2500,  0.2500]]), tensor([[ 0.2060, -0.2060]])]
    """

    @staticmethod
    def forward(ctx, hidden, weight, targets, temperature):
        """The scores, chunk by chunk; keeps hidden states and entropies, no logits."""
        logprobs, entropies = [], []
        for _, y, log_p in TokenScores.chunks(hidden, weight, targets, temperature):
            logprobs.append(log_p.gather(1, y[:, None])[:, 0])
            entropies.append(-(log_p.exp() * log_p).sum(-1))
        entropies = torch.cat(entropies)
        ctx.temperature = temperature
        ctx.save_for_backward(hidden, weight, targets, entropies)
        return torch.cat(logprobs), entropies

    @staticmethod
    def backward(ctx, grad_logprobs, grad_entropies):
        """Gradients of hidden (R, H) and, unless frozen, weight (V, H); logits are computed once
        more.
        """
        hidden, weight, targets, entropies = ctx.saved_tensors
        trained = ctx.needs_input_grad[1]  # not with LoRA
        grad_hidden, row = torch.empty_like(hidden), 0
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if trained else None
        for h, y, log_p in TokenScores.chunks(hidden, weight, targets, ctx.temperature):
            rows = slice(row, row := row + len(h))
            p = log_p.exp()  # (c, V)
            d_logprob, d_entropy = grad_logprobs[rows, None], grad_entropies[rows, None]
            grad = log_p.add_(entropies[rows, None]).mul_(d_entropy).add_(d_logprob).mul_(p).neg_()
            grad.scatter_add_(1, y[:, None], d_logprob).div_(ctx.temperature)
            grad = grad.to(weight.dtype)
            grad_hidden[rows] = times(grad, weight)
            if trained and grad.dtype == torch.float32:
                grad_weight.addmm_(grad.T, h)
            elif trained:
                grad_weight += times(grad.T, h)
        return grad_hidden, grad_weight.to(weight.dtype) if trained else None, None, None

    @staticmethod
    def chunks(hidden, weight, targets, temperature):
        """Some rows after another: hidden (c, H), targets (c,) and the log-probs (c, V) of all
        words.
        """
        size = max(1, LOGITS_CHUNK[hidden.device.type] // len(weight))
        for h, y in zip(hidden.split(size), targets.split(size)):
            yield h, y, times(h, weight.T).float().div_(temperature).log_softmax(-1)


class PackedLM(nn.Module):
    """A Hugging Face causal language model that scores packed responses in one forward."""

    def __init__(self, lm: nn.Module, temperature: float = 1.0):
        super().__init__()
        self.lm, self.temperature = lm, temperature

    def forward(self, packed: Packed) -> tuple[torch.Tensor, torch.Tensor]:
        """Float32 log-probs (R,) of the response tokens and entropies (R,) of what they were
        drawn from.
        """
        decoder, head = self.lm.get_decoder(), self.lm.get_output_embeddings()
        hidden = decoder(
            input_ids=packed.input_ids,
            position_ids=packed.position_ids,
            attention_mask=None,
            use_cache=False,
            packing=packed,
        ).last_hidden_state  # (1, S, H)
        hidden, weight = hidden[0].index_select(0, packed.predictors), head.weight  # (R, H), (V, H)
        if hidden.dtype == torch.bfloat16 and not hidden.is_cuda:  # see `times`
            hidden, weight = hidden.float(), weight.float()
        return TokenScores.apply(hidden, weight, packed.targets, self.temperature)

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
from einops import rearrange
from torch import nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModelForCausalLM,
)

from config import Config
from runtime.ranks import Refusal

# How many float32 logits are held at once. On a GPU a chunk reads and writes the gradient of the
# head once: 2**28, which is 1 GiB, should keep that below a fifth of the arithmetic. This is
# reckoned for 152,064 words on an H100, not measured.
LOGITS_CHUNK = {"cpu": 2**24, "cuda": 2**28}


# A test has compared these with plain passes: packed scores and gradient, LoRA, and weight sync to
# both engines. docs/change-it.md says how to try another.
MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")


def extend_context(hf_config, config: Config):
    """The Hugging Face configuration passed in, with our `rope_theta` and positions, if any."""
    if config.rope_theta:
        # vLLM first tries an empty configuration, which has no rope_parameters.
        rope = getattr(hf_config, "rope_parameters", None) or {}
        hf_config.rope_parameters = {**rope, "rope_theta": config.rope_theta}
    if config.max_position_embeddings:
        hf_config.max_position_embeddings = config.max_position_embeddings
    return hf_config


def model_config(config: Config):
    """The model's Hugging Face configuration.

    Refusal for a model that packing may score wrongly, or with too few positions.
    """
    hf_config = AutoConfig.from_pretrained(config.model, trust_remote_code=False)
    if hf_config.model_type not in MODEL_TYPES:
        raise Refusal(
            f"{config.model} is of the type {hf_config.model_type}, which was never compared with"
            f" plain passes: {', '.join(MODEL_TYPES)} were; docs/change-it.md says how to try it"
        )
    extend_context(hf_config, config)
    hf_config.attention_dropout = 0.0  # log-probs are no random numbers
    length = config.max_prompt_length + config.max_response_length
    window = getattr(hf_config, "sliding_window", None) or length
    most = min(hf_config.max_position_embeddings, window)
    if length > most:
        raise Refusal(
            f"max_prompt_length + max_response_length = {length} tokens, but {config.model} sees"
            f" {most}: shorten them, or set max_position_embeddings and rope_theta"
        )
    rope_type = hf_config.rope_parameters.get("rope_type")
    if rope_type in ("dynamic", "longrope"):
        raise Refusal(f"{config.model}: rope of type {rope_type} depends on a batch's length")
    return hf_config


def load_model(config: Config, dtype: torch.dtype | str, **options) -> nn.Module:
    """The model in `dtype`; Refusal names weights that its files lack or have to spare."""
    lm, found = AutoModelForCausalLM.from_pretrained(
        config.model,
        config=model_config(config),
        dtype=dtype,
        output_loading_info=True,
        trust_remote_code=False,
        **options,
    )
    wrong = sorted(found["missing_keys"]) + sorted(found["unexpected_keys"])
    if wrong:
        raise Refusal(
            f"{config.model} lacks weights, or has others to spare: {wrong[:3]}; is it whole, does"
            " its config.json belong to it?"
        )
    return lm


def prompt_units(sequences: list[tuple], limit: int) -> list[tuple[list[int], int]]:
    """Neighbours with one prompt, as (their indices, the tokens of the row that they share).

    sequences: pairs of (prompt ids, response ids). No unit but a single sequence has more than
    `limit` tokens.
    """
    units = []
    previous = np.zeros(0)
    for i, (prompt, response) in enumerate(sequences):
        if np.array_equal(prompt, previous):
            indices, size = units[-1]
            if size + len(response) <= limit:
                units[-1] = [*indices, i], size + len(response)
                continue
        units.append(([i], len(prompt) + len(response)))
        previous = prompt
    return units


@dataclass
class Packed:
    """N sequences (prompt + response) in a row of U tokens, R of them response tokens.

    The same tokens are laid out in three ways: in the *row* neighbours with one prompt share it;
    *repeated*, every response has its prompt before it, M ≥ U tokens; *padded*, every sequence
    has L tokens, as the longest has. Attention sees one of the last two, all else the row.
    The four maps between them are indices into what they are taken from.
    """

    input_ids: torch.Tensor  # (1, U)
    position_ids: torch.Tensor  # (1, U), of the token in its own sequence
    to_repeated: torch.Tensor  # (M,) of each repeated token the place in the row
    from_repeated: torch.Tensor  # (U,) the way back: the first of a prompt's copies
    bounds: torch.Tensor  # (N + 1,) int32, where each sequence starts in the repeated layout
    to_padded: torch.Tensor  # (N, L) of each cell the place in the row; padding points at 0
    from_padded: torch.Tensor  # (U,) the way back: the cell, counted row by row
    predictors: torch.Tensor  # (R,) places in the row that predict a response token
    targets: torch.Tensor  # (R,) those response tokens


def pack(sequences: list[tuple], device="cpu") -> Packed:
    """(prompt ids, response ids) pairs as one row; neighbours with equal prompts share one.

    Neither prompt nor response may be empty.

    Eight tokens: responses `1` and `2 3 4` to the prompt `5`, response `8` to the prompt `7`.

        the row    5 1 2 3 4 7 8        repeated   5 1 | 5 2 3 4 | 7 8        padded   5 1 . .
        place      0 1 2 3 4 5 6        number     0 1   2 3 4 5   6 7                 5 2 3 4
                                                                                       7 8 . .

    The `7` is at place 5 of the row, is number 6 of the repeated tokens and stands in cell 8.

    >>> a, b = np.array([5]), np.array([7])
    >>> packed = pack([(a, np.array([1])), (a, np.array([2, 3, 4])), (b, np.array([8]))])
    >>> for name, tensor in vars(packed).items():
    ...     print(name, tensor.tolist())
    input_ids [[5, 1, 2, 3, 4, 7, 8]]
    position_ids [[0, 1, 1, 2, 3, 0, 1]]
    to_repeated [0, 1, 0, 2, 3, 4, 5, 6]
    from_repeated [0, 1, 3, 4, 5, 6, 7]
    bounds [0, 2, 6, 8]
    to_padded [[0, 1, 0, 0], [0, 2, 3, 4], [5, 6, 0, 0]]
    from_padded [0, 1, 5, 6, 7, 8, 9]
    predictors [0, 0, 2, 3, 5]
    targets [1, 2, 3, 4, 8]
    """
    row = []  # ids, piece by piece
    end = 0  # its length so far
    places = []  # of each sequence: where in the row its tokens stand
    predictors = []
    previous = np.zeros(0)
    for prompt, response in sequences:
        if not np.array_equal(prompt, previous):
            row.append(prompt)
            of_prompt = np.arange(end, end + len(prompt))
            end += len(prompt)
            previous = prompt
        row.append(response)
        of_response = np.arange(end, end + len(response))
        end += len(response)
        of_sequence = np.concatenate([of_prompt, of_response])
        places.append(of_sequence)
        predictors.append(of_sequence[len(prompt) - 1 : -1])  # each token's predecessor
    lengths = np.array([len(of_sequence) for of_sequence in places])  # (N,)
    is_token = np.arange(lengths.max()) < lengths[:, None]  # (N, L)
    to_repeated = np.concatenate(places)  # (M,)
    _, from_repeated = np.unique(to_repeated, return_index=True)  # (U,), the first copies
    to_padded = np.zeros(is_token.shape, dtype=int)
    to_padded[is_token] = to_repeated
    from_padded = np.flatnonzero(is_token)[from_repeated]  # (U,)

    def long(array):
        return torch.as_tensor(array, dtype=torch.long, device=device)

    return Packed(
        input_ids=long(np.concatenate(row))[None],
        position_ids=long(from_padded % lengths.max())[None],
        to_repeated=long(to_repeated),
        from_repeated=long(from_repeated),
        bounds=long(np.append(0, np.cumsum(lengths))).int(),
        to_padded=long(to_padded),
        from_padded=long(from_padded),
        predictors=long(np.concatenate(predictors)),
        targets=long(np.concatenate([response for _, response in sequences])),
    )


def packed_attention(module, query, key, value, attention_mask, scaling=None, packing=None, **_):
    """Causal attention inside each packed sequence, and no weights.

    In the example of `pack` the `4` sees 2 to 5 of the repeated tokens, cells 4 to 7 of the padded
    ones: `5 2 3 4`, not the `1` that stands between them in the row. What it gets goes to place 4.
    query: (1, H, U, D), key and value: (1, H_kv, U, D), in the row; so is what comes out.
    """
    # The kernel takes 16-bit types only.
    by_kernel = query.is_cuda and query.dtype != torch.float32
    attend = attend_in_a_row if by_kernel else attend_padded
    return attend(query, key, value, scaling, packing), None


def attend_in_a_row(query, key, value, scale, packing: Packed):
    """The same by torch's variable-length kernel over a row in which every prompt is repeated."""
    from torch.nn.attention.varlen import varlen_attn

    def repeated(x):  # (1, h, U, D) -> (M, h, D); the backward of x[index] would sort the index
        return rearrange(x, "1 h u d -> u h d").index_select(0, packing.to_repeated)

    longest = packing.to_padded.shape[1]
    # (M, H, D)
    out = varlen_attn(
        repeated(query),
        repeated(key),
        repeated(value),
        cu_seq_q=packing.bounds,
        cu_seq_k=packing.bounds,
        max_q=longest,
        max_k=longest,
        scale=scale,
        window_size=(-1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return rearrange(out.index_select(0, packing.from_repeated), "u h d -> 1 u h d")


def attend_padded(query, key, value, scale, packing: Packed):
    """The same by plain attention over padded copies."""

    def padded(x):  # (1, h, U, D) -> (N, h, L, D)
        if x.dtype == torch.bfloat16 and not x.is_cuda:
            x = x.float()  # the CPU kernel's backward takes two to six times as long in bfloat16
        cells = F.embedding(packing.to_padded, rearrange(x, "1 h u d -> u (h d)"))
        return rearrange(cells, "n l (h d) -> n h l d", d=x.shape[-1])

    q = padded(query)
    k = padded(key)
    v = padded(value)
    out = F.scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=scale, enable_gqa=k.shape != q.shape
    )
    cells = rearrange(out, "n h l d -> (n l) (h d)").to(query.dtype)
    row = F.embedding(packing.from_padded, cells)
    return rearrange(row, "u (h d) -> 1 u h d", d=query.shape[-1])


AttentionInterface.register("packed", packed_attention)
AttentionMaskInterface.register("packed", lambda *args, **kwargs: None)


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b; on a GPU 16-bit factors give a float32 product."""
    if a.is_cuda and a.itemsize == 2:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a @ b


class TokenScores(torch.autograd.Function):
    """Log-probs and entropies (R,) of softmax(hidden Wᵀ / temperature).

    hidden: (R, width), weight: (V, width), targets y: (R,).
    With p the softmax and 𝓗 its entropy, ∂ log p_y / ∂logits = 1_y - p and ∂𝓗 / ∂logits =
    -p (log p + 𝓗). So, d_logprob and d_entropy being the gradients that come in,

        d_logits = d_logprob · (1_y - p) - d_entropy · p · (log p + 𝓗)

    >>> z = torch.tensor([[1.0, 3.0]]).log().requires_grad_()  # p = 1/4, 3/4; the 2nd was said
    >>> scores = TokenScores.apply(z, torch.eye(2), torch.tensor([1]), 1.0)
    >>> [torch.autograd.grad(score, z, retain_graph=True)[0] for score in scores]
    [tensor([[-0.2500,  0.2500]]), tensor([[ 0.2060, -0.2060]])]
    """

    @staticmethod
    def forward(ctx, hidden, weight, targets, temperature):
        """The scores, chunk by chunk; keeps hidden states and entropies, no logits."""
        logprobs = []
        entropies = []
        for _, y, log_p in TokenScores.chunks(hidden, weight, targets, temperature):
            logprobs.append(log_p.gather(1, y[:, None])[:, 0])
            p = log_p.exp()
            entropies.append(-p.mul_(log_p).sum(-1))
            del log_p, p  # or they would stand beside the next chunk
        entropies = torch.cat(entropies)
        ctx.temperature = temperature
        ctx.save_for_backward(hidden, weight, targets, entropies)
        return torch.cat(logprobs), entropies

    @staticmethod
    def backward(ctx, grad_logprobs, grad_entropies):
        """Gradients of hidden and, unless it is frozen, weight; logits are computed once more."""
        hidden, weight, targets, entropies = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grad_weight = None
        if ctx.needs_input_grad[1]:  # not with LoRA
            grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        end = 0
        for h, y, log_p in TokenScores.chunks(hidden, weight, targets, ctx.temperature):
            start = end
            end += len(h)
            d_logprob = grad_logprobs[start:end, None]  # (c, 1)
            d_entropy = grad_entropies[start:end, None]  # (c, 1)
            p = log_p.exp()  # (c, V)
            # The formula above, in place: there is room for two chunks.
            slope = log_p.add_(entropies[start:end, None]).mul_(p)  # p (log p + 𝓗)
            d_logits = p.mul_(-d_logprob).scatter_add_(1, y[:, None], d_logprob)
            d_logits.addcmul_(slope, d_entropy, value=-1)
            d_product = d_logits.div_(ctx.temperature).to(weight.dtype)  # of hidden Wᵀ
            del log_p, p, slope, d_logits
            grad_hidden[start:end] = product(d_product, weight)
            if grad_weight is not None:
                grad_weight += product(d_product.T, h)
            del d_product  # nothing of a chunk is left beside the next
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight.dtype)
        return grad_hidden, grad_weight, None, None

    @staticmethod
    def chunks(hidden, weight, targets, temperature):
        """c tokens after another: hidden (c, width), targets (c,), log-probs (c, V).

        The R = 5 response tokens of `pack`'s example are rows 0 to 1, 2 to 3 and 4 where c is 2.
        """
        size = max(1, LOGITS_CHUNK[hidden.device.type] // len(weight))
        for h, y in zip(hidden.split(size), targets.split(size)):
            # Logits with a name would live on here while the caller works.
            yield h, y, product(h, weight.T).float().div_(temperature).log_softmax(-1)


class PackedLM(nn.Module):
    """A Hugging Face causal language model that scores packed responses in one forward."""

    def __init__(self, lm: nn.Module, temperature: float = 1.0):
        super().__init__()
        self.lm = lm
        self.temperature = temperature

    def forward(self, packed: Packed) -> tuple[torch.Tensor, torch.Tensor]:
        """Float32 log-probs (R,) of the response tokens, entropies (R,) of what they came from."""
        decoder = self.lm.get_decoder()
        weight = self.lm.get_output_embeddings().weight  # (V, width)
        # (1, U, width)
        hidden = decoder(
            input_ids=packed.input_ids,
            position_ids=packed.position_ids,
            attention_mask=None,
            use_cache=False,
            packing=packed,
        ).last_hidden_state
        hidden = hidden[0].index_select(0, packed.predictors)  # (R, width)
        if hidden.dtype == torch.bfloat16 and not hidden.is_cuda:
            # Only a GPU gives a float32 product of 16-bit factors, see `product`.
            hidden = hidden.float()
            weight = weight.float()
        return TokenScores.apply(hidden, weight, packed.targets, self.temperature)

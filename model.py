"""Log-probs and entropies of response tokens: packed without padding, without full-size logits.

Sequences are laid end to end in one row, neighbours with the same prompt behind one copy of it. All
layers work on this row but attention, which has to keep the sequences apart. The attention function
that is registered here does so in one of two ways. On GPUs in 16 bits it repeats the prompts and
uses torch's variable-length kernel. Elsewhere it pads the sequences on the right, where causal
attention needs no mask. The head is applied in float32, to chunks of response positions, and
recomputed in the backward pass.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM

from config import Config
from runtime.ranks import Refusal

# How many float32 logits a chunk has. Every chunk adds to the gradient of the whole head, so that
# small chunks cost memory traffic. On a GPU 2**28, which is 1 GiB, should keep it below a fifth of
# the compute time; that is reckoned for 152,064 words on an H100, not measured.
LOGITS_CHUNK = {"cpu": 2**24, "cuda": 2**28}

# A test has compared these with plain passes: packed scores and gradient, LoRA, and weight sync to
# Hugging Face. docs/change-it.md says how to try another.
MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")


def extend_context(hf_config, config: Config):
    """Put our `rope_theta` and positions, if any, into the Hugging Face configuration passed in."""
    if config.rope_theta:
        # vLLM first tries an empty configuration, which has no rope_parameters.
        rope = getattr(hf_config, "rope_parameters", None) or {}
        hf_config.rope_parameters = {**rope, "rope_theta": config.rope_theta}
    if config.max_position_embeddings:
        hf_config.max_position_embeddings = config.max_position_embeddings


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
    """The model in `dtype`; Refusal names weights that its files lack, or have in excess."""
    lm, found = AutoModelForCausalLM.from_pretrained(
        config.model, config=model_config(config), dtype=dtype, output_loading_info=True, **options
    )
    wrong = found["missing_keys"] | found["unexpected_keys"]
    if wrong:
        raise Refusal(
            f"{config.model} lacks weights, or has others to spare: {sorted(wrong)[:3]}; is it"
            " whole, does its config.json belong to it?"
        )
    return lm


def prompt_units(sequences: list[tuple], limit: int) -> list[tuple]:
    """Units of neighbours with one prompt: (their indices, how many tokens they take in the row).

    sequences: pairs of (prompt ids, response ids). A unit has at most `limit` tokens, unless it is
    one sequence that is longer by itself.
    """
    units = []
    previous = np.zeros(0)
    for i, (prompt, response) in enumerate(sequences):
        indices = []
        size = len(prompt)  # a unit has its prompt once
        if np.array_equal(prompt, previous) and units[-1][1] + len(response) <= limit:
            indices, size = units.pop()  # the unit before goes on
        units.append(([*indices, i], size + len(response)))
        previous = prompt
    return units


@dataclass
class Packed:
    """N sequences (prompt + response) in a row of U tokens, R of them response tokens.

    The same tokens are laid out in three ways: in the *row* neighbours with one prompt share it;
    *repeated*, every response has its prompt before it, M ≥ U tokens; *padded*, every sequence
    has L tokens, as the longest has. Attention sees one of the last two, all else the row.
    The maps copy tokens from one layout to another: repeated = row[to_repeated], padded =
    row[to_padded], and back, row = repeated[from_repeated], row = padded.flatten()[from_padded].
    """

    input_ids: Tensor  # (1, U)
    position_ids: Tensor  # (1, U), of the token in its own sequence
    to_repeated: Tensor  # (M,) of each repeated token the place in the row
    from_repeated: Tensor  # (U,) the way back, for a prompt from the first of its copies
    bounds: Tensor  # (N + 1,) int32, where each sequence starts in the repeated layout
    to_padded: Tensor  # (N, L) of each cell the place in the row; padding points at 0
    from_padded: Tensor  # (U,) the way back: of each token its cell in the flattened (N, L)
    predictors: Tensor  # (R,) places in the row that predict a response token
    targets: Tensor  # (R,) those response tokens


def pack(sequences: list[tuple], device="cpu") -> Packed:
    """(prompt ids, response ids) pairs as one row; neighbours with equal prompts share one.

    Neither prompt nor response may be empty.

    Three sequences: responses `1` and `2 3 4` to the prompt `5`, response `8` to the prompt `7`.

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
    longest = lengths.max()  # L
    is_token = np.arange(longest) < lengths[:, None]  # (N, L)
    to_repeated = np.concatenate(places)  # (M,)
    _, from_repeated = np.unique(to_repeated, return_index=True)  # (U,), the first copies
    to_padded = np.zeros(is_token.shape, dtype=int)
    to_padded[is_token] = to_repeated
    from_padded = np.flatnonzero(is_token)[from_repeated]  # (U,)

    def long(array):
        return torch.as_tensor(array, dtype=torch.long, device=device)

    return Packed(
        input_ids=long(np.concatenate(row))[None],
        position_ids=long(from_padded % longest)[None],
        to_repeated=long(to_repeated),
        from_repeated=long(from_repeated),
        bounds=long(np.append(0, np.cumsum(lengths))).int(),
        to_padded=long(to_padded),
        from_padded=long(from_padded),
        predictors=long(np.concatenate(predictors)),
        targets=long(np.concatenate([response for _, response in sequences])),
    )


def packed_attention(module, query, key, value, attention_mask, scaling, packing, **_):
    """Causal attention inside each packed sequence; the weights, a second result, are None.

    In the example of `pack` the token `4` sees `5 2 3 4`, which are numbers 2 to 5 of the repeated
    tokens and cells 4 to 7 of the padded ones. It does not see the `1` that stands between them in
    the row. What it gets goes to place 4 of the row.
    query: (1, H, U, D), key and value: (1, H_kv, U, D), in the row; (1, U, H, D) comes out.
    """
    # The kernel takes 16-bit types only.
    if query.is_cuda and query.dtype != torch.float32:
        attend = attend_in_a_row
        places = packing.to_repeated
        way_back = packing.from_repeated
    else:
        attend = attend_padded
        places = packing.to_padded
        way_back = packing.from_padded
    copies = []  # (M, h, D) or (N, L, h, D) each
    for x in (query, key, value):
        copy = F.embedding(places, rearrange(x, "1 h u d -> u (h d)"))
        copies.append(rearrange(copy, "... (h d) -> ... h d", d=x.shape[-1]))
    out = attend(*copies, scaling, packing)
    out = rearrange(out, "... h d -> (...) (h d)").to(query.dtype)
    row = F.embedding(way_back, out)  # (U, H D)
    return rearrange(row, "u (h d) -> 1 u h d", d=query.shape[-1]), None


def attend_in_a_row(query, key, value, scale, packing: Packed):
    """Attention over repeated tokens, (M, h, D) each, by torch's variable-length kernel."""
    from torch.nn.attention.varlen import varlen_attn

    longest = packing.to_padded.shape[1]
    return varlen_attn(
        query,
        key,
        value,
        cu_seq_q=packing.bounds,
        cu_seq_k=packing.bounds,
        max_q=longest,
        max_k=longest,
        scale=scale,
        window_size=(-1, 0),  # causal
        enable_gqa=True,
    )


def attend_padded(query, key, value, scale, packing: Packed):
    """Attention over padded sequences, (N, L, h, D) each, in float32.

    In bfloat16 the backward pass would take CPUs two to six times as long.
    """
    q, k, v = [rearrange(x.float(), "n l h d -> n h l d") for x in (query, key, value)]
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
    return rearrange(out, "n h l d -> n l h d")


# Masks have a registry of their own. This name is not in it, so transformers makes none.
AttentionInterface.register("packed", packed_attention)


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in float32. Only a GPU has such a product of 16-bit factors."""
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


def chunks(hidden, weight, temperature):
    """Yields (which of the R response tokens, as a slice; their log-probs (c, V)), c at a time.

    With c = 2 the five response tokens of `pack`'s example come in chunks of 2, 2 and 1.
    """
    size = LOGITS_CHUNK[hidden.device.type] // len(weight)
    for start in range(0, len(hidden), size):
        part = slice(start, start + size)
        # The logits have no name here, so they are freed before the caller uses the log-probs.
        yield part, product(hidden[part], weight.T).div_(temperature).log_softmax(-1)


class TokenScores(torch.autograd.Function):
    """Log-probs and entropies (R,) of softmax(hidden Wᵀ / temperature).

    hidden: (R, width), weight: (V, width), targets y: (R,).
    With p the softmax and 𝓗 its entropy, ∂ log p_y / ∂logits = 1_y - p and ∂𝓗 / ∂logits =
    -p (log p + 𝓗). So, d_logprob and d_entropy being the gradients that come in,

        d_logits = d_logprob · (1_y - p) - d_entropy · p · (log p + 𝓗)

    With two words and the second as the target:

    >>> z = torch.tensor([[1.0, 3.0]]).log().requires_grad_()  # p = 1/4, 3/4
    >>> scores = TokenScores.apply(z, torch.eye(2), torch.tensor([1]), 1.0)
    >>> [torch.autograd.grad(score, z, retain_graph=True)[0] for score in scores]
    [tensor([[-0.2500,  0.2500]]), tensor([[ 0.2060, -0.2060]])]
    """

    @staticmethod
    def forward(ctx, hidden, weight, targets, temperature):
        """The scores, chunk by chunk; keeps hidden states and entropies, no logits."""
        logprobs = []
        entropies = []
        for part, log_p in chunks(hidden, weight, temperature):
            logprobs.append(log_p.gather(1, targets[part, None])[:, 0])
            entropies.append(-log_p.exp().mul_(log_p).sum(-1))
            del log_p  # or it would stand beside the next chunk
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
        for part, log_p in chunks(hidden, weight, ctx.temperature):
            d_logprob = grad_logprobs[part, None]  # (c, 1)
            d_entropy = grad_entropies[part, None]  # (c, 1)
            p = log_p.exp()  # (c, V)
            # The formula above, in place: only two float32 arrays (c, V) exist at a time.
            slope = log_p.add_(entropies[part, None]).mul_(p)  # p (log p + 𝓗)
            d_logits = p.mul_(-d_logprob).scatter_add_(1, targets[part, None], d_logprob)
            d_logits.addcmul_(slope, d_entropy, value=-1)
            d_product = d_logits.div_(ctx.temperature).to(weight.dtype)  # of hidden Wᵀ
            del log_p, p, slope, d_logits
            grad_hidden[part] = product(d_product, weight)
            if grad_weight is not None:
                grad_weight += product(d_product.T, hidden[part])
            del d_product  # nothing of a chunk is left beside the next
        return grad_hidden, grad_weight, None, None


class PackedLM(nn.Module):
    """A Hugging Face causal language model that scores packed responses in one forward."""

    def __init__(self, lm: nn.Module, temperature: float):
        super().__init__()
        self.lm = lm
        self.temperature = temperature

    def forward(self, packed: Packed) -> tuple[Tensor, Tensor]:
        """Float32 log-probs (R,) of the response tokens, entropies (R,) of their distributions."""
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
        return TokenScores.apply(hidden, weight, packed.targets, self.temperature)

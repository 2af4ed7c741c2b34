"""LoRA: gradients by the chain rule, only adapters move, and an ordinary merged model leaves."""

import json

import numpy as np
import pytest
import torch
from conftest import on_ranks, plain_scores
from safetensors import safe_open
from test_policy import (
    KNOBS,
    assert_same_gradients,
    full_weights,
    gradients,
    make_groups,
    make_policy,
    pairs_of,
)
from transformers import AutoModelForCausalLM

pytest.importorskip("peft")

# α / r is 2, and a large ε makes the steps smooth.
LORA = dict(lora_rank=16, lr=1e-2, adam_eps=1e-3)


def adapters(policy):
    """{name: whole tensor} of what is trained."""
    parameters = policy.module.lm.named_parameters()
    return {
        name: p.full_tensor().detach().numpy().copy() for name, p in parameters if p.requires_grad
    }


def report(directory, groups, save_to):
    """What one rank sees of a policy after two mini-batches, and the next one's gradients."""
    seen = {"start": full_weights(make_policy(directory, **LORA))}
    policy = make_policy(directory, **LORA, gradient_checkpointing=True, tokens_per_micro_batch=60)
    policy.update([groups[:3], groups[3:]], 0.2)
    seen |= {
        "adapters": adapters(policy),
        "weights": full_weights(policy),
        "scores": policy.score(pairs_of(groups)),
    }
    seen["metrics"], seen["gradients"] = gradients(policy, groups)
    seen["with_moments"] = sum(bool(state) for state in policy.optimizer.state.values())
    policy.save_pretrained(save_to)
    return seen


@pytest.fixture(scope="module")
def groups(device, tiny_model):
    return make_groups(make_policy(tiny_model))


@pytest.fixture(scope="module")
def reports(tiny_model, groups, tmp_path_factory):
    """The reports of two ranks, and where they saved their model."""
    saved = tmp_path_factory.mktemp("saved")
    return on_ranks(2, report, tiny_model, groups, saved), saved


def test_gradients_are_those_of_the_merged_weight_by_the_chain_rule(reports, groups):
    """With G the gradient of the merged W, ∂A = α/r Bᵀ G and ∂B = α/r G Aᵀ.

    G is an ordinary policy's on the saved model, alone and in one piece; ∂A and ∂B are those of two
    ranks with checkpointing and several micro-batches.
    """
    (seen, _), saved = reports
    trained = seen["adapters"]
    metrics, of_weights = gradients(make_policy(saved), groups)
    expected = {}
    for name in (
        name.removesuffix(".lora_A.default.weight") for name in trained if ".lora_A." in name
    ):
        (a, b), g = (
            (trained[f"{name}.lora_{x}.default.weight"] for x in "AB"),
            of_weights[f"{name}.weight"],
        )
        expected |= {
            f"{name}.lora_A.default.weight": 2 * b.T @ g,
            f"{name}.lora_B.default.weight": 2 * g @ a.T,
        }
    assert len(expected) == 2 * 2 * 7  # A and B, two layers, seven matrices
    assert_same_gradients(seen["gradients"], expected, 1e-4)
    assert metrics["loss/policy"] == pytest.approx(seen["metrics"]["loss/policy"], rel=1e-4)


def test_only_adapters_are_trained(tiny_model, reports):
    """A fresh policy is the model bit for bit, and two steps move the decoder's matrices alone.

    Only adapters have moments.
    """
    reference = AutoModelForCausalLM.from_pretrained(tiny_model).state_dict()
    for seen in reports[0]:
        for name, weight in seen["start"].items():
            assert np.array_equal(weight, reference[name].numpy()), name
        after = seen["weights"]
        assert after.keys() == reference.keys()
        moved = {name for name in after if not np.array_equal(after[name], reference[name].numpy())}
        assert moved == {name for name in after if name.endswith("_proj.weight")}
        assert seen["with_moments"] == len(seen["adapters"])


def test_the_saved_model_is_an_ordinary_one(reports, groups):
    """The model loads without peft, is what the engine gets, and has the adapters' log-probs."""
    (seen, _), saved = reports
    files = {path.name for path in saved.iterdir()}
    assert files == {"config.json", "generation_config.json", "model.safetensors"}
    lm = AutoModelForCausalLM.from_pretrained(saved)
    for name, tensor in lm.state_dict().items():
        assert np.array_equal(tensor.numpy(), seen["weights"][name]), name
    for pair, (logprobs, _) in zip(pairs_of(groups), seen["scores"]):
        expected = plain_scores(lm, *pair, KNOBS["temperature"])[0].detach().numpy()
        np.testing.assert_allclose(logprobs, expected, atol=1e-4)


def saved_names(directory, place):
    """The names in a saved model's file, of adapters in bfloat16 and of one trained as a whole."""
    names = []
    for i, knobs in enumerate([LORA | {"dtype": "bfloat16"}, {}]):
        make_policy(directory, **knobs).save_pretrained(place / str(i))
        with safe_open(place / str(i) / "model.safetensors", "numpy") as file:
            names.append(sorted(file.keys()))
    return names


def test_a_tied_head_is_saved_once(tiny_models, tmp_path):
    """Two ranks save a head of its own but no tied one, and what loads is bit-equal."""
    for tied, directory in tiny_models.items():
        names, _ = on_ranks(2, saved_names, directory, tmp_path / str(tied))
        assert [("lm_head.weight" in n) for n in names] == [not tied] * 2
        for i, dtype in enumerate([torch.bfloat16, torch.float32]):
            old = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).state_dict()
            new = AutoModelForCausalLM.from_pretrained(tmp_path / str(tied) / str(i), dtype=dtype)
            assert all(torch.equal(tensor, old[name]) for name, tensor in new.state_dict().items())


def test_bfloat16_freezes_a_bfloat16_model(tiny_model, groups, tmp_path):
    """The model is held in bfloat16, adapters and moments in float32.

    Merging is done in float32, and so is saving, as the model came in float32.
    """
    policy = make_policy(tiny_model, dtype="bfloat16", **LORA)
    policy.update([groups], None)
    kinds = {(p.dtype, p.requires_grad) for p in policy.module.lm.parameters()}
    assert kinds == {(torch.bfloat16, False), (torch.float32, True)}
    assert {v.dtype for state in policy.optimizer.state.values() for v in state.values()} == {
        torch.float32
    }
    trained = adapters(policy)
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16).state_dict()
    name = "model.layers.1.mlp.down_proj"
    product = trained[f"{name}.lora_B.default.weight"] @ trained[f"{name}.lora_A.default.weight"]
    expected = base[f"{name}.weight"].float().numpy() + 2 * product
    np.testing.assert_allclose(full_weights(policy)[f"{name}.weight"], expected, atol=1e-7)
    policy.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "float32"
    saved = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto").state_dict()
    weight = torch.from_numpy(full_weights(policy)[f"{name}.weight"])
    assert torch.equal(saved[f"{name}.weight"], weight)

"""A policy's weights, adapters and AdamW state: on disk and back, on any number of ranks."""

import numpy as np
import pytest
import torch
from conftest import on_ranks
from safetensors import safe_open
from test_policy import make_groups, make_policy
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from runtime import shards
from runtime.shards import load_shards, save_shards

CASES = {  # name: (tied head, knobs)
    "all weights": (False, {}),
    "tied head": (True, {}),
    "adapters": (False, dict(lora_rank=1)),  # one rank of two is without a row of A
}


def policy_of(models, case, **more):
    tied, knobs = CASES[case]
    return make_policy(models[tied], **dict(lr=1e-2) | knobs | more)


def state(policy):
    """{name: whole tensor} of all that a checkpoint holds."""
    whole = {
        name: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        for name, tensor in policy.shards().items()
    }
    return {name: tensor.numpy().copy() for name, tensor in whole.items()}


def steps(models, groups, directory, save):
    """{case: (state when saved or loaded, state after one more step)}."""
    seen = {}
    for case in CASES:
        policy, place = policy_of(models, case), directory / case
        if save:
            place.mkdir(exist_ok=True)
            policy.update([groups], None)
            save_shards(policy.shards(), place)
        else:
            load_shards(place, policy.shards())
        before = state(policy)
        policy.update([groups], None)
        seen[case] = before, state(policy)
    return seen


@pytest.fixture(scope="module")
def groups(device, tiny_model):
    return make_groups(make_policy(tiny_model))


@pytest.fixture(scope="module")
def saved(tiny_models, groups, tmp_path_factory):
    """Where two ranks have saved, and what they saw."""
    directory = tmp_path_factory.mktemp("shards")
    return directory, on_ranks(2, steps, tiny_models, groups, directory, True)[0]


@pytest.mark.parametrize("ranks, tolerance", [(1, 1e-5), (2, 0.0)])
def test_weights_and_moments_go_on_exactly(tiny_models, groups, saved, ranks, tolerance):
    """What two ranks saved loads bit-equal on one and on two, and the next step is the same.

    On two ranks that step is the same to the bit, on one within 1e-5.
    """
    directory, reference = saved
    for seen in on_ranks(ranks, steps, tiny_models, groups, directory, False):
        for case, (restored, trained) in reference.items():
            assert seen[case][0].keys() == restored.keys(), case
            for name in restored:
                assert np.array_equal(seen[case][0][name], restored[name]), (case, name)
                np.testing.assert_allclose(
                    seen[case][1][name], trained[name], rtol=0, atol=tolerance, err_msg=name
                )


def test_another_model_is_refused(tiny_models, saved):
    """Weights of adapters of another rank, of none, or of an untied head fit no other model."""
    directory, _ = saved
    wider = policy_of(tiny_models, "adapters", lora_rank=2)
    plain, tied = (policy_of(tiny_models, case) for case in ("all weights", "tied head"))
    for case, other in (("adapters", wider), ("adapters", plain), ("all weights", tied)):
        with pytest.raises(ValueError, match="another model"):
            load_shards(directory / case, other.shards())


def replicate(directory):
    """(files written, is the same read back?) of two ranks that hold the same rows."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    tensors = {}
    for i in range(40):
        whole = torch.arange(12.0).reshape(4, 3) + i
        tensors[f"w{i}"] = distribute_tensor(whole, mesh, [Replicate(), Shard(0)])
    shards.FILE_BYTES = 400  # of one rank: several files each
    written = save_shards(tensors, directory)
    empty = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    load_shards(directory, empty)
    return written, all(
        torch.equal(empty[name].to_local(), tensors[name].to_local()) for name in tensors
    )


def test_replicas_are_written_once(tmp_path):
    """What two ranks hold alike is on disk once, in several files."""
    (first, first_equal), (second, second_equal) = on_ranks(2, replicate, tmp_path)
    assert first_equal and second_equal
    assert sorted(first + second) == sorted(path.name for path in tmp_path.iterdir())
    tensors = [name for path in tmp_path.iterdir() for name in safe_open(path, "pt").keys()]
    assert len(first) > 1 and len(tensors) == len(set(tensors)) == 40

"""A real policy's weights and AdamW state, adapters too: on disk and back, on any number of ranks."""

import numpy as np
import pytest
from conftest import on_ranks
from test_policy import make_groups, make_policy

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
    whole = {name: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
             for name, tensor in policy.tensors().items()}
    return {name: tensor.numpy().copy() for name, tensor in whole.items()}


def steps(models, groups, directory, save):
    """{case: (state when saved or loaded, state after one more step)}."""
    seen = {}
    for case in CASES:
        policy, place = policy_of(models, case), directory / case
        if save:
            place.mkdir(exist_ok=True)
            policy.update([groups], None)
            save_shards(policy.tensors(), place)
        else:
            load_shards(place, policy.tensors())
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
    """Saved by two ranks and loaded by one and by two: the same bits, then the same next step, to the bit
    on two."""
    directory, reference = saved
    for seen in on_ranks(ranks, steps, tiny_models, groups, directory, False):
        for case, (restored, trained) in reference.items():
            assert seen[case][0].keys() == restored.keys(), case
            for name in restored:
                assert np.array_equal(seen[case][0][name], restored[name]), (case, name)
                np.testing.assert_allclose(seen[case][1][name], trained[name], rtol=0, atol=tolerance,
                                           err_msg=name)


def test_a_policy_before_its_first_step_has_a_state(device, tiny_model, groups):
    """The moments that `tensors` makes are AdamW's own beginning: the first step is the same with them and
    without."""
    one, other = make_policy(tiny_model), make_policy(tiny_model)
    one.tensors()
    for policy in (one, other):
        policy.update([groups], None)
    for name, value in state(one).items():
        assert np.array_equal(value, state(other)[name]), name


def test_another_model_is_refused(tiny_models, saved):
    """Adapters of another rank, a model without them, and one with a tied head are told that it is another
    model's."""
    directory, _ = saved
    wider = policy_of(tiny_models, "adapters", lora_rank=2)
    plain, tied = (policy_of(tiny_models, case) for case in ("all weights", "tied head"))
    for case, other in (("adapters", wider), ("adapters", plain), ("all weights", tied)):
        with pytest.raises(ValueError, match="another model"):
            load_shards(directory / case, other.tensors())

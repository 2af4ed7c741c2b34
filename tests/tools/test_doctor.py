"""The doctor says in a sentence that a model cannot be had."""

import pytest

from tools import doctor


def test_a_model_that_is_not_there(tmp_path, monkeypatch):
    """A directory will do; the hub's refusal, or a missing network, is one sentence."""
    doctor.find_model(str(tmp_path))

    def gated(model):
        raise OSError("access is restricted")

    monkeypatch.setattr(doctor, "auth_check", gated)
    with pytest.raises(SystemExit, match="some/model is no directory, .*: access is restricted"):
        doctor.find_model("some/model")

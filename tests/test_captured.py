"""The captured tensors are what the real model gives."""

from __future__ import annotations

import numpy as np
import pytest

from mpcore.workloads.captured import CapturedError, capture, captured, captured_names


@pytest.mark.parametrize("name", captured_names())
def test_a_captured_tensor_is_taken_from_the_real_model(name):
    stored = captured(name).values
    assert stored.dtype == np.float32
    assert stored.size
    # BLAS sums in another order on another machine
    np.testing.assert_allclose(capture(name), stored, rtol=2e-4, atol=2e-4)


def test_a_captured_tensor_cannot_be_changed_by_accident():
    with pytest.raises(ValueError):
        captured("down_proj_11_input").values[0, 0] = 1


def test_an_unknown_tensor_is_refused_with_those_there_are():
    with pytest.raises(CapturedError, match="down_proj_11_input"):
        captured("nothing")

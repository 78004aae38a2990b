"""`import mpcore` is quick, and gives every public name lazily."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import mpcore as mp


def test_import_loads_nothing_else():
    code = "import sys; before = set(sys.modules); import mpcore; print(set(sys.modules) - before)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert "numpy" not in loaded and "mpcore.formats" not in loaded


@pytest.mark.parametrize("name", mp.__all__)
def test_every_public_name_is_there(name):
    assert callable(getattr(mp, name))
    assert name in dir(mp)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'matmull'"):
        mp.matmull  # noqa: B018


@pytest.mark.parametrize("first", ["import mpcore.matmul.options", "from mpcore import Tile", ""])
def test_matmul_can_be_called_whichever_way_its_room_was_imported(first):
    code = (
        f"{first}\nimport numpy as np, mpcore as mp\n"
        "print(mp.matmul(np.eye(2, dtype='f4'), np.eye(2, dtype='f4')).value.sum())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "2.0", done.stderr


def test_the_parts_work_together():
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    halved = mp.round_to(x, "fp8_e4m3")
    assert np.array_equal(mp.decode(mp.encode(x, "fp8_e4m3"), "fp8_e4m3"), halved)
    assert mp.quantize(x, "int8", granularity="per_token").dequantize().shape == x.shape

"""Mixed-precision matmul: formats, scaling, matmul, and the diagnosis of precision regressions.

The names below are the public surface. Each is imported when it is first used, so that
`import mpcore` costs next to nothing.
"""

from importlib import import_module

_HOME = {
    "list_formats": "formats",
    "get_format": "formats",
    "encode": "formats",
    "decode": "formats",
    "round_to": "formats",
    "explain": "formats",
    "custom_format": "formats",
    "list_block_formats": "formats",
    "split_blocks": "formats",
    "quantize": "scaling",
    "matmul": "matmul",
    "mma": "matmul",
    "error_bounds": "matmul",
    "Tile": "matmul",
    "Accumulator": "matmul",
    "load_case": "records",
    "run": "flow",
    "diagnose": "diagnosis",
    "gemm_time": "machines",
    "TimingContext": "machines",
}
"""Public name -> the room that it lives in."""

__all__ = list(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'mpcore' has no attribute {name!r}")
    room = import_module(f"mpcore.{_HOME[name]}")
    # The room `matmul` is itself callable: one name, whichever of the two was imported first.
    value = room if name == _HOME[name] else getattr(room, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])

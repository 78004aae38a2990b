"""Other people's packages for the same conversions and sums: which are there, and how to call them.

Run as a program it installs those of pyproject.toml's extra `bench` that are missing, under the
pins of requirements.txt; what cannot be installed is left out of the benchmarks with one line.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType

import numpy as np

from mpcore.threads import cores

ROOT = Path(__file__).resolve().parent.parent
PEERS = ("ml_dtypes", "torch", "gfloat", "pychop", "apytypes")
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"  # where pip's own index lacks the CPU build

# Our format -> the peers' names: dtype of ml_dtypes, of torch, gfloat's format, bits (e, m).
_NAMES = {
    "fp8_e4m3": ("float8_e4m3fn", "float8_e4m3fn", "format_info_ocp_e4m3", (4, 3)),
    "fp16": ("float16", "float16", "format_info_binary16", (5, 10)),
    "bf16": ("bfloat16", "bfloat16", "format_info_bfloat16", (8, 7)),
    "fp8_e5m2": ("float8_e5m2", "float8_e5m2", "format_info_ocp_e5m2", (5, 2)),
}


@cache
def load(name: str) -> ModuleType | None:
    """A peer's module, or None where it is not installed (or does not load)."""
    try:
        peer = import_module(name)
    except (ImportError, OSError):
        return None
    if name == "torch":
        peer.set_num_threads(cores())  # as many as round_to and matmul take
    return peer


def peers_line() -> str:
    """Versions of the peers, and which are missing."""
    found = [f"{name} {metadata.version(name)}" for name in PEERS if load(name)]
    missing = [name for name in PEERS if not load(name)]
    line = f"peers: {', '.join(found) or 'none'}"
    return line + (f"; not installed, left out: {', '.join(missing)}" if missing else "")


def dtype_of(f: str) -> np.dtype:
    """The NumPy dtype (ml_dtypes' where NumPy has none) of one of our formats."""
    name = _NAMES[f][0]
    return np.dtype(name if hasattr(np, name) else getattr(load("ml_dtypes"), name))


def rounders(f: str) -> Iterator[tuple[str, Callable[[np.ndarray], np.ndarray]]]:
    """(peer, function that rounds a float array to format f and gives floats) of each peer."""
    _, torch_name, gfloat_name, (exponent_bits, mantissa_bits) = _NAMES[f]
    dtype = dtype_of(f)
    yield (
        "numpy" if dtype == np.float16 else "ml_dtypes",
        lambda x: x.astype(dtype).astype(x.dtype),
    )
    if torch := load("torch"):
        kind = getattr(torch, torch_name)
        yield "torch", lambda x: torch.from_numpy(x).to(kind).to(torch.float32).numpy()
    if gfloat := load("gfloat"):
        info = getattr(import_module("gfloat.formats"), gfloat_name)
        yield "gfloat", lambda x: gfloat.round_ndarray(info, x, sat=True)
    if pychop := load("pychop"):
        pychop.backend("numpy")
        yield "pychop", pychop.Chop(exp_bits=exponent_bits, sig_bits=mantissa_bits, rmode=1)
    if apytypes := load("apytypes"):
        array = apytypes.APyFloatArray
        yield (
            "apytypes",
            lambda x: array.from_array(x, 8, 23).cast(exponent_bits, mantissa_bits).to_numpy(),
        )


def block_rounders(f: str) -> Iterator[tuple[str, Callable]]:
    """(peer, function that rounds to a block format) of each peer that has it."""
    name = {"mxfp8_e4m3": "mxfp8_e4m3", "mxfp4": "mxfp4_e2m1"}.get(f)
    if (pychop := load("pychop")) and name:
        pychop.backend("numpy")
        yield "pychop", lambda x: pychop.mx_quantize(x, name)


def encoders(f: str) -> Iterator[tuple[str, Callable, Callable]]:
    """(peer, values -> codes, codes -> values) of each peer."""
    dtype, gfloat_name = dtype_of(f), _NAMES[f][2]
    codes = np.dtype(f"u{dtype.itemsize}")
    yield (
        "numpy" if dtype == np.float16 else "ml_dtypes",
        lambda x: x.astype(dtype).view(codes),
        lambda c: c.view(dtype).astype(np.float32),
    )
    if gfloat := load("gfloat"):
        info = getattr(import_module("gfloat.formats"), gfloat_name)
        yield (
            "gfloat",
            lambda x: gfloat.encode_ndarray(info, gfloat.round_ndarray(info, x, sat=True)),
            lambda c: gfloat.decode_ndarray(info, c),
        )


def rank_1_sum(
    a: np.ndarray, b: np.ndarray, round_sum: Callable, round_product: Callable | None = None
) -> np.ndarray:
    """c <- round(c + a_k b_k), k ascending, in float64: a matmul from what only rounds."""
    c = np.zeros((len(a), b.shape[1]))
    a, b = a.astype(np.float64), b.astype(np.float64)
    for k in range(a.shape[1]):
        product = a[:, k : k + 1] * b[k]
        c = round_sum(c + (round_product(product) if round_product else product))
    return c


def torch_sum(a: np.ndarray, b: np.ndarray) -> Callable[[], np.ndarray]:
    """`rank_1_sum` in torch's own tensors; its way from float64 to fp16 rounds twice."""
    torch = load("torch")
    a64, b64 = (torch.from_numpy(x).double() for x in (a, b))

    def job() -> np.ndarray:
        c = torch.zeros((len(a), b.shape[1]), dtype=torch.float16)
        for k in range(a.shape[1]):
            c = torch.addr(c.double(), a64[:, k], b64[k]).half()
        return c.float().numpy()

    return job


def apytypes_matmul(a: np.ndarray, b: np.ndarray) -> Callable[[], np.ndarray] | None:
    """apytypes' own matmul in fp16: it rounds each product, and then each sum."""
    apytypes = load("apytypes")
    if apytypes is None:
        return None
    left, right = (apytypes.APyFloatArray.from_array(x, 5, 10) for x in (a, b))

    def job() -> np.ndarray:
        with apytypes.APyFloatAccumulatorContext(exp_bits=5, man_bits=10):
            return (left @ right).to_numpy()

    return job


def extra() -> dict[str, list[str]]:
    """Requirements of the extra `bench`, by peer."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, list[str]] = {}
    for requirement in project["optional-dependencies"]["bench"]:
        found.setdefault(requirement.partition("==")[0], []).append(requirement)
    return found


def install(run: Callable = subprocess.run) -> list[str]:
    """Install the extra, one peer at a time, under the pins of requirements.txt.

    Args:
        run: as `subprocess.run`.

    Returns:
        The peers that could not be had.
    """
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    pip += ["--retries", "1", "--constraint", str(ROOT / "requirements.txt")]
    failed = []
    for name, requirements in extra().items():
        ways = [[], ["--extra-index-url", TORCH_INDEX]] if name == "torch" else [[]]
        print(f"installing {name} to compare with", flush=True)
        if all(run([*pip, *way, *requirements], capture_output=True).returncode for way in ways):
            failed.append(name)
            print(f"{name} cannot be installed here: left out", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(1 if install() else 0)

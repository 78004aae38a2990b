"""One rule of the matrix units changed at a time: the vectors have to notice every change."""

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from test_units import PROBES, VERIFIED, mismatches, names, vectors

ROOM = Path(__file__).parents[1] / "mpcore" / "matmul"
FILES = ("exact", "units", "instructions", "mma")  # each imports only from those before it

# file, what it says, what it says instead
MUTANTS = [
    ("units", "ZERO_EXPONENT = -126", "ZERO_EXPONENT = -90"),
    ("units", "ZERO_EXPONENT = -126", "ZERO_EXPONENT = -1000"),
    ("units", "np.maximum(exponent, f.emin))", "exponent)"),
    ("units", "np.sign(significand) * (np.abs(significand) >> shift)", "significand >> shift"),
    ("units", "return significand >> shift", "return toward_zero(significand, shift)"),
    ("units", "emax = largest_exponent(numbers)", "emax = largest_exponent(numbers[1:])"),
    ("units", 'x.d_format, "nearest_even")', 'x.d_format, "toward_zero")'),
    ("units", 'f, "toward_zero")', 'f, "nearest_even")'),
    ("units", "np.abs(exact) < 2.0**128", "np.abs(exact) < 2.0**129"),
    ("units", "p.moved(scale[k // self.block].exponent)", "p"),
    ("units", "total * s.significand, s.exponent", "total, s.exponent"),
    ("units", "value = round_to(exact, f, rounding, \"infinity\")", "value = exact"),
    ("units", "zip(level[::2], level[1::2], strict=True)",
     "zip(level[: len(level) // 2], level[len(level) // 2 :], strict=True)"),
    ("units", "np.copysign(np.float32(0), result)", "np.float32(0)"),
    ("units", "np.abs(values) < f.smallest_normal, 0.0, values", "np.abs(values) < 0, 0.0, values"),
    ("units", "total.aligned(emax, 31, floored)", "total.aligned(emax, 31, toward_zero)"),
    ("units", "total.aligned(emax, 31, floored)", "total.aligned(emax, 30, floored)"),
    ("units", "c.aligned(emax, 24, floored)", "c.aligned(emax, 24, toward_zero)"),
    ("units", "emax = largest_exponent([total, c])", "emax = total.exponent"),
    ("units", "np.abs(p) >= 2.0**128", "np.abs(p) >= 2.0**140"),
    ("units", "(products[::2], products[1::2])", "(products[:8], products[8:])"),
    ("units", "aligned_sum(halves, emax, self.fraction, floored)",
     "aligned_sum(halves, emax, self.fraction, toward_zero)"),
    ("units", "c, farthest=25)", "c, farthest=24)"),
    ("units", "c, farthest=25)", "c, farthest=26)"),
    ("units", "min(unit.length, instruction_k)", "instruction_k"),
    ("units", "d, lost = np.where(special, plain, d)", "d, lost = np.where(special, d, d)"),
    ("exact", "exact = add_to_odd(a * b, c)", "exact = a * b + c"),
    ("exact", "np.where(factors_finite & ~np.isfinite(c), c, p + c)", "p + c"),
    ("instructions", "AlignedSum(4, 23)", "AlignedSum(4, 24)"),
    ("instructions", "AlignedSum(8, 24)),\n    (\"Ampere", "AlignedSum(4, 24)),\n    (\"Ampere"),
    ("instructions", "_FP16 + _BF16, AlignedSum(8, 24)", "_FP16 + _BF16, AlignedSum(16, 24)"),
    ("instructions", "_FP16 + _BF16, AlignedSum(8, 24)", "_FP16 + _BF16, AlignedSum(8, 25)"),
    ("instructions", "_TF32, AlignedSum(4, 24)", "_TF32, AlignedSum(8, 24)"),
    ("instructions", "AlignedSum(16, 13, \"e8m13\")", "AlignedSum(32, 13, \"e8m13\")"),
    ("instructions", "AlignedSum(32, 13, \"e8m13\")", "AlignedSum(32, 14, \"e8m13\")"),
    ("instructions", "AlignedSum(32, 13, \"e8m13\")", "AlignedSum(32, 13)"),
    ("instructions", "\"m64n8k16\", _FP16 + _BF16, AlignedSum(16, 25)",
     "\"m64n8k16\", _FP16 + _BF16, AlignedSum(16, 24)"),
    ("instructions", "_FP8, AlignedSum(32, 25)", "_FP8, AlignedSum(16, 25)"),
    ("instructions", "ScaledGroupSum(64, 16, 35)", "ScaledGroupSum(64, 16, 34)"),
    ("instructions", "ScaledGroupSum(64, 16, 35)", "ScaledGroupSum(64, 8, 35)"),
    ("instructions", "\"f16\", PairwiseSum(4, True)", "\"f16\", PairwiseSum(4)"),
    ("instructions", "\"bf16\", PairwiseSum(2)", "\"bf16\", PairwiseSum(1)"),
    ("instructions", "\"f16\", FlooredSum(8)", "\"f16\", FlooredSum(4)"),
    ("instructions", "\"xf32\", FlooredSum(4)", "\"xf32\", FlooredSum(8)"),
    ("instructions", "InterleavedSum(16)", "InterleavedSum(32)"),
    ("mma", "codes & np.uint32(0xFFFFE000)", "(codes + 0x1000) & np.uint32(0xFFFFE000)"),
    ("mma", "instruction.b, instruction.d, **scales", "instruction.b, instruction.c, **scales"),
    ("mma", "found[name] = np.abs(values)", "found[name] = values"),
    ("mma", "0x7FFFFFFF, \"fp16\": 0x7FFF", "0x7FC00000, \"fp16\": 0x7E00"),
    ("mma", "codes & 15, codes >> 4", "codes & 15, codes & 15"),
]  # fmt: skip


def mutated_mma(file, said, instead):
    """`mma` of a copy of the room in which one file says something else."""
    for name in FILES:
        source = (ROOM / f"{name}.py").read_text()
        if name == file:
            assert said in source, f"{file}.py no longer says: {said}"
            source = source.replace(said, instead)
        for other in FILES:
            imported = f"from mpcore.matmul.{other} import"
            source = source.replace(imported, f"from mutant_{other} import")
        module = sys.modules[f"mutant_{name}"] = ModuleType(f"mutant_{name}")
        exec(compile(source, f"mutant_{name}", "exec"), vars(module))
    return sys.modules["mutant_mma"].mma


@pytest.fixture(autouse=True)
def tidy():
    yield
    for name in FILES:
        sys.modules.pop(f"mutant_{name}", None)


def caught(mma):
    """Whether some instruction no longer gives what the reference model, or IEEE 754, gives."""
    if not all(passes(mma) for passes in PROBES):
        return True
    for name in VERIFIED:
        given = vectors(name)
        expected = given.pop("D")
        with np.errstate(all="ignore"):
            got = mma(**given, **names(name))
        if mismatches(got, expected, name):
            return True
    return False


def test_the_unchanged_room_is_not_caught():
    assert not caught(mutated_mma(None, "", ""))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m[0]}: {m[2][:50]}")
def test_every_changed_rule_is_caught(mutant):
    assert caught(mutated_mma(*mutant))

"""The matrix instructions of ten GPU architectures, as tables: names, formats, which arithmetic.

The arithmetic itself is in `units.py`. Source of every row: the public bit-accurate studies of GPU
matrix units (arXiv 2511.10909 and its reference model MMA-Sim; Fasi, Higham, Mikaitis and Pranesh
2021 for Volta, Turing and Ampere). "Bit-exact" means equal to that reference model: no row has been
compared with silicon.
"""

import re
from dataclasses import dataclass
from difflib import get_close_matches

from mpcore.formats.format import Format
from mpcore.formats.registry import get_format
from mpcore.matmul.options import MatmulError
from mpcore.matmul.units import (
    AlignedSum,
    FlooredSum,
    FusedMultiplyAdd,
    InterleavedSum,
    PairwiseSum,
    ScaledGroupSum,
)


@dataclass(frozen=True)
class Instruction:
    """One matrix instruction: D = A @ B + C, for k products of every element."""

    arch: str
    kind: str  # "mma", "wgmma", "tcgen05mma", "mma_block_scale", "tcgen05mma_block_scale", "mfma"
    qualifier: str  # as in PTX or in the CDNA instruction set; its m and n do not matter here
    k: int  # products of one element that one instruction adds
    a: Format
    b: Format
    c: Format
    d: Format
    unit: object  # the arithmetic: an object of `units.py`
    scale: Format | None = None  # format of the block scales
    block: int = 0  # products that share a scale

    def __str__(self):
        return f"{self.arch} {self.kind} {self.qualifier}"


ARCHITECTURES = (
    "Volta",
    "Turing",
    "Ampere",
    "Ada Lovelace",
    "Hopper",
    "Blackwell",
    "RTX Blackwell",
    "CDNA1",
    "CDNA2",
    "CDNA3",
)

# Formats as (d, a, b, c).
_FP64 = [("f64", "f64", "f64", "f64")]
_TF32 = [("f32", "tf32", "tf32", "f32")]
_BF16 = [("f32", "bf16", "bf16", "f32")]
_FP16 = [("f32", "f16", "f16", "f32"), ("f16", "f16", "f16", "f16")]
_FP16_VOLTA = [*_FP16, ("f32", "f16", "f16", "f16")]
_MIXED = [("f32", "f16", "bf16", "f32"), ("f32", "bf16", "f16", "f32")]
_FP8_PAIRS = [(a, b) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")]
_FP8 = [(d, a, b, d) for d in ("f32", "f16") for a, b in _FP8_PAIRS]

# architectures, kind, shapes, formats, arithmetic
_NVIDIA = [
    ("Volta", "mma", "m8n8k4", _FP16_VOLTA, AlignedSum(4, 23)),
    ("Turing", "mma", "m8n8k4", _FP16_VOLTA, AlignedSum(4, 24)),
    ("Turing", "mma", "m16n8k8", _FP16, AlignedSum(8, 24)),
    ("Ampere, Ada Lovelace", "mma", "m16n8k8 m16n8k16", _FP16 + _BF16, AlignedSum(8, 24)),
    ("Ampere, Ada Lovelace", "mma", "m16n8k4 m16n8k8", _TF32, AlignedSum(4, 24)),
    ("Ada Lovelace", "mma", "m16n8k16 m16n8k32", _FP8, AlignedSum(16, 13, "e8m13")),
    ("Hopper, Blackwell, RTX Blackwell", "mma", "m16n8k8", _FP16 + _BF16, AlignedSum(8, 25)),
    ("Hopper, Blackwell, RTX Blackwell", "mma", "m16n8k16", _FP16 + _BF16, AlignedSum(16, 25)),
    ("Hopper, Blackwell, RTX Blackwell", "mma", "m16n8k4", _TF32, AlignedSum(4, 25)),
    ("Hopper, Blackwell, RTX Blackwell", "mma", "m16n8k8", _TF32, AlignedSum(8, 25)),
    ("Hopper", "wgmma", "m64n8k16", _FP16 + _BF16, AlignedSum(16, 25)),
    ("Hopper", "wgmma", "m64n8k8", _TF32, AlignedSum(8, 25)),
    ("Hopper", "wgmma", "m64n8k32", _FP8, AlignedSum(32, 13, "e8m13")),
    ("Blackwell", "tcgen05mma", "m64n8k16", _FP16 + _BF16 + _MIXED, AlignedSum(16, 25)),
    ("Blackwell", "tcgen05mma", "m64n8k8", _TF32, AlignedSum(8, 25)),
    ("Blackwell", "tcgen05mma", "m64n8k32", _FP8, AlignedSum(32, 25)),
    ("RTX Blackwell", "mma", "m16n8k16", _FP8, AlignedSum(16, 25)),
    ("RTX Blackwell", "mma", "m16n8k32", _FP8, AlignedSum(32, 25)),
    ("Ampere, Ada Lovelace, Blackwell, RTX Blackwell", "mma", "m8n8k4", _FP64, FusedMultiplyAdd()),
    ("Hopper", "mma", "m8n8k4 m16n8k4 m16n8k8 m16n8k16", _FP64, FusedMultiplyAdd()),
]

# k, products that share a scale, operand formats, format of the scales, arithmetic
_BLOCK_SCALED = [
    (32, 32, _FP8_PAIRS, "ue8m0", AlignedSum(32, 25)),
    (64, 32, [("e2m1", "e2m1")], "ue8m0", ScaledGroupSum(64, 16, 35)),
    (64, 16, [("e2m1", "e2m1")], "ue8m0", ScaledGroupSum(64, 16, 35)),
    (64, 16, [("e2m1", "e2m1")], "ue4m3", ScaledGroupSum(64, 16, 35)),
]

# architecture, qualifiers (each of the shapes in place of {}), shapes, operands, arithmetic
_AMD = [
    ("CDNA1", "f32_{}f32", "16x16x4 16x16x1 4x4x1", "f32", FusedMultiplyAdd()),
    ("CDNA1", "f32_{}f16", "32x32x8 16x16x16 16x16x4 4x4x4", "f16", PairwiseSum(4)),
    ("CDNA1", "f32_{}bf16", "32x32x2 16x16x8 16x16x2 4x4x2", "bf16", PairwiseSum(2)),
    ("CDNA2", "f64_{}f64", "16x16x4 4x4x4", "f64", FusedMultiplyAdd()),
    ("CDNA2", "f32_{}f32", "16x16x4 16x16x1 4x4x1", "f32", FusedMultiplyAdd()),
    ("CDNA2", "f32_{}f16", "32x32x8 16x16x16 16x16x4 4x4x4", "f16", PairwiseSum(4, True)),
    ("CDNA2", "f32_{}bf16", "32x32x2 16x16x8 16x16x2 4x4x2", "bf16", PairwiseSum(2, True)),
    ("CDNA2", "f32_{}bf16_1k", "32x32x8 16x16x16 16x16x4 4x4x4", "bf16", PairwiseSum(4, True)),
    ("CDNA3", "f64_{}_f64", "16x16x4 4x4x4_4b", "f64", FusedMultiplyAdd()),
    ("CDNA3", "f32_{}_f32", "16x16x4 16x16x1_4b 4x4x1_16b", "f32", FusedMultiplyAdd()),
    ("CDNA3", "f32_{}_xf32", "16x16x8", "xf32", FlooredSum(4)),
    ("CDNA3", "f32_{}_f16", "32x32x8 16x16x16 16x16x4_4b 4x4x4_16b", "f16", FlooredSum(8)),
    ("CDNA3", "f32_{}_bf16", "32x32x8 16x16x16 16x16x4_4b 4x4x4_16b", "bf16", FlooredSum(8)),
]
_AMD_FP8 = {"fp8": "e4m3fnuz", "bf8": "e5m2fnuz"}


def _table():
    """Every instruction, from the rows above."""
    for architectures, kind, shapes, formats, unit in _NVIDIA:
        for arch in architectures.split(", "):
            for shape in shapes.split():
                for d, a, b, c in formats:
                    name = f"{shape}.{d}.{a}.{b}" + (f".{c}" if kind == "mma" else "")
                    yield _instruction(arch, kind, name, a, b, c, d, unit)
    for k, block, pairs, scale, unit in _BLOCK_SCALED:
        for a, b in pairs:
            types = f"k{k}.block{block}.f32.{a}.{b}"
            rtx, dc = f"m16n8{types}.f32.{scale}", f"m128n8{types}.{scale}"
            scales = {"scale": get_format(scale), "block": block}
            formats = a, b, "f32", "f32", unit
            yield _instruction("RTX Blackwell", "mma_block_scale", rtx, *formats, **scales)
            yield _instruction("Blackwell", "tcgen05mma_block_scale", dc, *formats, **scales)
    extra = "m16n8k64.block32.f32.e2m1.e2m1.f32.ue4m3"  # RTX Blackwell alone
    scales = {"scale": get_format("ue4m3"), "block": 32}
    formats = "e2m1", "e2m1", "f32", "f32", ScaledGroupSum(64, 16, 35)
    yield _instruction("RTX Blackwell", "mma_block_scale", extra, *formats, **scales)
    for arch, pattern, shapes, operand, unit in _AMD:
        d = pattern[:3]
        for shape in shapes.split():
            yield _instruction(arch, "mfma", pattern.format(shape), operand, operand, d, d, unit)
    for shape in ("16x16x32", "32x32x16"):
        for a, a_format in _AMD_FP8.items():
            for b, b_format in _AMD_FP8.items():
                name = f"f32_{shape}_{a}_{b}"
                formats = a_format, b_format, "f32", "f32"
                yield _instruction("CDNA3", "mfma", name, *formats, InterleavedSum(16))


def _instruction(arch, kind, qualifier, a, b, c, d, unit, **scales):
    k = int(re.search(r"(?:n\d+k|\d+x\d+x)(\d+)", qualifier)[1])
    a, b, c, d = map(get_format, (a, b, c, d))
    return Instruction(arch, kind, qualifier, k, a, b, c, d, unit, **scales)


def key_of(arch, kind, qualifier):
    """What an instruction is looked up by: case and spaces do not matter, nor do m and n."""
    words = (re.sub(r"[\s_-]", "", word).lower() for word in (arch, kind))
    return (*words, re.sub(r"^m\d+n\d+(?=k\d)", "", qualifier.strip().lower()))


TABLE = tuple(_table())  # Hopper's fp64 m8n8k4 and m16n8k4 are two rows and one key
INSTRUCTIONS = {key_of(i.arch, i.kind, i.qualifier): i for i in TABLE}


def get_instruction(arch, kind, qualifier):
    """The `Instruction` that three names stand for.

    Args:
        arch: one of `ARCHITECTURES`; case and spaces are free.
        kind: as in `Instruction.kind`.
        qualifier: "m64n8k32.f32.e4m3.e4m3"; any m and n.

    Raises:
        MatmulError: there is no such instruction; the line says which there are.
    """
    if not all(isinstance(name, str) for name in (arch, kind, qualifier)):
        raise MatmulError("arch, kind and qualifier of an instruction are strings")
    key = key_of(arch, kind, qualifier)
    if key in INSTRUCTIONS:
        return INSTRUCTIONS[key]
    there = {i.arch: None for k, i in INSTRUCTIONS.items()}
    if key[0] not in {k[0] for k in INSTRUCTIONS}:
        raise MatmulError(f'no architecture is called "{arch}"; valid are {", ".join(there)}')
    kinds = dict.fromkeys(i.kind for k, i in INSTRUCTIONS.items() if k[0] == key[0])
    if key[:2] not in {k[:2] for k in INSTRUCTIONS}:
        raise MatmulError(f'{arch} has no "{kind}" instructions; it has {", ".join(kinds)}')
    names = [i.qualifier for k, i in INSTRUCTIONS.items() if k[:2] == key[:2]]
    close = get_close_matches(qualifier, names, n=3, cutoff=0.0)
    raise MatmulError(
        f'{arch} {kind} has no "{qualifier}"; the nearest of its {len(names)} are '
        f"{', '.join(close)}"
    )

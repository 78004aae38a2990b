"""A kernel in PTX for one instruction of the table: load fragments, execute once, store D.

Every block of threads is one tile. The driver compiles the text, so nothing of CUDA's toolkit is
needed. Operand syntax, shapes and versions follow NVIDIA's PTX ISA (sections "mma",
"wgmma.mma_async" and "Matrix descriptor format").
"""

import re
from dataclasses import dataclass

from mpcore.matmul.silicon.layouts import (
    COLUMNS,
    CORE_BYTES,
    CORE_ROWS,
    LANES,
    mma_fragments,
    quad_pair_fragments,
    scale_fragments,
    wgmma_fragments,
)

ENTRY = "replay"
WGMMA_ROWS = 64

# Compute capability -> architecture of the table (NVIDIA, "CUDA GPUs").
CAPABILITIES = {
    (7, 0): "Volta",
    (7, 2): "Volta",
    (7, 5): "Turing",
    (8, 0): "Ampere",
    (8, 6): "Ampere",
    (8, 7): "Ampere",
    (8, 9): "Ada Lovelace",
    (9, 0): "Hopper",
    (10, 0): "Blackwell",
    (10, 3): "Blackwell",
    (12, 0): "RTX Blackwell",
    (12, 1): "RTX Blackwell",
}
# The first PTX version that knows a target, and the first with an instruction: older drivers can
# compile older versions alone.
TARGET_VERSIONS = {
    "sm_70": 6.0, "sm_72": 6.1, "sm_75": 6.3, "sm_80": 7.0, "sm_86": 7.1, "sm_87": 7.4,
    "sm_89": 7.8, "sm_90": 7.8, "sm_90a": 8.0, "sm_100": 8.6, "sm_103": 8.8, "sm_120": 8.7,
    "sm_120a": 8.7, "sm_121": 8.8, "sm_121a": 8.8,
}  # fmt: skip
_M8N8K4, _M16N8, _FP64, _FP8, _FP8_NARROW, _WGMMA = 6.4, 7.0, 7.8, 8.4, 8.7, 8.0

NOT_REPLAYED = {
    "mfma": "AMD's MFMA is not replayed",
    "tcgen05mma": "tcgen05 is not replayed yet",
    "tcgen05mma_block_scale": "tcgen05 is not replayed yet",
}
_NO_SUCH_PTX = "PTX has no such block of scales"
# k, block, scale -> kind of block-scaled mma, first PTX version
_SCALED = {
    (32, 32, "e8m0"): ("mxf8f6f4", 8.7),
    (64, 32, "e8m0"): ("mxf4", 8.7),
    (64, 16, "e8m0"): ("mxf4nvf4", 9.1),
    (64, 16, "fp8_e4m3"): ("mxf4nvf4", 8.7),
}


@dataclass(frozen=True, eq=False)
class Kernel:
    """How one instruction is executed: its PTX and where the operands lie."""

    instruction: object
    target: str  # "sm_90a"
    version: float  # of PTX
    text: str
    threads: int  # of a block; a block is a tile
    fragments: dict  # "A", "B", "C", "D", "SA", "SB" -> `Fragment`

    @property
    def shape(self):
        """Copies, rows and columns of a tile of D."""
        return self.fragments["D"].shape


def why_not(i):
    """Why an instruction is not replayed; None where it is."""
    if i.kind == "mma_block_scale" and (i.k, i.block, i.scale.name) not in _SCALED:
        return _NO_SUCH_PTX
    return NOT_REPLAYED.get(i.kind)


def kernel_of(i, capability):
    """The `Kernel` of an `Instruction` that `why_not` has nothing against.

    Args:
        capability: (major, minor), a key of CAPABILITIES.
    """
    specific = "a" if i.kind in ("wgmma", "mma_block_scale") else ""
    target = f"sm_{capability[0]}{capability[1]}{specific}"
    m = WGMMA_ROWS if i.kind == "wgmma" else int(re.match(r"m(\d+)", i.qualifier)[1])
    if i.kind == "wgmma":
        fragments, threads = wgmma_fragments(i, m), 4 * LANES
        body = _wgmma(i, fragments)
    else:
        is_quad_pair = m == 8 and i.a.name == "fp16"
        fragments = quad_pair_fragments(i) if is_quad_pair else mma_fragments(i, m)
        if i.scale is not None:
            fragments |= scale_fragments(i, m)
        threads, body = LANES, _mma(i, fragments)
    version = max(TARGET_VERSIONS[target], _version(i, m))
    text = _module(version, target, fragments, body)
    return Kernel(i, target, version, text, threads, fragments)


def _version(i, m):
    if i.kind == "wgmma":
        return _WGMMA
    if i.scale is not None:
        return _SCALED[i.k, i.block, i.scale.name][1]
    if i.a.bits == 8:
        return _FP8_NARROW if i.k == 16 or i.d.bits == 16 else _FP8
    if i.a.bits == 64 and m == 16:
        return _FP64
    return _M8N8K4 if m == 8 and i.a.bits == 16 else _M16N8


def _module(version, target, fragments, body):
    parameters = ",\n".join(f"    .param .u64 {name}_address" for name in fragments)
    registers = [
        f"    .reg .{_type(name, f)} {name}<{f.index.shape[1]}>;" for name, f in fragments.items()
    ]
    return "\n".join(
        [
            f".version {version}",
            f".target {target}",
            ".address_size 64",
            f".visible .entry {ENTRY}(",
            parameters + ")",
            "{",
            *registers,
            "    .reg .u32 thread, tile, place, shared;",
            "    .reg .u64 base, offset;",
            "    .reg .pred holds;",
            "    mov.u32 thread, %tid.x;",
            "    mov.u32 tile, %ctaid.x;",
            *body,
            "    ret;",
            "}",
            "",
        ]
    )


def _type(name, fragment):
    """PTX type of the registers: the bits of A and B, the value's type of C and D."""
    if fragment.bits == 64:
        return "f64"
    return "f32" if name in ("C", "D") and fragment.bits == 32 else "b32"


def _registers(name, fragment):
    return [f"{name}{word}" for word in range(fragment.index.shape[1])]


def _operand(name, fragment):
    return "{" + ", ".join(_registers(name, fragment)) + "}"


def _access(name, fragment, order, predicate=""):
    """Loads or stores of every word of this thread, in the array of an operand."""
    threads, words, _ = fragment.index.shape
    size = fragment.word_dtype.itemsize
    yield f"    ld.param.u64 base, [{name}_address];"
    yield "    cvta.to.global.u64 base, base;"
    yield f"    mad.lo.u32 place, tile, {threads}, thread;"
    yield f"    mul.wide.u32 offset, place, {words * size};"
    yield "    add.u64 base, base, offset;"
    for word, register in enumerate(_registers(name, fragment)):
        where = f"[base+{word * size}]"
        both = f"{register}, {where}" if order == "ld" else f"{where}, {register}"
        yield f"    {predicate}{order}.global.{_type(name, fragment)} {both};"


def _mma(i, fragments):
    shape, *types = [part for part in i.qualifier.split(".") if not part.startswith("block")]
    name = f"mma.sync.aligned.{shape}.row.col"
    if i.scale is not None:
        kind, _ = _SCALED[i.k, i.block, i.scale.name]
        name += f".kind::{kind}.block_scale.scale_vec::{i.k // i.block}X"
    operands = [_operand(operand, fragments[operand]) for operand in "DABC"]
    if i.scale is not None:  # byte 0 on, of the lanes from 0 on
        operands += ["SA0", "{0, 0}", "SB0", "{0, 0}"]
    for operand in fragments:
        if operand != "D":
            yield from _access(operand, fragments[operand], "ld")
    yield f"    {'.'.join([name, *types])} {', '.join(operands)};"
    yield from _access("D", fragments["D"], "st")


def descriptor(start):
    """The 64 bits by which `wgmma` finds a matrix in shared memory: K-major, no swizzling.

    Args:
        start: address in bytes, a multiple of 16.
    """
    beside = CORE_ROWS * CORE_BYTES  # the next core matrix along k
    below = 2 * beside  # the next 8 rows of A, or columns of B
    return (start & 0x3FFFF) >> 4 | beside >> 4 << 16 | below >> 4 << 32


def _wgmma(i, fragments):
    sizes = {name: fragments[name].index.shape[0] * CORE_BYTES for name in "AB"}
    yield f"    .shared .align 128 .b8 operands[{sum(sizes.values())}];"
    yield "    .reg .b64 a_descriptor, b_descriptor;"
    yield "    .reg .pred adds;"
    for name, start in (("A", 0), ("B", sizes["A"])):
        fragment = fragments[name]
        yield f"    setp.lt.u32 holds, thread, {fragment.index.shape[0]};"
        yield from _access(name, fragment, "ld", "@holds ")
        yield "    mov.u32 shared, operands;"
        yield f"    mad.lo.u32 shared, thread, {CORE_BYTES}, shared;"
        yield f"    @holds st.shared.v4.b32 [shared+{start}], {_operand(name, fragment)};"
        yield "    mov.u32 shared, operands;"
        yield f"    add.u32 shared, shared, {start};"
        register = f"{name.lower()}_descriptor"
        yield "    and.b32 shared, shared, 0x3FFFF;"
        yield "    shr.u32 shared, shared, 4;"
        yield f"    cvt.u64.u32 {register}, shared;"
        yield f"    or.b64 {register}, {register}, {descriptor(0):#x};"
    yield from _access("C", fragments["C"], "ld")
    for register in _registers("D", fragments["D"]):
        yield f"    mov.{_type('D', fragments['D'])} {register}, C{register[1:]};"
    yield "    fence.proxy.async.shared::cta;"
    yield "    bar.sync 0;"
    yield "    setp.eq.u32 adds, thread, thread;"
    yield "    wgmma.fence.sync.aligned;"
    transposed = ", 0, 0" if i.a.bits == 16 else ""  # only operands of 16 bits can be
    qualifier = re.sub(r"^m\d+n\d+", f"m{WGMMA_ROWS}n{COLUMNS}", i.qualifier)
    yield f"    wgmma.mma_async.sync.aligned.{qualifier} {_operand('D', fragments['D'])},"
    yield f"        a_descriptor, b_descriptor, adds, 1, 1{transposed};"
    yield "    wgmma.commit_group.sync.aligned;"
    yield "    wgmma.wait_group.sync.aligned 0;"
    yield from _access("D", fragments["D"], "st")

"""Vectors of halves (fp16), whose bits lie in arrays of int16; see `lanes.py`.

Their arithmetic rounds once only on a processor that has it (AVX512-FP16 of x86).
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mpcore.formats.lanes import INT32, address, f16, f16_pair, in_every_lane


def _loader(meaning, lanes):
    def operation(_, array, offset):
        def build(context, builder, signature, arguments):
            return builder.load(address(context, builder, signature, arguments, lanes), align=2)

        return lanes(array, types.int64), build

    operation.__doc__ = meaning
    return intrinsic(operation)


load_f16 = _loader("Sixteen halves of an int16 array that holds their bits", f16)
load_halves = _loader("32 halves of an int16 array that holds their bits", f16_pair)


def _spreader(meaning, lanes):
    def operation(_, array, offset):
        def build(context, builder, signature, arguments):
            data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            value = builder.load(builder.gep(data, [arguments[1]]))
            return in_every_lane(builder, lanes, builder.bitcast(value, ir.HalfType()))

        return lanes(array, types.int64), build

    operation.__doc__ = meaning
    return intrinsic(operation)


spread_half = _spreader("The half at an offset of an int16 array, in 32 lanes", f16_pair)


def _directed_fma(meaning, rounding):
    name = "llvm.x86.avx512fp16.vfmadd.ph.512"

    def operation(_, x, y, z):
        def build(context, builder, signature, arguments):
            function = ir.FunctionType(x.llvm, [x.llvm] * 3 + [INT32])
            fused = cgutils.get_or_insert_function(builder.module, function, name)
            return builder.call(fused, [*arguments, ir.Constant(INT32, rounding)])

        return x(x, y, z), build

    operation.__doc__ = meaning
    return intrinsic(operation)


fma_down = _directed_fma("x * y + z of 32 halves, rounded down; AVX512-FP16 only", 8 | 1)
fma_up = _directed_fma("x * y + z of 32 halves, rounded up; AVX512-FP16 only", 8 | 2)


@intrinsic
def reaching(_, x, y):
    """Where |x| >= y, of 32 halves, as the low bits of an int64."""

    def build(context, builder, signature, arguments):
        function = ir.FunctionType(x.llvm, [x.llvm])
        fabs = builder.module.declare_intrinsic(f"llvm.fabs.{x.llvm_name}", (), function)
        where = builder.fcmp_ordered(">=", builder.call(fabs, arguments[:1]), arguments[1])
        return builder.zext(builder.bitcast(where, ir.IntType(32)), ir.IntType(64))

    return types.int64(x, y), build


@intrinsic
def differing(_, x, y):
    """Where two vectors of 32 halves are not equal, as the low bits of an int64."""

    def build(context, builder, signature, arguments):
        word = builder.bitcast(builder.fcmp_unordered("!=", *arguments), ir.IntType(32))
        return builder.zext(word, ir.IntType(64))

    return types.int64(x, y), build

"""Vectors of sixteen numbers for compiled kernels: one operation on all of them at once.

Numba compiles loops and leaves it to LLVM to find the vectors in them; the kernels of a matmul are
beyond that. Here a vector is a value: `fma(spread(x), load(b, i), s)`. LLVM maps sixteen lanes to
whatever the processor has (one AVX-512 register, two of AVX2, four of NEON).

Every function works on all lanes. Arrays are C-contiguous and an offset counts elements from their
beginning; nothing is checked. Only kernels import this file.
"""

from llvmlite import ir
from numba import config, types
from numba.extending import intrinsic, models, register_model

if config.DISABLE_JIT:
    raise ImportError("Numba is switched off by NUMBA_DISABLE_JIT")

LANES = 16
INT32 = ir.IntType(32)


class Lanes(types.Type):
    """The Numba type of a vector: an element type and how many."""

    def __init__(self, name, element, count=LANES):
        super().__init__(name=f"{name}x{count}")
        self.llvm = ir.VectorType(element, count)
        self.llvm_name = f"v{count}{name}"  # in the names of LLVM's intrinsics

    @property
    def is_float(self):
        """Whether the elements are floats."""
        return not isinstance(self.llvm.element, ir.IntType)


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager, lanes):
        super().__init__(manager, lanes, lanes.llvm)


f32 = Lanes("f32", ir.FloatType())
f64 = Lanes("f64", ir.DoubleType())
i32 = Lanes("i32", INT32)
i64 = Lanes("i64", ir.IntType(64))
mask = Lanes("mask", ir.IntType(1))
f16 = Lanes("f16", ir.HalfType())
f16_pair = Lanes("f16", ir.HalfType(), 2 * LANES)  # two vectors' worth in one register
i16_pair = Lanes("i16", ir.IntType(16), 2 * LANES)

_OF_SCALAR = {types.float32: f32, types.float64: f64, types.int32: i32, types.int64: i64}
_OF_ARRAY = _OF_SCALAR | {types.int16: i16_pair}


def address(context, builder, signature, arguments, lanes):
    """Where the vector lies that an intrinsic of (array, offset) loads."""
    data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
    return builder.bitcast(builder.gep(data, [arguments[1]]), lanes.llvm.as_pointer())


def in_every_lane(builder, lanes, value):
    """A vector of one value."""
    undefined = ir.Constant(lanes.llvm, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(INT32, 0))
    zeros = ir.Constant(ir.VectorType(INT32, lanes.llvm.count), None)
    return builder.shuffle_vector(first, undefined, zeros)


@intrinsic
def load(_, array, offset):
    """The elements of an array from an offset on (32 of them for int16)."""
    lanes = _OF_ARRAY[array.dtype]

    def build(context, builder, signature, arguments):
        where = address(context, builder, signature, arguments, lanes)
        return builder.load(where, align=array.dtype.bitwidth // 8)

    return lanes(array, types.int64), build


@intrinsic
def store(_, array, offset, value):
    """Write a vector into an array from an offset on."""

    def build(context, builder, signature, arguments):
        where = address(context, builder, signature, arguments, value)
        builder.store(arguments[2], where, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.none(array, types.int64, value), build


@intrinsic
def spread(_, value):
    """One number in every lane."""
    lanes = _OF_SCALAR[value]

    def build(context, builder, signature, arguments):
        return in_every_lane(builder, lanes, arguments[0])

    return lanes(value), build


@intrinsic
def spread_at(_, array, offset):
    """The element of an array at an offset, in every lane."""
    lanes = _OF_ARRAY[array.dtype]

    def build(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        value = builder.load(builder.gep(data, [arguments[1]]))
        return in_every_lane(builder, lanes, value)

    return lanes(array, types.int64), build


def _binary(meaning, for_floats, for_integers):
    """A function of two vectors of the same type: names of llvmlite's builder methods."""

    def operation(_, x, y):
        name = for_floats if x.is_float else for_integers

        def build(context, builder, signature, arguments):
            return getattr(builder, name)(*arguments)

        return x(x, y), build

    operation.__doc__ = meaning
    return intrinsic(operation)


add = _binary("x + y", "fadd", "add")
sub = _binary("x - y", "fsub", "sub")
mul = _binary("x * y", "fmul", "mul")
div = _binary("x / y", "fdiv", "sdiv")
bit_and = _binary("x & y", None, "and_")
bit_or = _binary("x | y", None, "or_")
bit_xor = _binary("x ^ y", None, "xor")
shift_left = _binary("x << y", None, "shl")
shift_right = _binary("x >> y, of signed numbers", None, "ashr")


def _comparison(meaning, sign):
    def operation(_, x, y):
        def build(context, builder, signature, arguments):
            compare = builder.fcmp_ordered if x.is_float else builder.icmp_signed
            return compare(sign, *arguments)

        return mask(x, y), build

    operation.__doc__ = meaning
    return intrinsic(operation)


greater = _comparison("x > y, lane by lane: a mask", ">")
equal = _comparison("x == y, lane by lane: a mask", "==")
different = _comparison("x != y (of floats: and neither is NaN), lane by lane: a mask", "!=")


both = _binary("Masks: set in both", None, "and_")
either = _binary("Masks: set in either", None, "or_")


@intrinsic
def opposite(_, where):
    """A mask: not set."""

    def build(context, builder, signature, arguments):
        return builder.not_(arguments[0])

    return where(where), build


@intrinsic
def select(_, where, x, y):
    """x where the mask is set, else y."""

    def build(context, builder, signature, arguments):
        return builder.select(*arguments)

    return x(where, x, y), build


@intrinsic
def largest(_, x, y):
    """The larger of two integers, lane by lane."""

    def build(context, builder, signature, arguments):
        return builder.select(builder.icmp_signed(">", *arguments), *arguments)

    return x(x, y), build


@intrinsic
def smallest(_, x, y):
    """The smaller of two integers, lane by lane."""

    def build(context, builder, signature, arguments):
        return builder.select(builder.icmp_signed("<", *arguments), *arguments)

    return x(x, y), build


@intrinsic
def largest_lane(_, x):
    """The largest lane of int32."""

    def build(context, builder, signature, arguments):
        function = ir.FunctionType(INT32, [x.llvm])
        name = f"llvm.vector.reduce.smax.{x.llvm_name}"
        reduce = builder.module.declare_intrinsic(name, (), function)
        return builder.call(reduce, arguments)

    return types.int32(x), build


@intrinsic
def any_lane(_, where):
    """Whether a mask is set in any lane."""

    def build(context, builder, signature, arguments):
        word = builder.bitcast(arguments[0], ir.IntType(LANES))
        return builder.icmp_unsigned("!=", word, ir.Constant(word.type, 0))

    return types.boolean(where), build


@intrinsic
def count_lanes(_, where):
    """In how many lanes a mask is set, as an int64."""

    def build(context, builder, signature, arguments):
        word = builder.bitcast(arguments[0], ir.IntType(LANES))
        return builder.zext(builder.ctpop(word), ir.IntType(64))

    return types.int64(where), build


@intrinsic
def lanes_of(_, first, second, third, fourth):
    """Four masks as the bits of an int64, from the lowest on."""

    def build(context, builder, signature, arguments):
        def joined(low, high):
            count = 2 * low.type.count
            where = [ir.Constant(INT32, lane) for lane in range(count)]
            order = ir.Constant(ir.VectorType(INT32, count), where)
            return builder.shuffle_vector(low, high, order)

        halves = joined(*arguments[:2]), joined(*arguments[2:])
        return builder.bitcast(joined(*halves), ir.IntType(64))

    return types.int64(first, second, third, fourth), build


@intrinsic
def first_bit(_, word):
    """The position of the lowest bit that is set in an int64 that is not zero."""

    def build(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(word), build


@intrinsic
def count_bits(_, word):
    """How many bits of an int64 are set."""

    def build(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    return types.int64(word), build


@intrinsic
def fma(_, x, y, z):
    """x * y + z with one rounding. Of halves, right only where the processor has it."""

    def build(context, builder, signature, arguments):
        function = ir.FunctionType(x.llvm, [x.llvm] * 3)
        fused = builder.module.declare_intrinsic(f"llvm.fma.{x.llvm_name}", (), function)
        return builder.call(fused, arguments)

    return x(x, y, z), build


def _conversion(meaning, name, kinds):
    """A function from one type of vector to another, by a method of llvmlite's builder."""

    def operation(_, x):
        to = kinds[x]

        def build(context, builder, signature, arguments):
            return getattr(builder, name)(arguments[0], to.llvm)

        return to(x), build

    operation.__doc__ = meaning
    return intrinsic(operation)


bits = _conversion("The bits of floats as integers", "bitcast", {f32: i32, f64: i64})
from_bits = _conversion("The floats of bits", "bitcast", {i32: f32, i64: f64})
halves_of_words = _conversion("int32 as two int16 each", "bitcast", {i32: i16_pair})
cut = _conversion("Floats as integers, cut toward zero", "fptosi", {f32: i32})
to_float = _conversion("Integers as float32, to nearest even", "sitofp", {i32: f32})
to_double = _conversion("Integers as float64", "sitofp", {i32: f64})
widen = _conversion("The next wider type", "fpext", {f32: f64, f16: f32})
extend = _conversion("Integers in 64 bits", "sext", {i32: i64})
narrow = _conversion("The next narrower type, to nearest even", "fptrunc", {f64: f32, f32: f16})


def _half(which):
    def operation(_, x):
        def build(context, builder, signature, arguments):
            lanes = [ir.Constant(INT32, which * LANES + lane) for lane in range(LANES)]
            where = ir.Constant(ir.VectorType(INT32, LANES), lanes)
            half = builder.shuffle_vector(arguments[0], ir.Constant(x.llvm, ir.Undefined), where)
            return builder.sext(half, i32.llvm)

        return i32(x), build

    operation.__doc__ = f"The {('first', 'second')[which]} sixteen of 32 int16, as int32"
    return intrinsic(operation)


first_half = _half(0)
second_half = _half(1)

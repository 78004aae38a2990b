"""Which thread, register and part of it holds which element of A, B, C and D.

A `Fragment` is a table of that: flat element indices over [threads, words, parts]. Its formulas are
those of the PTX ISA ("Matrix fragments for mma", "Register fragments and shared memory matrix
layouts" of wgmma). Of the words of a thread the first is the lowest register, of the parts of a
word the first has the lowest bits. Matrices are [copies, rows, columns]: Volta's m8n8k4 computes
four products at once, every other instruction one.
"""

from dataclasses import dataclass

import numpy as np

LANES = 32  # threads of a warp
COLUMNS = 8  # n, of every tile here
CORE_ROWS, CORE_BYTES = 8, 16  # a core matrix of wgmma lies in one piece, row after row


@dataclass(frozen=True, eq=False)
class Fragment:
    """A matrix spread over threads.

    index is [threads, words, parts]: the flat element that each part holds. shape is the matrix,
    [copies, rows, columns]. A code has `bits` bits; a word has 32, or 64 where a code has.
    """

    index: np.ndarray
    shape: tuple
    bits: int

    @property
    def word_dtype(self):
        """uint32, or uint64 where a code has 64 bits."""
        return np.dtype(np.uint64 if self.bits == 64 else np.uint32)

    @property
    def code_dtype(self):
        """The unsigned type of one code, uint8 at least."""
        return np.dtype(f"uint{max(self.bits, 8)}")

    def pack(self, codes):
        """Codes [tiles, copies, rows, columns] as words, [tiles, threads, words]."""
        parts = codes.reshape(len(codes), -1)[:, self.index].astype(self.word_dtype)
        shifts = np.arange(parts.shape[-1], dtype=self.word_dtype) * self.word_dtype.type(self.bits)
        return np.bitwise_or.reduce(parts << shifts, axis=-1)

    def unpack(self, words):
        """The reverse of `pack`."""
        parts = self.index.shape[-1]
        shifts = np.arange(parts, dtype=self.word_dtype) * self.word_dtype.type(self.bits)
        values = words[..., None] >> shifts
        if parts > 1:
            values = values & self.word_dtype.type(2**self.bits - 1)
        codes = np.zeros((len(words), int(np.prod(self.shape))), self.code_dtype)
        codes[:, self.index.ravel()] = values.reshape(len(words), -1).astype(self.code_dtype)
        return codes.reshape(len(words), *self.shape)


def bits_of(f):
    """Bits of a code in a register: a tf32 operand is a whole fp32 word."""
    return 32 if f.name == "tf32" else f.bits


def _grid(threads, words, bits):
    parts = max(1, 32 // bits)
    return *np.ogrid[:threads, :words, :parts], parts


def _fragment(shape, bits, copy, row, column):
    _, rows, columns = shape
    index = (copy * rows + row) * columns + column
    return Fragment(index, shape, bits)


def mma_fragments(i, m):
    """A, B, C and D of `mma`: a lane's group has the row (A, D) or column (B).

    A group is four lanes. Every register of A covers 8 rows; the further registers hold the rows 8
    below, then the columns beyond.
    """
    found, row_blocks = {}, m // 8
    bits = bits_of(i.a)
    width = 4 * max(1, 32 // bits)  # columns of A that the registers of a group cover
    lane, word, part, parts = _grid(LANES, row_blocks * i.k // width, bits)
    row, column = lane // 4 + 8 * (word % row_blocks), lane % 4 * parts + part
    found["A"] = _fragment((1, m, i.k), bits, 0, row, column + width * (word // row_blocks))
    bits = bits_of(i.b)
    lane, word, part, parts = _grid(LANES, i.k // width, bits)
    along_k = lane % 4 * parts + part + width * word
    found["B"] = _fragment((1, i.k, COLUMNS), bits, 0, along_k, lane // 4)
    for name, f in (("C", i.c), ("D", i.d)):
        found[name] = _accumulator(bits_of(f), m, 1)
    return found


def _accumulator(bits, m, warps):
    parts = max(1, 32 // bits)
    rows = m // warps
    lane, word, part, parts = _grid(LANES * warps, rows * COLUMNS // LANES // parts, bits)
    warp, lane, item = lane // LANES, lane % LANES, word * parts + part
    row, column = rows * warp + lane // 4 + 8 * (item // 2), lane % 4 * 2 + item % 2
    return _fragment((1, m, COLUMNS), bits, 0, row, column)


def quad_pair_fragments(i):
    """A, B, C and D of the fp16 m8n8k4: four products, the first of lanes 0-3 and 16-19."""
    found = {}
    lane, word, part, _ = _grid(LANES, 2, 16)
    copy, line, item = lane % 16 // 4, lane % 4 + 4 * (lane // 16), word * 2 + part
    found["A"] = _fragment((4, 8, i.k), 16, copy, line, item)
    found["B"] = _fragment((4, i.k, COLUMNS), 16, copy, item, line)
    for name, f in (("C", i.c), ("D", i.d)):
        if f.bits == 16:
            lane, word, part, _ = _grid(LANES, 4, 16)
            row, column = lane % 4 + 4 * (lane // 16), word * 2 + part
        else:
            lane, word, part, _ = _grid(LANES, 8, 32)
            item = word + part
            row = (lane & 1) + (item & 2) + 4 * (lane // 16)
            column = (item & 4) + (lane & 2) + (item & 1)
        found[name] = _fragment((4, 8, COLUMNS), f.bits, lane % 16 // 4, row, column)
    return found


def wgmma_fragments(i, m):
    """A and B of `wgmma` as threads copy them into shared memory; C and D as in `mma`, by warp.

    A thread copies 16 bytes: one row of a core matrix. Along k two core matrices follow each other,
    then come the next 8 rows of A (columns of B).
    """
    found = {}
    for name, f, lines in (("A", i.a, m), ("B", i.b, COLUMNS)):
        bits = bits_of(f)
        thread, word, part, parts = _grid(lines * i.k * bits // 8 // CORE_BYTES, 4, bits)
        across = CORE_BYTES * 8 // bits  # elements of a core matrix's row
        line = thread // (2 * CORE_ROWS) * CORE_ROWS + thread % CORE_ROWS
        along_k = thread // CORE_ROWS % 2 * across + word * parts + part
        place = (line, along_k) if name == "A" else (along_k, line)
        shape = (1, m, i.k) if name == "A" else (1, i.k, COLUMNS)
        found[name] = _fragment(shape, bits, 0, *place)
    for name, f in (("C", i.c), ("D", i.d)):
        found[name] = _accumulator(bits_of(f), m, 4)
    return found


def scale_fragments(i, m):
    """SA and SB: byte b of a lane is the scale of block b; of a group's lanes the first serve.

    The PTX ISA reads lanes 0 and 1 of a group for A (rows 8 apart) and lane 0 for B, at thread-id
    0; the other lanes hold the same here.
    """
    blocks = i.k // i.block
    lane, word, part, _ = _grid(LANES, 1, 8)
    block = (part + word) % blocks  # what no block needs repeats one
    row, column = lane // 4 + 8 * (lane % 2), lane // 4
    return {
        "SA": _fragment((1, m, blocks), 8, 0, row, block),
        "SB": _fragment((1, blocks, COLUMNS), 8, 0, block, column),
    }

"""What a number can be: formats as data, and the way from values to codes and back.

Floor 1: imports nothing else of mpcore.
"""

from mpcore.formats.blocks import Blocks, round_blocks, split_blocks
from mpcore.formats.codes import decode, encode
from mpcore.formats.counts import Counts, count_events
from mpcore.formats.explain import Explanation, explain
from mpcore.formats.format import (
    NAN_CONVENTIONS,
    OVERFLOW_BEHAVIOURS,
    ROUNDING_MODES,
    BlockFormat,
    Format,
    FormatError,
)
from mpcore.formats.registry import (
    BLOCK_FORMATS,
    FORMATS,
    custom_format,
    get_element_format,
    get_format,
    list_block_formats,
    list_formats,
)
from mpcore.formats.rounding import round_to

__all__ = [
    "BLOCK_FORMATS",
    "FORMATS",
    "NAN_CONVENTIONS",
    "OVERFLOW_BEHAVIOURS",
    "ROUNDING_MODES",
    "BlockFormat",
    "Blocks",
    "Counts",
    "Explanation",
    "Format",
    "FormatError",
    "count_events",
    "custom_format",
    "decode",
    "encode",
    "explain",
    "get_element_format",
    "get_format",
    "list_block_formats",
    "list_formats",
    "round_blocks",
    "round_to",
    "split_blocks",
]

"""LineColumns: lines as columns of Arrow, many at once, without an object for each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_readers.message_batches import LineBlock, newlines
from spark_readers.parse_columns import is_utf8, texts


class LineColumns(NamedTuple):
    # Where each line begins.
    begins: pa.Array
    # Without newlines.
    values: pa.Array


def line_columns(block: LineBlock, kind: pa.DataType) -> LineColumns:
    """`kind` is that of values: strings or bytes."""
    data, at = block
    ends = newlines(data)
    begins = np.empty_like(ends)
    begins[0] = at
    np.add(ends[:-1], at + 1, out=begins[1:])
    return LineColumns(pa.array(begins), _values(data, ends, kind))


def _values(data: bytes, ends: np.ndarray[tuple[int], np.dtype[np.int64]], kind: pa.DataType) -> pa.Array:
    # Judged with its newlines, as what they part is no letter.
    if kind == pa.string() and not (data.isascii() or is_utf8(data)):
        return texts(data.split(b"\n")[:-1])
    offsets = np.empty(len(ends) + 1, np.int32)
    offsets[0] = 0
    # Each value begins as many newlines earlier as there are lines before it.
    np.subtract(ends, np.arange(len(ends)), out=offsets[1:], casting="unsafe")
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data.replace(b"\n", b""))]
    return pa.Array.from_buffers(kind, len(ends), buffers)

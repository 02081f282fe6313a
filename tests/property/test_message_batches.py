"""Wherever content is cut, each line is in exactly one piece."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_readers.message_batches import line_batches, line_begins

LINES = st.lists(st.binary(max_size=6).map(lambda raw: raw.replace(b"\n", b"")), min_size=1, max_size=12)


@settings(max_examples=500)
@given(LINES, st.lists(st.integers(0, 80), max_size=4), st.integers(1, 9))
def test_each_line_is_in_the_piece_in_which_it_begins(lines: list[bytes], cuts: list[int], chunk: int) -> None:
    content = b"".join(line + b"\n" for line in lines)
    bounds = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})
    found: list[tuple[int, bytes]] = []
    placed: list[int] = []
    for begin, end in pairwise(bounds):
        source = content[max(begin - 1, 0) :]
        chunks = (source[at : at + chunk] for at in range(0, len(source), chunk))
        for batch in line_batches(chunks, begin, end, aligned=begin == 0):
            assert all(begin <= at < end for at in batch.begins)
            found += zip(batch.begins, batch.payloads, strict=True)
        chunks = (source[at : at + chunk] for at in range(0, len(source), chunk))
        placed += [at for batch in line_begins(chunks, begin, end, aligned=begin == 0) for at in batch.to_pylist()]
    begins = [sum(len(line) + 1 for line in lines[:at]) for at in range(len(lines))]
    assert found == list(zip(begins, lines, strict=True))
    assert placed == begins

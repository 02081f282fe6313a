from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker.content_sum import BESIDE_BYTES_MIN, WAITING_BYTES_MAX, ContentSum

LARGE = bytes(range(256)) * (BESIDE_BYTES_MIN // 256)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def test_it_is_that_of_all_content_in_order_large_or_small(executor: ThreadPoolExecutor) -> None:
    summed, expected = ContentSum(executor), hashlib.sha1()
    for part in (b"small", LARGE, b"after", memoryview(LARGE)[1:], LARGE * 40, b"", b"last"):
        summed.update(part)
        expected.update(part)
    assert summed.digest() == expected.digest()
    summed.update(b"and more")
    expected.update(b"and more")
    assert summed.digest() == expected.digest()


def test_small_content_is_summed_at_once(executor: ThreadPoolExecutor) -> None:
    summed = ContentSum(executor)
    summed.update(b"small")
    assert not summed.is_behind


def test_nobody_waits_for_threads_that_are_busy(executor: ThreadPoolExecutor) -> None:
    go = threading.Event()
    executor.submit(go.wait)
    try:
        summed = ContentSum(executor)
        summed.update(LARGE)
        assert summed.is_behind
        summed.update(b"small")
        assert summed.digest() == hashlib.sha1(LARGE + b"small").digest()
        assert not summed.is_behind
    finally:
        go.set()


def test_what_waits_is_bounded_when_threads_are_busy(executor: ThreadPoolExecutor) -> None:
    go = threading.Event()
    executor.submit(go.wait)
    try:
        summed = ContentSum(executor)
        for _ in range(WAITING_BYTES_MAX // len(LARGE)):
            summed.update(LARGE)
        assert summed.is_behind
        summed.update(LARGE)
        assert not summed.is_behind
    finally:
        go.set()

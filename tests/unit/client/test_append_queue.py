from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from broker.client.append_queue import AppendQueue, Batch
from broker.client.append_request import AppendRequest
from protocol.label import LabelSet

PLAIN = AppendRequest("acme/orders")
FENCED = replace(PLAIN, union_registers=LabelSet.of(("author", "me")))
BEFORE = [Batch(PLAIN, frozenset()) for _ in range(3)]

appends = st.tuples(
    st.sampled_from([PLAIN, FENCED]), st.binary(max_size=8), st.frozensets(st.sampled_from(BEFORE), max_size=2)
)


@given(steps=st.lists(st.none() | appends, max_size=60))
def test_all_goes_out_in_order_with_what_it_asked_for(
    steps: list[tuple[AppendRequest, bytes, frozenset[Batch]] | None],
) -> None:
    queue = AppendQueue(batch_bytes_max=16)
    added: list[tuple[Batch, bytes, int]] = []
    taken: list[Batch] = []
    for step in (*steps, *[None] * len(steps)):
        if step is None:
            if (batch := queue.take()) is not None:
                taken.append(batch)
            continue
        request, data, after = step
        batch, begin = queue.add(request, data, after)
        assert batch not in taken, "what has gone out is not added to"
        assert batch.request == request
        assert after <= batch.after
        added.append((batch, data, begin))
    assert queue.take() is None
    assert b"".join(b"".join(batch.parts) for batch in taken) == b"".join(data for _, data, _ in added)
    for batch, data, begin in added:
        assert b"".join(batch.parts)[begin : begin + len(data)] == data
    assert all(len(b"".join(batch.parts)) == batch.length <= 16 for batch in taken)
    # None waits for more than one of its own asked for.
    for batch in taken:
        assert any(after == batch.after for one, _, _ in added for after in [one.after] if one is batch)


def test_an_append_is_not_joined_with_what_it_has_to_come_after() -> None:
    queue = AppendQueue()
    first, _ = queue.add(PLAIN, b"one")
    second, _ = queue.add(PLAIN, b"two", frozenset((first,)))
    third, _ = queue.add(PLAIN, b"three")
    assert first is not second
    assert third is second
    assert [queue.take(), queue.take(), queue.take()] == [first, second, None]


def test_one_that_waits_for_more_does_not_hold_up_those_before_it() -> None:
    queue = AppendQueue()
    free, _ = queue.add(PLAIN, b"one")
    waiting, _ = queue.add(PLAIN, b"two", frozenset(BEFORE[:2]))
    joined, _ = queue.add(PLAIN, b"three", frozenset(BEFORE[:1]))
    assert free.after == frozenset()
    assert joined is waiting


def test_one_that_is_larger_than_a_batch_goes_out_whole() -> None:
    queue = AppendQueue(batch_bytes_max=4)
    queue.add(PLAIN, b"ab")
    queue.add(PLAIN, b"0123456789")
    queue.add(PLAIN, b"c")
    assert [batch.parts for batch in iter(queue.take, None)] == [[b"ab"], [b"0123456789"], [b"c"]]

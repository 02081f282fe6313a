from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fragment.cover_set import CoverSet
from fragment.index import JUMP_AGE_S, WRITE_HEAD, Found, Index, NotYetAvailable
from protocol.codec import CompressionCodec
from protocol.fragment import Fragment

NOW = 1_700_000_000
OFFSET_MAX = 40
TIMES = [1, NOW - JUMP_AGE_S - 1, NOW - JUMP_AGE_S, NOW - 1]

begins = st.integers(0, OFFSET_MAX)
lengths = st.integers(0, 12)


def local(begin: int, length: int) -> Fragment:
    return Fragment("acme/orders", begin, begin + length, bytes(20), CompressionCodec.NONE)


locals_ = st.builds(local, begins, lengths)
remotes = st.builds(
    lambda begin, length, mod_time: replace(local(begin, length), backing_store="s3://bucket/", mod_time=mod_time),
    begins,
    lengths,
    st.sampled_from(TIMES),
)


def plain_cover(bag: list[Fragment]) -> list[Fragment]:
    spans = {(each.begin, each.end): each for each in bag if each.begin < each.end}
    return [
        spans[begin, end]
        for begin, end in sorted(spans)
        if not any(b <= begin and end <= e and (b, e) != (begin, end) for b, e in spans)
    ]


def plain_query(cover: list[Fragment], offset: int, begin_mod_time: int) -> tuple[int, Fragment | None]:
    """The loop of semantics 3.4, word by word."""
    if offset == WRITE_HEAD:
        offset = max((each.end for each in cover), default=0)
    while True:
        holding = [each for each in cover if each.begin <= offset < each.end]
        later = [each for each in cover if each.begin > offset]
        fragment = max(holding, key=lambda each: each.end) if holding else None
        if fragment is None and later and later[0].mod_time:
            ahead = later[0]
            if ahead is cover[0] or ahead.mod_time < NOW - JUMP_AGE_S:
                offset, fragment = ahead.begin, ahead
        if fragment is not None and fragment.mod_time and fragment.mod_time < begin_mod_time:
            offset = fragment.end
            continue
        return offset, fragment


@given(
    st.lists(remotes, max_size=8),
    st.lists(locals_, max_size=4),
    st.integers(WRITE_HEAD, OFFSET_MAX + 20),
    st.sampled_from([0, *TIMES, NOW]),
)
def test_a_query_is_answered_by_the_loop_of_gazette(
    listed: list[Fragment], committed: list[Fragment], offset: int, begin_mod_time: int
) -> None:
    index: Index[None] = Index()
    index.replace_remote(CoverSet(listed))
    for each in committed:
        index.commit(each, None)
    answer = index.query(offset, begin_mod_time, NOW)

    wanted_offset, wanted = plain_query(plain_cover([*listed, *committed]), offset, begin_mod_time)
    assert answer.offset == wanted_offset
    assert answer.write_head == max((each.end for each in [*listed, *committed] if each.begin < each.end), default=0)
    if wanted is None:
        assert isinstance(answer, NotYetAvailable)
    else:
        assert isinstance(answer, Found)
        assert answer.fragment == wanted
        assert answer.fragment.begin <= answer.offset < answer.fragment.end <= answer.write_head


class Lifetime(RuleBasedStateMachine):
    """A journal that grows, is uploaded in odd pieces and listed now and then: what was readable stays readable."""

    @initialize()
    def start(self) -> None:
        self.index: Index[int] = Index()
        self.begin = self.end = 0
        self.stored: list[Fragment] = []
        self.changes = 0
        self.told = 0
        self.index.subscribe(self.tell)

    def tell(self) -> None:
        self.told += 1

    @rule(length=st.integers(1, 9))
    def append(self, length: int) -> None:
        self.end += length
        self.index.commit(local(self.begin, self.end - self.begin), self.begin)
        self.changes += 1

    @rule()
    def roll(self) -> None:
        self.begin = self.end

    @rule(data=st.data())
    def upload(self, data: st.DataObject) -> None:
        """Of replicas that cut where they like."""
        begin = data.draw(st.integers(0, self.end))
        end = data.draw(st.integers(begin, self.end))
        self.stored.append(replace(local(begin, end - begin), backing_store="s3://bucket/", mod_time=NOW))

    @rule()
    def refresh(self) -> None:
        self.index.replace_remote(CoverSet(self.stored))
        self.changes += 1
        have = {offset for each in self.stored for offset in range(each.begin, each.end)}
        for each in self.index.page(0, 1000).fragments:
            if not each.mod_time:
                assert not set(range(each.begin, each.end)) <= have

    @invariant()
    def everything_appended_can_be_read_in_order(self) -> None:
        offset = 0
        while offset < self.end:
            answer = self.index.query(offset, 0, NOW)
            assert isinstance(answer, Found)
            assert (answer.offset, answer.write_head) == (offset, self.end)
            assert answer.file == (None if answer.fragment.mod_time else answer.fragment.begin)
            offset = answer.fragment.end
        assert self.index.query(offset, 0, NOW) == NotYetAvailable(self.end, self.end)

    @invariant()
    def each_change_was_told(self) -> None:
        assert self.told == self.changes


TestLifetime = Lifetime.TestCase
TestLifetime.settings = settings(max_examples=50, stateful_step_count=30)

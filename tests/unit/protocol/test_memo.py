from __future__ import annotations

import pytest

from protocol.errors import ValidationError
from protocol.gen import journal_pb2 as pb
from protocol.memo import ENTRIES_MAX, LENGTH_MAX, remembered, remembered_message


@pytest.mark.parametrize(("length", "judged"), [(0, 1), (LENGTH_MAX, 1), (LENGTH_MAX + 1, 3), (10 * LENGTH_MAX, 3)])
def test_short_texts_are_judged_once_and_long_ones_are_never_kept(length: int, judged: int) -> None:
    seen: list[str] = []

    @remembered
    def judge(text: str) -> int:
        seen.append(text)
        return len(text)

    assert [judge("x" * length) for _ in range(3)] == [length] * 3
    assert len(seen) == judged


def test_only_the_latest_answers_are_kept() -> None:
    seen: list[str] = []
    judge = remembered(seen.append)
    for number in range(ENTRIES_MAX + 1):
        judge(str(number))
    judge(str(ENTRIES_MAX))
    assert len(seen) == ENTRIES_MAX + 1
    judge("0")
    assert len(seen) == ENTRIES_MAX + 2


def test_what_is_refused_is_judged_anew() -> None:
    seen: list[str] = []

    @remembered
    def refuse(text: str) -> None:
        seen.append(text)
        raise ValidationError("no")

    for _ in range(2):
        with pytest.raises(ValidationError):
            refuse("x")
    assert seen == ["x", "x"]


@pytest.mark.parametrize(("length", "judged"), [(10, 1), (2 * LENGTH_MAX, 2)])
def test_a_message_is_known_again_by_its_bytes_if_they_are_few(length: int, judged: int) -> None:
    seen: list[pb.Label] = []
    check = remembered_message(pb.Label)(seen.append)
    for _ in range(2):
        check(pb.Label(name="x" * length))
    assert len(seen) == judged
    check(pb.Label(name="other"))
    assert seen[-1] == pb.Label(name="other")

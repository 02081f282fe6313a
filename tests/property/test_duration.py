from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from protocol import duration
from protocol.errors import ValidationError

NANOSECONDS = st.integers(duration.MIN, duration.MAX)
UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}


@given(NANOSECONDS)
def test_printing_and_parsing_a_duration_is_identity(nanoseconds: int) -> None:
    assert duration.parse(duration.to_text(nanoseconds)) == nanoseconds


@given(NANOSECONDS)
def test_a_message_keeps_every_nanosecond(nanoseconds: int) -> None:
    message = duration.to_proto(nanoseconds)
    assert duration.from_proto(message) == nanoseconds
    assert message.seconds * message.nanos >= 0
    assert abs(message.nanos) < 10**9


@given(
    st.lists(
        st.tuples(st.integers(0, 10**5), st.text("0123456789", max_size=12), st.sampled_from(list(UNITS))),
        min_size=1,
        max_size=4,
    )
)
def test_a_text_is_the_sum_of_its_terms_each_cut_to_nanoseconds(terms: list[tuple[int, str, str]]) -> None:
    text = "".join(f"{whole}.{fraction}{unit}" for whole, fraction, unit in terms)
    exact = [Fraction(f"{whole}.{fraction or 0}") * UNITS[unit] for whole, fraction, unit in terms]
    assert duration.parse(text) == sum(map(int, exact))


@given(st.text("0159.-+hmsnuµ e", max_size=12))
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    try:
        nanoseconds = duration.parse(text)
    except ValidationError:
        return
    assert duration.parse(duration.to_text(nanoseconds)) == nanoseconds

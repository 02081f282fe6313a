from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from broker.journal_item import ZONES, JournalItem
from protocol.codec import CompressionCodec
from protocol.errors import ValidationError
from protocol.gen import journal_pb2 as pb
from protocol.journal import FragmentPolicy, JournalSpec, Suspend, SuspendLevel
from protocol.label import REGION, LabelSet
from protocol.validation import validate

NAME = "acme/orders"
FRAGMENT = FragmentPolicy(1 << 20, CompressionCodec.GZIP, ("s3://bucket/",), refresh_interval_ns=300 * 10**9)


def spec_of(name: str = NAME, replication: int = 3, *labels: tuple[str, str], suspend: Suspend | None = None) -> bytes:
    spec = JournalSpec(name, replication, LabelSet.of(*labels), FRAGMENT, suspend=suspend)
    return spec.to_proto().SerializeToString()


def decoded(raw: bytes, max_replication: int = 9) -> JournalItem:
    return JournalItem.decoded(NAME, raw, max_replication)


@pytest.mark.parametrize(
    ("suspend", "max_replication", "desired"),
    [
        (None, 9, 3),
        (None, 2, 2),
        (Suspend(SuspendLevel.NONE, 4096), 9, 3),
        (Suspend(SuspendLevel.PARTIAL, 4096), 9, 1),
        (Suspend(SuspendLevel.FULL, 4096), 9, 0),
        (Suspend(SuspendLevel.FULL, 4096), 2, 0),
    ],
    ids=["as asked", "capped", "resumed", "partly suspended", "suspended", "suspended and capped"],
)
def test_replication_is_as_asked_but_for_suspension_and_the_cap(
    suspend: Suspend | None, max_replication: int, desired: int
) -> None:
    item = decoded(spec_of(suspend=suspend), max_replication)
    assert item.desired_replication == desired
    assert item.spec.suspend == suspend


@pytest.mark.parametrize(
    ("labels", "zones"),
    [
        ((), None),
        (((ZONES, "zone-a"),), {"zone-a"}),
        (((ZONES, "zone-b"), (ZONES, "zone-a")), {"zone-a", "zone-b"}),
        (((ZONES, ""),), None),
        (((REGION, "zone-a"),), None),
        ((("app.gazette.dev/zones", "zone-a"), ("pygazette.dev/zonesx", "zone-a")), None),
    ],
    ids=["without", "one", "two", "no value", "a region", "other labels"],
)
def test_a_journal_is_bound_to_the_zones_of_its_label(
    labels: tuple[tuple[str, str], ...], zones: set[str] | None
) -> None:
    assert decoded(spec_of(NAME, 3, *labels)).zones == zones


def test_journals_that_are_alike_share_what_they_have_in_common() -> None:
    labels = [(ZONES, "zone-a"), ("tier", "gold")]
    one, other = (JournalItem.decoded(name, spec_of(name, 3, *labels), 9) for name in ("acme/one", "acme/other"))
    assert (one.spec.name, other.spec.name) == ("acme/one", "acme/other")
    assert one.spec.labels is other.spec.labels
    assert one.spec.fragment is other.spec.fragment
    assert one.zones is other.zones


# Whatever the order and number of a message's fields, they mean what protobuf says.


def read_plainly(name: str, raw: bytes) -> JournalSpec:
    message = pb.JournalSpec.FromString(raw)
    validate(message)
    if message.name != name:
        raise ValidationError("another")
    return JournalSpec.from_proto(message)


names = st.sampled_from([NAME, "acme/other", "", "acme//orders", "acme/orders;meta", "acme/ü", "a" * 130, "x" * 600])
parts = st.one_of(
    st.builds(lambda name: pb.JournalSpec(name=name).SerializeToString(), names),
    st.builds(lambda count: pb.JournalSpec(replication=count).SerializeToString(), st.integers(0, 6)),
    st.builds(lambda flags: pb.JournalSpec(flags=flags).SerializeToString(), st.integers(0, 8)),
    st.sampled_from([spec_of(""), spec_of(), spec_of(NAME, 2, ("tier", "gold")), spec_of("acme/other")]),
    st.sampled_from(
        [b"", b"\x0a", b"\x0a\x03\xff\xff\xff", b"garbage", pb.JournalSpec(labels=pb.LabelSet()).SerializeToString()]
    ),
)


@given(names, st.lists(parts, max_size=4).map(b"".join))
@example(NAME, spec_of())
@example(NAME, spec_of("acme/other"))
@example(NAME, spec_of() + pb.JournalSpec(name="acme/other").SerializeToString())
@example("acme/other", spec_of() + pb.JournalSpec(name="acme/other").SerializeToString())
@example(NAME, spec_of("") + pb.JournalSpec(name=NAME).SerializeToString())
@example("acme/orders;meta", spec_of("acme/orders;meta"))
@example("a" * 130, spec_of("a" * 130))
def test_a_spec_means_the_same_however_it_is_read(name: str, raw: bytes) -> None:
    try:
        expected = read_plainly(name, raw)
    except (ValidationError, DecodeError):
        with pytest.raises((ValidationError, DecodeError)):
            JournalItem.decoded(name, raw, 9)
    else:
        assert JournalItem.decoded(name, raw, 9).spec == expected

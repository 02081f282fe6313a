"""What the template of a path postfix can see: a spool, its journal's spec, and the types of their fields.

Go validates a template with one object and evaluates it with another, and we offer the same two. When a spec
is validated, all is zero, the spool's fields are found under ``.Spool`` alone, and nothing with a pointer
receiver can be called. When a fragment is persisted, the spool's fields are found at the top as well, which
leaves ``.Fragment`` ambiguous and thus undefined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from protocol.codec import CompressionCodec
from protocol.duration import MICROSECOND, MILLISECOND
from protocol.errors import ValidationError
from protocol.fragment import NO_SUM, Fragment
from protocol.identifier import check_journal, strip_meta
from protocol.journal import Flag, FragmentPolicy, JournalSpec, Suspend, SuspendLevel
from protocol.label import Label, LabelSet
from protocol.template.go_format import BeyondSubsetError, Enumerated, Record, Stringer
from protocol.template.go_time import ZERO_NS, Duration, Month, UtcTime, Weekday


@dataclass(frozen=True, slots=True)
class PostfixData:
    """The fragment about to be persisted, and what is known beside it."""

    fragment: Fragment
    # Unix nanoseconds; None for a spool that nothing was appended to, which is Go's zero time.
    first_append_ns: int | None
    registers: LabelSet
    spec: JournalSpec


ZERO = PostfixData(Fragment("", 0, 0, NO_SUM, CompressionCodec.INVALID), None, LabelSet(), JournalSpec())


class JournalName(str, Stringer):
    """A named string type of Go: it reads as a string, but is not taken where a string is asked for."""

    def text(self) -> str:
        return str(self)


class StoreUrl(str):
    __slots__ = ()


class CodecName(Enumerated):
    names: ClassVar = {codec.value: codec.name for codec in CompressionCodec}


class FlagName(Enumerated):
    names: ClassVar = {flag.value: flag.name for flag in Flag}


class LevelName(Enumerated):
    names: ClassVar = {level.value: level.name for level in SuspendLevel}


@dataclass(frozen=True, slots=True)
class Sum(Record):
    digest: bytes

    def fields(self) -> tuple[int, int, int]:
        parts = self.digest[:8], self.digest[8:16], self.digest[16:]
        return int.from_bytes(parts[0]), int.from_bytes(parts[1]), int.from_bytes(parts[2])


@dataclass(frozen=True, slots=True)
class Verdict(Stringer):
    """What a ``Validate`` returns: an error, of which a template sees only whether there is one."""

    holds: bool

    def __bool__(self) -> bool:
        return not self.holds

    def text(self) -> str:
        if not self.holds:
            raise BeyondSubsetError("prints the text of an error")
        return "<nil>"


@dataclass(frozen=True, slots=True)
class SuspendPointer:
    """Methods of a nil pointer may be called, its fields may not be read."""

    suspend: Suspend | None

    def __bool__(self) -> bool:
        return self.suspend is not None

    def target(self) -> Suspend:
        if self.suspend is None:
            raise ValidationError(".Suspend is nil unless the journal is suspended: use .Suspend.GetLevel")
        return self.suspend


@dataclass(frozen=True, slots=True)
class ValidatedRoot:
    data: PostfixData


@dataclass(frozen=True, slots=True)
class PersistedRoot:
    data: PostfixData


@dataclass(frozen=True, slots=True)
class ValidatedSpool:
    data: PostfixData


@dataclass(frozen=True, slots=True)
class PersistedSpool:
    data: PostfixData


@dataclass(frozen=True, slots=True)
class PersistedFragment:
    """While persisting, a fragment has its file beside it, and so is one level deeper."""

    fragment: Fragment


@dataclass(frozen=True, slots=True)
class PersistedSpec:
    """The same spec by pointer, so that more of its methods can be called."""

    spec: JournalSpec


@dataclass(frozen=True, slots=True)
class Value:
    """A field, read from its owner."""

    get: Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class Method:
    """Takes its owner, then this many strings."""

    call: Callable[..., object]
    arguments: int = 0


@dataclass(frozen=True, slots=True)
class Beyond:
    """A method of Go's that we do not have. The count of its arguments is still checked."""

    arguments: int = 0


Member = Value | Method | Beyond
Members = dict[str, Member]


def member(owner: object, name: str) -> Member:
    """Raises a ``ValidationError`` for what Go finds neither field nor callable method of that type."""
    found = _MEMBERS.get(type(owner), {}).get(name)
    if found is None:
        raise ValidationError(f"there is no .{name[:32]} in {type(owner).__name__}")
    return found


def _inner(members: Members, get: Callable[[Any], object], only: Iterable[str] = ()) -> dict[str, Member]:
    """The members of what `get` reads, as members of its owner: Go's promotion of embedded fields."""
    return {name: _promoted(members[name], get) for name in only or members}


def _promoted(found: Member, get: Callable[[Any], object]) -> Member:
    match found:
        case Value(read):
            return Value(lambda owner: read(get(owner)))
        case Method(call, count):
            return Method(lambda owner, *arguments: call(get(owner), *arguments), count)
        case Beyond():
            return found


def _verdict(check: Callable[[str], None], text: str) -> Verdict:
    try:
        check(text)
    except ValidationError:
        return Verdict(holds=False)
    return Verdict(holds=True)


def _ambiguous(_: object) -> object:
    raise ValidationError(".Fragment means two things when a fragment is persisted: write .Spool or .JournalSpec first")


def _extension(codec: CodecName) -> str:
    if int(codec) not in range(1, len(CompressionCodec)):
        raise ValidationError(".ToExtension needs a valid codec, which there is none of when a spec is validated")
    return CompressionCodec(codec).suffix


_STRING: Members = {"String": Method(lambda owner: owner.text())}

_TIME: Members = _STRING | {
    "Format": Method(UtcTime.format, arguments=1),
    "Year": Method(UtcTime.year),
    "Month": Method(UtcTime.month),
    "Day": Method(UtcTime.day),
    "YearDay": Method(UtcTime.year_day),
    "Weekday": Method(UtcTime.weekday),
    "Hour": Method(UtcTime.hour),
    "Minute": Method(UtcTime.minute),
    "Second": Method(UtcTime.second),
    "Nanosecond": Method(UtcTime.nanosecond),
    "Unix": Method(UtcTime.unix_s),
    "UnixMilli": Method(lambda time: time.unix_ns // 10**6),
    "UnixMicro": Method(lambda time: time.unix_ns // 10**3),
    "UnixNano": Method(UtcTime.unix_ns_wrapped),
    "UTC": Method(lambda time: time),
    "IsZero": Method(lambda time: time.unix_ns == ZERO_NS),
    **dict.fromkeys(("GoString", "GobEncode", "IsDST", "Local", "Location"), Beyond()),
    **dict.fromkeys(("MarshalBinary", "MarshalJSON", "MarshalText"), Beyond()),
    **dict.fromkeys(("Add", "After", "Before", "Compare", "Equal", "In", "Round", "Sub"), Beyond(1)),
    **dict.fromkeys(("AppendBinary", "AppendText", "Truncate"), Beyond(1)),
    "AppendFormat": Beyond(2),
    "AddDate": Beyond(3),
}

_DURATION: Members = _STRING | {
    "Hours": Method(Duration.hours),
    "Minutes": Method(Duration.minutes),
    "Seconds": Method(Duration.seconds),
    "Milliseconds": Method(lambda interval: interval.whole(MILLISECOND)),
    "Microseconds": Method(lambda interval: interval.whole(MICROSECOND)),
    "Nanoseconds": Method(int),
    "Abs": Beyond(),
    "Round": Beyond(1),
    "Truncate": Beyond(1),
}

_JOURNAL: Members = _STRING | {
    "StripMeta": Method(lambda name: JournalName(strip_meta(name))),
    "Validate": Method(lambda name: _verdict(check_journal, name)),
}

_ENUM: Members = _STRING | {"MarshalYAML": Beyond()}

_LABEL_SET: Members = {
    "Labels": Value(lambda labels: labels.labels),
    "ValueOf": Method(LabelSet.value_of, arguments=1),
    "ValuesOf": Method(lambda labels, name: tuple(labels.values_of(name)), arguments=1),
    "Validate": Beyond(),
}

_FRAGMENT: Members = {
    "Journal": Value(lambda fragment: JournalName(fragment.journal)),
    "Begin": Value(lambda fragment: fragment.begin),
    "End": Value(lambda fragment: fragment.end),
    "Sum": Value(lambda fragment: Sum(fragment.sum)),
    "CompressionCodec": Value(lambda fragment: CodecName(fragment.codec)),
    "BackingStore": Value(lambda fragment: StoreUrl(fragment.backing_store)),
    "ModTime": Value(lambda fragment: fragment.mod_time),
    "PathPostfix": Value(lambda fragment: fragment.path_postfix),
}

_POLICY: Members = {
    "Length": Value(lambda policy: policy.length),
    "CompressionCodec": Value(lambda policy: CodecName(policy.compression_codec)),
    "Stores": Value(lambda policy: tuple(map(StoreUrl, policy.stores))),
    "RefreshInterval": Value(lambda policy: Duration(policy.refresh_interval_ns)),
    "Retention": Value(lambda policy: Duration(policy.retention_ns)),
    "FlushInterval": Value(lambda policy: Duration(policy.flush_interval_ns)),
    "PathPostfixTemplate": Value(lambda policy: policy.path_postfix_template),
}

_SPEC: Members = {
    "Name": Value(lambda spec: JournalName(spec.name)),
    "Replication": Value(lambda spec: spec.replication),
    "LabelSet": Value(lambda spec: spec.labels),
    "Fragment": Value(lambda spec: spec.fragment),
    "Flags": Value(lambda spec: FlagName(spec.flags)),
    "MaxAppendRate": Value(lambda spec: spec.max_append_rate),
    "Suspend": Value(lambda spec: SuspendPointer(spec.suspend)),
    **_inner(_LABEL_SET, lambda spec: spec.labels, ("Labels", "ValueOf", "ValuesOf")),
}

_SPOOL: Members = {
    "FirstAppendTime": Value(lambda spool: UtcTime(ZERO_NS if (at := spool.data.first_append_ns) is None else at)),
    "Registers": Value(lambda spool: spool.data.registers),
    **_inner(_FRAGMENT, lambda spool: spool.data.fragment),
}

_DESIRED: Members = {"DesiredReplication": Method(lambda owner: owner.spec.desired_replication(owner.spec.replication))}

_MEMBERS: Mapping[type, Members] = {
    UtcTime: _TIME,
    Month: _STRING,
    Weekday: _STRING,
    Duration: _DURATION,
    JournalName: _JOURNAL,
    StoreUrl: {"Validate": Beyond()},
    CodecName: _ENUM | {"Validate": Beyond(), "ToExtension": Method(_extension)},
    Verdict: {"Error": Beyond()},
    FlagName: _ENUM
    | {
        "Validate": Beyond(),
        "MayRead": Method(lambda flag: flag in (0, Flag.O_RDONLY, Flag.O_RDWR)),
        "MayWrite": Method(lambda flag: flag in (0, Flag.O_WRONLY, Flag.O_RDWR)),
    },
    LevelName: _ENUM | {"Validate": Beyond()},
    Sum: {
        "Part1": Value(lambda digest: digest.fields()[0]),
        "Part2": Value(lambda digest: digest.fields()[1]),
        "Part3": Value(lambda digest: digest.fields()[2]),
        "IsZero": Method(lambda digest: digest.digest == NO_SUM),
        "ToDigest": Method(lambda digest: digest.digest),
    },
    Label: {
        "Name": Value(lambda label: label.name),
        "Value": Value(lambda label: label.value),
        "Prefix": Value(lambda label: label.prefix),
        "Validate": Beyond(),
    },
    LabelSet: _LABEL_SET,
    Fragment: _FRAGMENT,
    FragmentPolicy: _POLICY,
    SuspendPointer: {
        "GetLevel": Method(lambda pointer: LevelName(pointer.suspend.level if pointer else 0)),
        "GetOffset": Method(lambda pointer: pointer.suspend.offset if pointer else 0),
        **dict.fromkeys(("String", "Validate", "ProtoSize", "XXX_Size"), Beyond()),
        "Level": Value(lambda pointer: LevelName(pointer.target().level)),
        "Offset": Value(lambda pointer: pointer.target().offset),
    },
    JournalSpec: _SPEC,
    ValidatedSpool: {**_SPOOL, "Fragment": Value(lambda spool: spool.data.fragment)},
    ValidatedRoot: {
        "Spool": Value(lambda root: ValidatedSpool(root.data)),
        "JournalSpec": Value(lambda root: root.data.spec),
        **_inner(_SPEC, lambda root: root.data.spec),
    },
    PersistedSpec: {**_inner(_SPEC, lambda pointer: pointer.spec), **_DESIRED},
    PersistedFragment: {
        "Fragment": Value(lambda wrapped: wrapped.fragment),
        **_inner(_FRAGMENT, lambda wrapped: wrapped.fragment),
    },
    PersistedSpool: {**_SPOOL, "Fragment": Value(lambda spool: PersistedFragment(spool.data.fragment))},
    PersistedRoot: {
        **_SPOOL,
        "Spool": Value(lambda root: PersistedSpool(root.data)),
        "JournalSpec": Value(lambda root: PersistedSpec(root.data.spec)),
        **_inner(_SPEC, lambda root: root.data.spec),
        "Fragment": Value(_ambiguous),
        **_inner(_DESIRED, lambda root: root.data),
    },
}

NAMES = frozenset(
    name for members in _MEMBERS.values() for name, found in members.items() if not isinstance(found, Beyond)
)
"""Every name that leads somewhere in some object, for a check that does not evaluate."""

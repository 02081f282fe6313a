"""The tree of journals: specs by directory, in which each node says only what its parent does not.

This is the form in which people list, edit and apply journals. Flattening pushes what a directory sets down to
the journals below it; hoisting lifts what the journals of a directory share into it. A directory's name is empty
or ends in a slash, and every name is written in full.

Trees are walked with loops: a name has room for 256 directories, and Python's stack might not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import reduce

from protocol import spec_file, yaml_text
from protocol.codec import CompressionCodec
from protocol.errors import ValidationError, checked
from protocol.gen import journal_pb2 as pb
from protocol.identifier import check_journal
from protocol.journal import Flag, FragmentPolicy, JournalSpec, Suspend, SuspendLevel
from protocol.label import LabelSet
from protocol.spec_file import HeldLabels
from protocol.strict_yaml import INT32, INT64, UINT32, Record, load

_NODE_KEYS = (
    "comment",
    "delete",
    "name",
    "replication",
    "labels",
    "fragment",
    "flags",
    "max_append_rate",
    "suspend",
    "revision",
    "children",
)
_FRAGMENT_KEYS = (
    "length",
    "compression_codec",
    "stores",
    "refresh_interval",
    "retention",
    "flush_interval",
    "path_postfix_template",
)
_SUSPEND_KEYS = ("level", "offset")


@dataclass(frozen=True, slots=True)
class JournalNode:
    """A directory or a journal of a tree, as it was written."""

    # Partial: what is not set is inherited.
    spec: JournalSpec
    # None inherits.
    delete: bool | None
    # An empty list of stores was written out, so that none are inherited.
    no_stores: bool
    revision: int
    # The index of the parent in the list of nodes; the root's is its own.
    parent: int
    children: int
    line: int

    @property
    def is_directory(self) -> bool:
        return not self.spec.name or self.spec.name.endswith("/")


def parse(text: str) -> pb.ApplyRequest:
    """The changes that a file asks for. Raises a ``ValidationError`` that names the line and the key."""
    nodes = decode(text)
    check(nodes)
    request = flatten(nodes)
    spec_file.validate_changes(request, [node.line for node in nodes if not node.is_directory])
    return request


def decode(text: str) -> list[JournalNode]:
    """The nodes of a tree, each parent before its children."""
    nodes: list[JournalNode] = []
    pending = [(load(text), 0)]
    while pending:
        written, parent = pending.pop()
        record = Record(written, _NODE_KEYS, "a node of the tree")
        children = record.items("children")
        pending.extend((child, len(nodes)) for child in reversed(children))
        nodes.append(_node(record, parent, len(children)))
    return nodes


def _node(record: Record, parent: int, children: int) -> JournalNode:
    record.text("comment")  # Nobody reads it, but it has to be a text.
    policy, no_stores = FragmentPolicy(), False
    if "fragment" in record:
        fragment = record.record("fragment", _FRAGMENT_KEYS)
        policy = _policy(fragment)
        no_stores = "stores" in fragment and not policy.stores
    spec = JournalSpec(
        record.text("name"),
        record.integer("replication", INT32),
        spec_file.read_labels(record),
        policy,
        record.member_or_number("flags", Flag, UINT32),
        record.integer("max_append_rate", INT64),
        _suspend(record),
    )
    revision = record.integer("revision", INT64)
    delete = False if record.is_zeroed("delete") else record.boolean("delete")
    return JournalNode(spec, delete, no_stores, revision, parent, children, record.line)


def _policy(record: Record) -> FragmentPolicy:
    return FragmentPolicy(
        record.integer("length", INT64),
        record.member("compression_codec", CompressionCodec) or CompressionCodec.INVALID,
        record.texts("stores"),
        record.duration_ns("refresh_interval"),
        record.duration_ns("retention"),
        record.duration_ns("flush_interval"),
        record.text("path_postfix_template"),
    )


def _suspend(node: Record) -> Suspend | None:
    if "suspend" not in node:
        return Suspend() if node.is_zeroed("suspend") else None
    record = node.record("suspend", _SUSPEND_KEYS)
    return Suspend(record.member_or_number("level", SuspendLevel, INT32), record.integer("offset", INT64))


def check(nodes: list[JournalNode]) -> None:
    """Raise unless the nodes form a tree: children in order, below the name of their parent, and so on."""
    last_child: dict[int, str] = {}
    for at, node in enumerate(nodes):
        if at:
            _check_child(node, nodes[node.parent].spec.name, last_child.get(node.parent))
            last_child[node.parent] = node.spec.name
        if node.is_directory:
            _check_directory(node)
        else:
            _check_journal(node)


def _check_child(node: JournalNode, parent: str, before: str | None) -> None:
    if not node.spec.name.startswith(parent):
        raise _misplaced(node, f"expected a name that begins with its parent's, {parent[:64]!r}")
    if before is not None and node.spec.name <= before:
        raise _misplaced(node, f"expected names in ascending order without duplicates, not after {before[:64]!r}")


def _check_directory(node: JournalNode) -> None:
    if node.revision:
        raise _misplaced(node, "a directory has no revision; a journal's name does not end in a slash")
    if not node.children:
        raise _misplaced(node, "a directory needs children; a journal's name does not end in a slash")


def _check_journal(node: JournalNode) -> None:
    try:
        checked("Name", check_journal, node.spec.name)
    except ValidationError as error:
        raise ValidationError(f"{error.rule} (line {node.line})", *error.path) from None
    if node.children:
        raise _misplaced(node, "a journal has no children; a directory's name ends in a slash")


def _misplaced(node: JournalNode, rule: str) -> ValidationError:
    return ValidationError(f"line {node.line}: name {node.spec.name[:64]!r}: {rule}")


def flatten(nodes: list[JournalNode]) -> pb.ApplyRequest:
    """A change for each journal of a tree, with all that it inherits."""
    request = pb.ApplyRequest()
    specs: list[JournalSpec] = []
    # Apart from the specs, since labels may be many; only of nodes that have heirs.
    labels: dict[int, HeldLabels] = {}
    deletes: list[bool | None] = []
    for at, node in enumerate(nodes):
        bare = replace(node.spec, labels=LabelSet())
        specs.append(_inherit(bare, specs[node.parent], node.no_stores) if at else bare)
        held = labels[node.parent].given_to(node.spec.labels) if at else HeldLabels(node.spec.labels)
        deletes.append(deletes[node.parent] if at and node.delete is None else node.delete)
        if node.children:
            labels[at] = held
        if node.is_directory:
            continue
        if deletes[at]:
            request.changes.add(expect_mod_revision=node.revision, delete=node.spec.name)
        else:
            change = request.changes.add(expect_mod_revision=node.revision, upsert=specs[at].to_proto())
            change.upsert.labels.CopyFrom(held.message)
    return request


def _inherit(spec: JournalSpec, parent: JournalSpec, no_stores: bool) -> JournalSpec:
    inherited = spec.union(parent)
    return replace(inherited, fragment=replace(inherited.fragment, stores=())) if no_stores else inherited


@dataclass(slots=True)
class _Hoisted:
    """A node while its directory is being put together."""

    spec: JournalSpec
    revision: int = 0
    children: list[_Hoisted] = field(default_factory=list)

    def hoist(self) -> None:
        """Take over what all children have in common. Theirs must be done."""
        name = self.spec.name
        shared = reduce(JournalSpec.intersect, (child.spec for child in self.children))
        self.spec = replace(shared, name=name)
        for child in self.children:
            child.spec = child.spec.subtract(self.spec)


def hoist(journals: Iterable[tuple[JournalSpec, int]]) -> str:
    """The YAML text of journals and their revisions, which come in the order of their names."""
    root = _hoisted_tree(journals)
    lines = [] if root is None else list(_lines(root))
    return "\n".join(lines or ["{}"]) + "\n"


def _hoisted_tree(journals: Iterable[tuple[JournalSpec, int]]) -> _Hoisted | None:
    """A directory wherever neighbours share one, but none for a single child.

    Directories are open, outermost first, until a journal comes that is not in them. At that moment it is known
    how deep the one before it stands: in the innermost of the directories that it shares with either neighbour.
    """
    opened: list[_Hoisted] = []
    last: _Hoisted | None = None
    for spec, revision in journals:
        if last is not None:
            directory = _shared_directory(last.spec.name, spec.name)
            done = _close(opened, last, len(directory))
            if not opened or len(opened[-1].spec.name) < len(directory):
                opened.append(_Hoisted(JournalSpec(directory)))
            opened[-1].children.append(done)
        last = _Hoisted(spec, revision)
    return last if last is None else _close(opened, last, -1)


def _close(opened: list[_Hoisted], node: _Hoisted, length: int) -> _Hoisted:
    """Close the directories whose names are longer than `length`. Returns the outermost, or else `node`."""
    while opened and len(opened[-1].spec.name) > length:
        directory = opened.pop()
        directory.children.append(node)
        directory.hoist()
        node = directory
    return node


def _shared_directory(left: str, right: str) -> str:
    end = 0
    while (slash := left.find("/", end)) >= 0 and left[end : slash + 1] == right[end : slash + 1]:
        end = slash + 1
    return left[:end]


def _lines(root: _Hoisted) -> Iterator[str]:
    pending = [(root, "")]
    while pending:
        node, indent = pending.pop()
        fields = _written(node)
        yield from yaml_text.item(fields, indent[2:]) if node is not root else yaml_text.block(fields)
        if node.children:
            yield f"{indent}children:"
            pending.extend((child, indent + "  ") for child in reversed(node.children))


def _written(node: _Hoisted) -> dict[str, yaml_text.Value]:
    spec = node.spec
    fields: dict[str, yaml_text.Value] = {
        "name": spec.name,
        "replication": spec.replication,
        "labels": spec_file.written_labels(spec.labels),
        "fragment": _written_policy(spec.fragment),
        "flags": _name_of(spec.flags, Flag),
        "max_append_rate": spec.max_append_rate,
    }
    written = {key: value for key, value in fields.items() if value}
    if spec.suspend is not None:
        level, offset = _name_of(spec.suspend.level, SuspendLevel), spec.suspend.offset
        written["suspend"] = {key: value for key, value in (("level", level), ("offset", offset)) if value}
    if node.revision:
        written["revision"] = node.revision
    return written


def _written_policy(policy: FragmentPolicy) -> dict[str, yaml_text.Value]:
    fields: dict[str, yaml_text.Value] = {
        "length": policy.length,
        "compression_codec": _name_of(policy.compression_codec, CompressionCodec),
        "stores": policy.stores,
        "refresh_interval": spec_file.written_duration(policy.refresh_interval_ns),
        "retention": spec_file.written_duration(policy.retention_ns),
        "flush_interval": spec_file.written_duration(policy.flush_interval_ns),
        "path_postfix_template": policy.path_postfix_template,
    }
    return {key: value for key, value in fields.items() if value}


def _name_of(number: int, choices: type[IntEnum]) -> str | int:
    """The name for a number, nothing for zero, and a number that has no name as it is."""
    return choices(number).name if number and number in choices._value2member_map_ else number

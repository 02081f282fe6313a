"""What an Apply asks for, as one transaction of etcd: judged beyond what its fields say by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from allocator.keys import item_key
from allocator.transaction import OPERATIONS_MAX, Compare, Delete, Put, Target, Transaction
from protocol.errors import PermissionDeniedError, ValidationError
from protocol.gen import journal_pb2 as pb
from protocol.journal import JournalSpec
from protocol.label import LabelSet
from protocol.postfix_template import check_within_subset
from protocol.selector import LabelSelector

TRANSACTION_BYTES_MAX = 1 << 20
"""Of keys and values, so that etcd, which by default takes 1.5 MiB, takes the whole request."""

ANY_REVISION = -1


@dataclass(frozen=True, slots=True)
class JournalChange:
    name: str
    key: str
    # None where the journal is to be deleted.
    spec: JournalSpec | None
    expected: int
    # Why we could not evaluate its postfix template, which is then taken only where the journal has it already.
    template_problem: str | None = None

    @property
    def is_sure_to_write(self) -> bool:
        """If it succeeds at all. The delete of whatever there may be could find nothing."""
        return self.spec is not None or self.expected != ANY_REVISION


@dataclass(frozen=True, slots=True)
class CurrentSpec:
    """What etcd has of a journal at the moment. The revision is zero where that is nothing."""

    labels: LabelSet = LabelSet()
    mod_revision: int = 0
    path_postfix_template: str = ""


def changes_of(request: pb.ApplyRequest, root: str) -> list[JournalChange]:
    """The changes of a request whose fields are valid. Raises a ValidationError if they do not go together."""
    if len(request.changes) > OPERATIONS_MAX:
        raise ValidationError(
            f"expected at most {OPERATIONS_MAX} changes, which is what etcd does at once (got {len(request.changes)}): "
            "apply them in several requests",
            "ApplyRequest",
            "Changes",
        )
    changes: list[JournalChange] = []
    named: set[str] = set()
    for at, change in enumerate(request.changes):
        try:
            planned = _change(change, root)
            if planned.name in named:
                raise ValidationError("another change of the same request is about the same journal")
        except ValidationError as error:
            raise error.within(f"Changes[{at}]").within("ApplyRequest") from None
        named.add(planned.name)
        changes.append(planned)
    return changes


def _change(change: pb.ApplyRequest.Change, root: str) -> JournalChange:
    if not change.HasField("upsert"):
        return JournalChange(change.delete, item_key(root, change.delete), None, change.expect_mod_revision)
    spec = JournalSpec.from_proto(change.upsert)
    # Gazette takes such names, and puts their fragments next to the store that they are meant for.
    if spec.name.startswith("../"):
        raise ValidationError(
            "expected a name that does not lead upwards, out of the journal's stores", "Upsert", "Name"
        )
    for at, store in enumerate(spec.fragment.stores):
        if ".." in unquote(store.partition("?")[0]).split("/"):
            raise ValidationError("expected a path that does not lead upwards", "Upsert", "Fragment", f"Stores[{at}]")
    return JournalChange(
        spec.name, item_key(root, spec.name), spec, change.expect_mod_revision, _template_problem(spec)
    )


def _template_problem(spec: JournalSpec) -> str | None:
    try:
        check_within_subset(spec.fragment.path_postfix_template, spec)
    except ValidationError as error:
        return str(error)
    return None


def check_templates(changes: list[JournalChange], current: Mapping[str, CurrentSpec]) -> None:
    """A template that is new to its journal must be one that we can evaluate: fragments would lack their postfix.

    One that is there already is left alone. A Go broker can evaluate it, and the change is about something else.
    """
    for at, change in enumerate(changes):
        if change.spec is None or change.template_problem is None:
            continue
        if change.spec.fragment.path_postfix_template != current[change.key].path_postfix_template:
            raise ValidationError(
                change.template_problem,
                *("ApplyRequest", f"Changes[{at}]", "Upsert", "Fragment", "PathPostfixTemplate"),
            )


def check_permitted(change: JournalChange, current: CurrentSpec, permitted: LabelSelector) -> None:
    """Both what is there and what is to be there must be within what the caller may change.

    Otherwise a journal could be taken over from others, or taken out of sight, by way of its labels.
    """
    match = permitted.matcher("name")
    held = [current.labels] if current.mod_revision or change.spec is None else []
    wanted = [change.spec.labels] if change.spec is not None else []
    if not all(match(change.name, labels) for labels in [*held, *wanted]):
        raise PermissionDeniedError(f"the token does not grant this change of the journal {change.name}")


def transaction_of(changes: list[JournalChange], current: Mapping[str, CurrentSpec]) -> Transaction:
    """All of the changes or none. What was looked at, in `current` by key, must still be so."""
    compares: list[Compare] = []
    operations: list[Put | Delete] = []
    size = 0
    for change in changes:
        if change.expected != ANY_REVISION:
            compares.append(Compare(change.key, Target.MOD, change.expected))
        elif change.key in current:
            compares.append(Compare(change.key, Target.MOD, current[change.key].mod_revision))
        operation = _operation(change)
        operations.append(operation)
        size += len(change.key) + (len(operation.value) if isinstance(operation, Put) else 0)
    if size > TRANSACTION_BYTES_MAX:
        raise ValidationError(
            f"expected at most {TRANSACTION_BYTES_MAX} bytes of specs (got {size}): apply them in several requests",
            "ApplyRequest",
            "Changes",
        )
    return Transaction(tuple(compares), tuple(operations))


def _operation(change: JournalChange) -> Put | Delete:
    """A spec is written as Go writes it, and without fields that we do not know, which nobody has judged."""
    if change.spec is None:
        return Delete(change.key)
    return Put(change.key, change.spec.to_proto().SerializeToString(deterministic=True))

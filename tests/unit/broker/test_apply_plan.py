from __future__ import annotations

from dataclasses import replace

import pytest

from allocator.keys import item_key
from allocator.transaction import OPERATIONS_MAX, Compare, Delete, Put, Target
from broker.apply_plan import CurrentSpec, changes_of, check_permitted, check_templates, transaction_of
from protocol.errors import PermissionDeniedError, ValidationError
from protocol.gen import journal_pb2 as pb
from protocol.journal import JournalSpec, Suspend, SuspendLevel
from protocol.label import LabelSet
from protocol.selector import LabelSelector
from protocol.validation import validate
from tests.support.journal_cluster import POLICY, ROOT, journal_spec

ACME = LabelSelector.parse("name:prefix=acme/, tier=gold")
GOLD, LEAD = LabelSet.of(("tier", "gold")), LabelSet.of(("tier", "lead"))


def upsert(spec: JournalSpec, expected: int = 0) -> pb.ApplyRequest.Change:
    return pb.ApplyRequest.Change(upsert=spec.to_proto(), expect_mod_revision=expected)


def delete(name: str, expected: int = -1) -> pb.ApplyRequest.Change:
    return pb.ApplyRequest.Change(delete=name, expect_mod_revision=expected)


def request_of(*changes: pb.ApplyRequest.Change) -> pb.ApplyRequest:
    request = pb.ApplyRequest(changes=changes)
    validate(request)
    return request


def test_changes_become_one_transaction() -> None:
    changes = changes_of(
        request_of(upsert(journal_spec("acme/a")), upsert(journal_spec("acme/b"), -1), delete("acme/c", 7)), ROOT
    )
    keys = [item_key(ROOT, name) for name in ("acme/a", "acme/b", "acme/c")]
    transaction = transaction_of(changes, {})
    assert transaction.compares == (Compare(keys[0], Target.MOD, 0), Compare(keys[2], Target.MOD, 7))
    assert [operation.key for operation in transaction.operations] == keys
    assert [type(operation) for operation in transaction.operations] == [Put, Put, Delete]


def test_what_was_looked_at_must_still_be_so() -> None:
    changes = changes_of(request_of(upsert(journal_spec("acme/a"), -1), delete("acme/b")), ROOT)
    a, b = (change.key for change in changes)
    transaction = transaction_of(changes, {a: CurrentSpec(mod_revision=9), b: CurrentSpec()})
    assert transaction.compares == (Compare(a, Target.MOD, 9), Compare(b, Target.MOD, 0))


def test_a_spec_is_written_as_it_was_given_with_its_suspension_and_nothing_unknown() -> None:
    spec = replace(journal_spec("acme/a", ("tier", "gold")), suspend=Suspend(SuspendLevel.PARTIAL, 99))
    encoded = spec.to_proto().SerializeToString(deterministic=True)
    change = upsert(spec)
    change.upsert.MergeFromString(b"\xfa\x3f\x03abc")
    (put,) = transaction_of(changes_of(request_of(change), ROOT), {}).operations
    assert put == Put(item_key(ROOT, "acme/a"), encoded)


def test_more_than_etcd_does_at_once_is_refused() -> None:
    many = [delete(f"acme/part-{at:03}") for at in range(OPERATIONS_MAX + 1)]
    assert len(changes_of(request_of(*many[:-1]), ROOT)) == OPERATIONS_MAX
    with pytest.raises(ValidationError, match="at most 128 changes"):
        changes_of(request_of(*many), ROOT)
    large = [(f"label-{at:05}", "x" * 900) for at in range(100)]
    specs = [upsert(journal_spec(f"acme/part-{at:03}", *large)) for at in range(20)]
    with pytest.raises(ValidationError, match="bytes of specs"):
        transaction_of(changes_of(request_of(*specs), ROOT), {})


def test_a_journal_is_changed_once() -> None:
    with pytest.raises(ValidationError, match=r"^ApplyRequest.Changes\[1\]: another change"):
        changes_of(request_of(upsert(journal_spec("acme/a")), delete("acme/a")), ROOT)


@pytest.mark.parametrize("name", ["../acme", "../../etc/passwd"])
def test_a_name_does_not_lead_out_of_the_stores(name: str) -> None:
    with pytest.raises(ValidationError, match=r"Changes\[0\].Upsert.Name"):
        changes_of(request_of(upsert(journal_spec(name))), ROOT)
    # One that Gazette has let in can still be removed.
    assert changes_of(request_of(delete(name)), ROOT)


@pytest.mark.parametrize("store", ["file:///../", "file:///a/../../b/", "file:///%2e%2e/b/", "file:///%2E./b/?find=a"])
def test_a_store_does_not_lead_out_of_the_file_root(store: str) -> None:
    spec = replace(journal_spec("acme/a"), fragment=replace(POLICY, stores=(store,)))
    with pytest.raises(ValidationError, match=r"Upsert.Fragment.Stores\[0\]"):
        changes_of(request_of(upsert(spec)), ROOT)


@pytest.mark.parametrize(
    ("change", "current", "is_permitted"),
    [
        pytest.param(upsert(journal_spec("acme/a", ("tier", "gold"))), CurrentSpec(), True, id="creates"),
        pytest.param(upsert(journal_spec("acme/a", ("tier", "lead"))), CurrentSpec(), False, id="creates another's"),
        pytest.param(upsert(journal_spec("acmeevil/a", ("tier", "gold"))), CurrentSpec(), False, id="other prefix"),
        pytest.param(upsert(journal_spec("acme/a", ("tier", "gold")), 3), CurrentSpec(GOLD, 3), True, id="changes"),
        pytest.param(upsert(journal_spec("acme/a", ("tier", "gold")), 3), CurrentSpec(LEAD, 3), False, id="takes over"),
        pytest.param(upsert(journal_spec("acme/a", ("tier", "lead")), 3), CurrentSpec(GOLD, 3), False, id="hides"),
        pytest.param(delete("acme/a"), CurrentSpec(GOLD, 3), True, id="deletes"),
        pytest.param(delete("acme/a"), CurrentSpec(LEAD, 3), False, id="deletes another's"),
        pytest.param(delete("acme/a"), CurrentSpec(), False, id="deletes nothing, of which no label is known"),
    ],
)
def test_a_token_must_grant_both_what_was_and_what_is_to_be(
    change: pb.ApplyRequest.Change, current: CurrentSpec, is_permitted: bool
) -> None:
    (planned,) = changes_of(request_of(change), ROOT)
    if is_permitted:
        check_permitted(planned, current, ACME)
    else:
        with pytest.raises(PermissionDeniedError):
            check_permitted(planned, current, ACME)


@pytest.mark.parametrize(
    "template", ["{{ .Fragment.Length }}", '{{ js "a" }}', '{{ define "a" }}x{{ end }}{{ template "a" }}']
)
def test_a_template_beyond_the_subset_is_taken_only_where_it_is_already(template: str) -> None:
    spec = replace(journal_spec("acme/b"), fragment=replace(POLICY, path_postfix_template=template))
    changes = changes_of(request_of(upsert(journal_spec("acme/a")), upsert(spec, 7)), ROOT)
    key = changes[1].key
    check_templates(changes, {key: CurrentSpec(mod_revision=7, path_postfix_template=template)})
    for current in (CurrentSpec(), CurrentSpec(mod_revision=7, path_postfix_template="plain")):
        with pytest.raises(ValidationError) as refused:
            check_templates(changes, {key: current})
        assert str(refused.value).startswith("ApplyRequest.Changes[1].Upsert.Fragment.PathPostfixTemplate: ")


def test_a_template_is_judged_with_the_labels_of_its_journal() -> None:
    second = '{{ if .Spool.Begin }}{{ index (.ValuesOf "tier") 1 }}{{ end }}'
    fragment = replace(POLICY, path_postfix_template=second)
    one, two = (journal_spec("acme/a", *labels) for labels in ([("tier", "a")], [("tier", "a"), ("tier", "b")]))
    check_templates(changes_of(request_of(upsert(replace(two, fragment=fragment))), ROOT), {})
    changes = changes_of(request_of(upsert(replace(one, fragment=fragment))), ROOT)
    with pytest.raises(ValidationError):
        check_templates(changes, {changes[0].key: CurrentSpec()})

"""The fields that vectors of validation leave unnamed: Gazette's own errors tell of them in words only."""

from __future__ import annotations

from tests.support.golden import Case

OF_THE_WHOLE = frozenset({"protocol.LabelSet", "protocol.ApplyRequest.Change", "consumer.ApplyRequest.Change"})
"""Types with a rule about several of their fields at once, whose refusal need not name one."""

_FIELDS = {
    "protocol.Label": {"Prefix": ["prefix flag outside a selector"]},
    "protocol.JournalSpec": {
        "Name": ["name", "name with meta"],
        "Replication": ["replication 1..5", "order: replication before labels"],
        "Labels": ["label prefix forbidden", "spec labels label name is name"],
        "Fragment.Stores[0]": ["in spec: store list"],
        "MaxAppendRate": ["append rate not negative", "order: rate before suspend"],
    },
    "protocol.JournalSpec.Fragment": {
        "Length": ["length bounds"],
        "Stores": ["store list"],
        "RefreshInterval": ["refresh interval bounds"],
        "FlushInterval": ["flush interval bounds"],
    },
    "protocol.BrokerSpec": {"JournalLimit": ["limit"]},
    "protocol.Fragment": {"End": ["begin after end"]},
    "protocol.Route": {
        "Members": ["duplicate member", "members out of order", "same zone suffix descending"],
        "Primary": ["empty route primary 0", "primary -2", "primary too large"],
        "Endpoints": ["endpoints without members", "too few endpoints", "too many endpoints"],
    },
    "protocol.Header.Etcd": {"ClusterId": ["no cluster id"], "RaftTerm": ["raft term"], "Revision": ["revision"]},
    "protocol.ReadRequest": {
        "Offset": ["offset -2", "offset smallest"],
        "EndOffset": ["end before offset", "end negative", "end negative with offset -1"],
    },
    "protocol.ReadResponse": {
        "Status": ["content beside status"],
        "Header": ["content beside header"],
        "Fragment": ["content beside fragment"],
        "FragmentUrl": ["content beside url"],
        "WriteHead": ["content beside head", "head before end", "head negative"],
        "Offset": [
            *("offset at end", "offset before begin", "offset without fragment"),
            "empty fragment never holds an offset",
        ],
    },
    "protocol.AppendRequest": {
        "Content": ["content in first"],
        "Offset": ["offset negative", "later with offset", "later with negative offset"],
        "CheckRegisters": ["later with check"],
        "UnionRegisters": ["later with union"],
        "SubtractRegisters": ["later with subtract"],
        "Suspend": ["later with suspend"],
    },
    "protocol.AppendResponse": {
        "Commit": ["no commit"],
        "Registers": ["no registers", "mismatch without registers"],
    },
    "protocol.ReplicateRequest": {
        "Acknowledge": ["header without ack"],
        "Content": ["proposal with content"],
        "ContentDelta": ["content delta negative", "proposal with delta"],
        "DeprecatedJournal": ["content with deprecated journal", "other deprecated journal"],
        "Header": ["content with header"],
        "Registers": ["content with registers"],
    },
    "protocol.ReplicateResponse": {
        "Header": ["OK with header", "other status with header", "wrong route without header"],
        "Fragment": ["OK with fragment", "mismatch without fragment"],
        "Registers": ["mismatch without registers"],
    },
    "protocol.ListRequest": {
        "Selector.Include.Labels[0].Value": ["prefix empty", "prefix without slash"],
        "Selector.Include.Labels[1].Value": ["second prefix without slash"],
    },
    "protocol.ListResponse.Journal": {"ModRevision": ["mod revision negative", "mod revision zero"]},
    "protocol.ApplyRequest.Change": {"ExpectModRevision": ["delete revision", "upsert revision"]},
    "protocol.FragmentsRequest": {
        "EndModTime": ["end negative"],
        "PageLimit": ["page limit 10001"],
        "SignatureTTL": ["ttl negative", "ttl zero"],
    },
    "consumer.ShardSpec": {
        "HintPrefix": ["hint prefix", "hint prefix without log"],
        "HintBackups": ["backups negative"],
        "MinTxnDuration": ["min negative"],
        "MaxTxnDuration": ["max negative", "max zero"],
        "LabelSet": ["label id allowed on journals"],
        "Sources": ["sources equal"],
    },
    "consumer.ShardSpec.Source": {"MinOffset": ["offset"]},
    "consumer.ReplicaStatus": {"Errors": ["status with errors", "status without errors"]},
    "consumer.ListResponse.Shard": {"ModRevision": ["mod revision"], "Status": ["more statuses"]},
    "consumer.ApplyRequest.Change": {"ExpectModRevision": ["delete revision", "upsert revision"]},
    "consumer.UnassignResponse": {"Status": ["only OK passes"]},
    "recoverylog.Segment": {
        "Author": ["author"],
        "FirstSeqNo": ["first seq negative", "first seq zero"],
        "LastSeqNo": ["last seq before first"],
        "LastOffset": ["last offset equal", "last offset less"],
    },
}
_BY_RULE = {
    (kind, rule): field for kind, fields in _FIELDS.items() for field, rules in fields.items() for rule in rules
}


def field_of(case: Case) -> str:
    """The field that a case is about, by what it says it tries; empty for one that is not known here."""
    return _BY_RULE.get((case["type"], case["rule"]), "")

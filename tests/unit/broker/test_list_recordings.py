"""What Gazette answered to List, and what we do in the same state."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from allocator.key_event import StoredKey
from allocator.keys import item_key
from protocol.errors import ValidationError
from protocol.gen import journal_pb2 as pb
from protocol.route import ProcessId, Route
from protocol.validation import validate
from tests.support.journal_cluster import ROOT, JournalCluster, settled
from tests.support.recorded_state import assignment_keys, etcd_header, member_keys, stored
from tests.support.recording import Conversation, conversations, title

LISTS = conversations("list")


def answers_of(conversation: Conversation) -> list[pb.ListResponse]:
    """Go always writes a header: one with nothing in it is none."""
    answers = [pb.ListResponse.FromString(answer) for answer in conversation.answers]
    for answer in answers:
        if not answer.header.etcd.revision:
            answer.ClearField("header")
    return answers


def snapshots_of(answers: list[pb.ListResponse]) -> list[list[pb.ListResponse]]:
    """Each without the empty message after it."""
    snapshots: list[list[pb.ListResponse]] = []
    for answer in answers:
        if answer.HasField("header"):
            snapshots.append([answer])
        elif answer.journals:
            snapshots[-1].append(answer)
    return snapshots


def journals_at(revision: int) -> dict[str, pb.ListResponse.Journal]:
    """All that any conversation has told of, if it told of that revision."""
    found: dict[str, pb.ListResponse.Journal] = {}
    for conversation in LISTS:
        for snapshot in snapshots_of(answers_of(conversation)):
            if snapshot[0].header.etcd.revision == revision:
                found.update((journal.spec.name, journal) for answer in snapshot for journal in answer.journals)
    return found


def keys_of(journal: pb.ListResponse.Journal) -> list[StoredKey]:
    name = journal.spec.name
    raw = journal.spec.SerializeToString()
    route = Route.from_proto(journal.route)
    return [
        stored(item_key(ROOT, name), raw, journal.create_revision, journal.mod_revision),
        *(stored(key, b"") for key in assignment_keys(name, route)),
    ]


def routes() -> list[Route]:
    return [
        Route.from_proto(journal.route)
        for conversation in LISTS
        for answer in answers_of(conversation)
        for journal in answer.journals
    ]


def cluster_at(folder: Path, header: pb.Header) -> JournalCluster:
    known = journals_at(header.etcd.revision).values()
    keys = [*member_keys(routes()), *(key for journal in known for key in keys_of(journal))]
    cluster = JournalCluster(folder, header=etcd_header(header), keys=sorted(keys))
    cluster.begin(ProcessId.from_proto(header.process_id))
    return cluster


def move_to(cluster: JournalCluster, snapshot: list[pb.ListResponse], before: list[pb.ListResponse]) -> None:
    """Have what the snapshot shows in place of what the one before it did."""
    then = {journal.spec.name: journal for answer in before for journal in answer.journals}
    now = {journal.spec.name: journal for answer in snapshot for journal in answer.journals}
    puts = {key.key.decode(): key.raw for journal in now.values() for key in keys_of(journal)}
    gone = {key.key.decode() for journal in then.values() for key in keys_of(journal)} - set(puts)
    cluster.write(puts, sorted(gone), snapshot[0].header.etcd.revision)


@pytest.mark.parametrize("conversation", LISTS, ids=title)
async def test_lists_are_answered_as_gazette_answers_them(conversation: Conversation, tmp_path: Path) -> None:
    request = pb.ListRequest.FromString(conversation.request)
    if conversation.is_refused:
        with pytest.raises(ValidationError):
            validate(request)
        return
    validate(request)
    expected = answers_of(conversation)
    snapshots = snapshots_of(expected)
    assert snapshots
    # One that resumed found what it waits for was not there yet.
    resumed = request.watch_resume.etcd.revision if request.HasField("watch_resume") else 0
    waits = resumed + 1 == snapshots[0][0].header.etcd.revision
    header = pb.Header()
    header.CopyFrom(snapshots[0][0].header)
    if waits:
        header.etcd.revision = resumed
    cluster = cluster_at(tmp_path, header)
    api = cluster.brokers[ProcessId.from_proto(header.process_id)].lists
    got: list[pb.ListResponse] = []

    async def watch() -> None:
        async with aclosing(api.list_journals(request)) as messages:
            async for message in messages:
                got.append(message)

    watching = asyncio.get_running_loop().create_task(watch())
    await settled()
    known = [pb.ListResponse(journals=journals_at(resumed).values())] if waits else snapshots[0]
    for snapshot in snapshots if waits else snapshots[1:]:
        assert len(got) == (expected.index(snapshot[0]))
        move_to(cluster, snapshot, known)
        known = snapshot
        await settled()
    assert watching.done() == (not request.watch)
    watching.cancel()
    await cluster.close()
    assert got == expected

"""The commands of gazctl with a real broker, and the defects of Gazette's that ours does not have."""

from __future__ import annotations

import asyncio
import json
import sys
import textwrap
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from allocator.etcd_client import EtcdClient
from allocator.etcd_connections import EtcdConnections, EtcdTls
from allocator.keys import member_key
from broker.broker_member import BrokerMember
from broker.client.settings import ClientSettings
from gazctl.raw_calls import MemberSaid, ask_member, brokers_of
from protocol.route import ProcessId
from tests.support.certificates import Certificates
from tests.support.etcd_server import etcd_server
from tests.support.eventually import eventually_blocking
from tests.support.gazctl_process import Gazctl, Up, spec


def editor(folder: Path, script: str) -> str:
    """A program in place of an editor, which finds the file in `path`, and in `turn` how often it was opened."""
    path = folder / "editor.py"
    path.write_text(
        "import pathlib, subprocess, sys\n"
        "path = pathlib.Path(sys.argv[1]); seen = pathlib.Path(__file__).with_suffix('.seen')\n"
        "turn = len(seen.read_text().splitlines()) if seen.exists() else 0\n"
        "seen.open('a').write(f'{turn}\\n'); text = path.read_text()\n"
        "pathlib.Path(__file__).with_name(f'seen-{turn}.yaml').write_text(text)\n" + textwrap.dedent(script)
    )
    return f"{sys.executable} {path}"


def test_a_newcomer_gets_from_nothing_to_a_read(gazctl: Gazctl) -> None:
    applied = gazctl.ok("journals", "apply", stdin=spec("first/steps"))
    assert "1 applied" in applied
    assert gazctl.ok("journals", "append", "-l", "name=first/steps", stdin="hello\n").startswith(
        "first/steps: 6 B at [0, 6)"
    )
    assert gazctl.ok("journals", "read", "-l", "name=first/steps") == "hello\n"
    assert "│ first/steps │ broker-1 │" in gazctl.ok("journals", "list", "-l", "name=first/steps", "-p")
    assert "first/steps" in gazctl.ok("journals", "fragments", "-l", "name=first/steps")


def test_a_listing_as_yaml_is_applied_again_and_deletes(gazctl: Gazctl) -> None:
    gazctl.create("round/trip-a", "round/trip-b")
    listed = gazctl.ok("journals", "list", "-l", "name:prefix=round/", "-o", "yaml")
    assert "2 applied" in gazctl.ok("journals", "apply", "--max-txn-size", "1", stdin=listed.replace("1048576", "2048"))
    again = gazctl("journals", "apply", stdin=listed)
    assert again.code == 1
    assert "revision: -1" in again.stderr, "it says what to do next"
    current = gazctl.ok("journals", "list", "-l", "name:prefix=round/", "-o", "yaml")
    assert "length: 2048" in current
    assert "2 deleted" in gazctl.ok("journals", "apply", stdin=f"delete: true\n{current}")
    assert gazctl.ok("journals", "list", "-l", "name:prefix=round/", "-o", "yaml") == "{}\n"


def test_lines_are_spread_by_key_and_read_back_from_where_one_left(gazctl: Gazctl) -> None:
    gazctl.create("spread/a1", "spread/b2", "spread/c3")
    selector = ("-l", "name:prefix=spread/")
    keyed = "".join(f'key-{at}\n{{"v":{at}}}\n' for at in range(1, 4))
    gazctl.ok("journals", "append", *selector, "-f", "lines", "-m", "modulo", stdin=keyed)
    offsets = ("--offsets-out", "at.json")
    assert gazctl.ok("journals", "read", *selector, *offsets) == '{"v":3}\n{"v":1}\n{"v":2}\n'
    at = gazctl.folder / "at.json"
    assert json.loads(at.read_text()) == {"spread/a1": 8, "spread/b2": 8, "spread/c3": 8}
    gazctl.ok("journals", "append", "-l", "name=spread/b2", stdin="more\n")
    assert gazctl.ok("journals", "read", *selector, "--offsets", "at.json", *offsets) == "more\n"
    assert json.loads(at.read_text())["spread/b2"] == 13
    assert (gazctl.folder / "at.json.previous").exists()
    assert gazctl.ok("journals", "read", *selector, "--tail") == ""
    # D2: among several journals, direct mapping finds the one that is named.
    gazctl.ok("journals", "append", *selector, "-f", "lines", "-m", "direct", stdin='spread/c3\n{"d":1}\n')
    assert gazctl.ok("journals", "read", "-l", "name=spread/c3") == '{"v":2}\n{"d":1}\n'


def test_a_last_line_without_newline_is_an_error_after_all_others_are_done(gazctl: Gazctl) -> None:
    gazctl.create("cut/lines")
    ran = gazctl("journals", "append", "-l", "name=cut/lines", "-f", "lines", stdin='{"l":1}\n{"l":2}')
    assert (ran.code, ran.stdout) == (1, "cut/lines: 1 record, 8 B, up to 8\n")
    assert "newline" in ran.stderr


def test_a_large_file_is_one_append(gazctl: Gazctl) -> None:
    gazctl.create("large/file")
    content = bytes(range(256)) * 20_000
    (gazctl.folder / "large").write_bytes(content)
    gazctl.ok("journals", "append", "-l", "name=large/file", "-i", "large")
    gazctl.ok("journals", "append", "-l", "name=large/file", stdin=content)
    gazctl.ok("journals", "read", "-l", "name=large/file", "-o", "read")
    assert (gazctl.folder / "read").read_bytes() == content * 2


def test_d1_prune_keeps_all_of_a_journal_without_retention(gazctl: Gazctl, up: Up) -> None:
    gazctl.create("prune/me")
    gazctl.ok("journals", "append", "-l", "name=prune/me", stdin="hello\n")
    ran = gazctl.ok("journals", "prune", "-l", "name=prune/me", "--file-root", up.cluster()["file_root"])
    assert "no retention is set: everything is kept" in ran
    assert "0 of 1 fragments removed" in ran


def suspend_fully(gazctl: Gazctl, name: str) -> None:
    gazctl.create(name)
    # An empty journal is left to nobody.
    assert gazctl.ok("journals", "suspend", "-l", f"name={name}", "--force") == f"{name}: SUSPENDED\n"
    assert "<none> <S>" in gazctl.ok("journals", "list", "-l", f"name={name}", "-p")


def test_d4_fragments_of_a_suspended_journal_are_none_in_every_format(gazctl: Gazctl) -> None:
    suspend_fully(gazctl, "asleep/fragments")
    for form in ("json", "proto"):
        assert gazctl.ok("journals", "fragments", "-l", "name=asleep/fragments", "-o", form) == ""
    assert "JOURNAL" in gazctl.ok("journals", "fragments", "-l", "name=asleep/fragments")


def test_d5_prune_passes_over_a_suspended_journal_and_goes_on(gazctl: Gazctl) -> None:
    suspend_fully(gazctl, "sleepy/a")
    gazctl.create("sleepy/b")
    gazctl.ok("journals", "append", "-l", "name=sleepy/b", stdin="hello\n")
    pruned = gazctl.ok("journals", "prune", "-l", "name:prefix=sleepy/", "--dry-run")
    assert "sleepy/a: skipped" in pruned
    assert "sleepy/b: 0 of 1" in pruned
    assert gazctl.ok("journals", "read", "-l", "name=sleepy/a") == ""
    assert "skipped" in gazctl.ok("journals", "reset-head", "-l", "name=sleepy/a")


def test_d6_a_blocking_read_waits_for_journals_that_are_yet_to_come(gazctl: Gazctl) -> None:
    output = gazctl.folder / "followed"
    errors = gazctl.folder / "errors"
    with errors.open("wb") as stderr:
        reading = gazctl.begin(
            *("journals", "read", "-l", "name:prefix=future/", "--block", "-o", str(output)),
            *("--offsets-out", "future.json"),
            stderr=stderr,
        )
    try:
        eventually_blocking(
            lambda: b"Waiting for one" in errors.read_bytes(), lambda: f"it to wait: {errors.read_text()}"
        )
        gazctl.create("future/one")
        gazctl.ok("journals", "append", "-l", "name=future/one", stdin="at last\n")
        eventually_blocking(lambda: output.read_bytes() == b"at last\n", lambda: f"the content: {errors.read_text()}")
        reading.terminate()
        assert reading.wait(30) == 0
    finally:
        reading.kill()
        reading.wait()
    assert json.loads((gazctl.folder / "future.json").read_text()) == {"future/one": 8}


def test_d7_an_edit_that_cannot_be_applied_opens_the_editor_again(gazctl: Gazctl) -> None:
    gazctl.create("edit/me")
    conflicting = spec("edit/me").replace("1048576", "4096").encode()
    script = f"""
    if turn == 0:
        ran = subprocess.run([sys.executable, "-m", "gazctl.main", "journals", "apply"], input={conflicting!r})
        assert ran.returncode == 0
        path.write_text(text.replace("1048576", "8192"))
    elif turn == 1:
        path.write_text(text.replace("8192", "10"))
    else:
        path.write_text("\\n".join("revision: -1" if line.startswith("revision") else line
                                  for line in text.replace("length: 10", "length: 16384").splitlines()))
    """
    edited = gazctl.ok("journals", "edit", "-l", "name=edit/me", GAZ_EDITOR=editor(gazctl.folder, script))
    assert "1 applied" in edited
    assert "ETCD_TRANSACTION_FAILED" in (gazctl.folder / "seen-1.yaml").read_text(), "the conflict is shown"
    assert "Length" in (gazctl.folder / "seen-2.yaml").read_text(), "and then what is wrong with the spec"
    assert "length: 16384" in gazctl.ok("journals", "list", "-l", "name=edit/me", "-o", "yaml")


def test_edits_that_could_not_be_applied_are_kept_when_one_gives_up(gazctl: Gazctl) -> None:
    gazctl.create("edit/kept")
    script = """
    path.write_text(text.replace("1048576", "10") if turn == 0 else "")
    """
    ran = gazctl("journals", "edit", "-l", "name=edit/kept", EDITOR=editor(gazctl.folder, script), GAZ_EDITOR="")
    assert ran.code == 1
    kept = Path(ran.stderr.partition("Your edits are in ")[2].partition(": ")[0])
    assert "length: 10" in kept.read_text()
    kept.unlink()


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [("pass", 0, "nothing to do"), ("path.write_text('')", 0, "empty file"), ("sys.exit(3)", 1, "ended with code 3")],
)
def test_an_edit_that_changes_nothing_is_cancelled(gazctl: Gazctl, script: str, code: int, said: str) -> None:
    gazctl.create("edit/nothing")
    ran = gazctl("journals", "edit", "-l", "name=edit/nothing", GAZ_EDITOR=editor(gazctl.folder, script))
    assert (ran.code, said in ran.stderr) == (code, True)


def put(url: str, content: bytes) -> int:
    request = urllib.request.Request(url, content, method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_d8_a_put_to_a_missing_journal_is_404_and_to_a_suspended_one_resumes_it(gazctl: Gazctl, up: Up) -> None:
    gateway = up.cluster()["gateway"]
    assert put(f"{gateway}/not/there", b"hello\n") == 404
    suspend_fully(gazctl, "asleep/put")
    assert put(f"{gateway}/asleep/put", b"hello\n") == 204
    assert gazctl.ok("journals", "read", "-l", "name=asleep/put") == "hello\n"


@pytest.mark.parametrize("command", ["edit", "prune", "suspend", "reset-head", "scrub", "append"])
def test_d15_a_selector_that_matches_nothing_is_told_with_exit_code_one(gazctl: Gazctl, command: str) -> None:
    ran = gazctl("journals", command, "-l", "name=not/there")
    assert ran.code == 1
    assert "no journals match" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_d15_an_unreachable_broker_is_told_and_not_waited_for_in_silence(gazctl: Gazctl) -> None:
    ran = gazctl("journals", "list", "--broker.address", "http://127.0.0.1:1", "--broker.timeout", "1s")
    assert ran.code == 1
    assert "Waiting up to 1 s" in ran.stderr
    assert "gazctl up" in ran.stderr


def test_stores_are_tried(gazctl: Gazctl) -> None:
    assert gazctl.ok("journals", "store-health", "file:///") == "Fragment store file:/// is healthy\n"
    for url, why in (("file:///missing/", "unhealthy"), ("nope", "expected the URL of a store")):
        ran = gazctl("journals", "store-health", url)
        assert (ran.code, why in ran.stderr) == (1, True)


def test_scrub_finds_a_flipped_bit_and_a_missing_fragment(gazctl: Gazctl, up: Up) -> None:
    root = Path(up.cluster()["file_root"])
    gazctl.create("scrub/me", policy="  flush_interval: 1h0m0s")
    for at in range(2):
        gazctl.ok("journals", "append", "-l", "name=scrub/me", stdin=f"{at}" * 1_200_000)
    gazctl.ok("journals", "append", "-l", "name=scrub/me", stdin="end")
    folder = root / "scrub/me"
    eventually_blocking(lambda: len(list(folder.glob("0*"))) >= 2, lambda: f"two fragments: {list(folder.glob('*'))}")
    scrub = ("journals", "scrub", "-l", "name=scrub/me", "--file-root", str(root))
    eventually_blocking(lambda: "2 fragments" in gazctl(*scrub).stdout, lambda: f"both fragments: {gazctl(*scrub)}")
    assert "scrub/me: ok" in gazctl.ok(*scrub)
    latest = gazctl("journals", "read", "-l", "name=scrub/me", "--from", str(2**33))
    assert (latest.stdout, latest.stderr) == ("end", ""), "that it leaves out the rest is what was asked for"
    victim = sorted(folder.glob("0*"))[0]
    content = bytearray(victim.read_bytes())
    content[1000] ^= 1
    victim.write_bytes(content)
    ran = gazctl(*scrub)
    assert ran.code == 1
    assert "SHA-1" in ran.stdout
    assert gazctl("journals", "scrub", "-l", "name=scrub/me").code == 1, "without the folder it cannot be read"


def test_brokers_and_journals_are_seen_at_a_glance(gazctl: Gazctl, up: Up) -> None:
    gazctl.create("glance/one")
    cluster = up.cluster()
    for more in ((), ("--etcd.address", cluster["etcd"])):
        (broker,) = [json.loads(line) for line in gazctl.ok("brokers", "list", "-o", "json", *more).splitlines()]
        assert (broker["id"], broker["endpoint"], broker["status"]) == ("broker-1", up.address, "ok")
    gazctl.ok("journals", "append", "-l", "name=glance/one", stdin="seen")
    gazctl.ok("journals", "read", "-l", "name=glance/one")
    assert asyncio.run(served(up.address, "glance/one")) == MemberSaid(4, 4)
    row = gazctl.ok("top", "--count", "1", "--interval", "100ms", "-l", "name=glance/one").splitlines()[3]
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        *("glance/one", "broker-1", "1/1", "4 B", "0 B/s", "0 B/s", "4 B")
    ]


def test_members_are_listed_by_an_etcd_that_wants_certificates(gazctl: Gazctl, tmp_path: Path) -> None:
    certificates = Certificates.create(tmp_path)
    with etcd_server(tmp_path, certificates=certificates) as etcd:
        tls = EtcdTls(certificates.ca, certificates.certificate, certificates.key)
        asyncio.run(announced(etcd.endpoint, tls, BrokerMember(ProcessId("west", "broker-9"), "http://127.0.0.1:9", 5)))
        asked = ("brokers", "list", "--etcd.address", etcd.endpoint, "--etcd.prefix", "/tls")
        shown = (f"--etcd.cert-file={tmp_path}/certificate.pem", f"--etcd.cert-key-file={tmp_path}/key.pem")
        listed = gazctl(*asked, *shown, f"--etcd.trusted-ca-file={tmp_path}/ca.pem").stdout
        assert "broker-9" in listed
        assert "does not answer" in listed
        refused = gazctl(*asked)
        assert refused.code == 1
        assert f"etcd at {etcd.endpoint}" in refused.stderr


async def announced(etcd: str, tls: EtcdTls, member: BrokerMember) -> None:
    async with EtcdClient(EtcdConnections([etcd], tls=tls)) as client:
        await client.put(member_key("/tls", *member.id), member.encoded())


async def served(address: str, journal: str) -> MemberSaid:
    async with brokers_of(ClientSettings((address,))) as brokers:
        return await ask_member(brokers, address, journal)


def test_a_watched_listing_comes_again_when_something_changes(gazctl: Gazctl) -> None:
    output = gazctl.folder / "watched"
    with output.open("wb") as stdout:
        watching = gazctl.begin("journals", "list", "-l", "name:prefix=watched/", "--watch", stdout=stdout)
    try:
        eventually_blocking(lambda: "NAME" in output.read_text(), lambda: f"the listing: {output.read_text()}")
        gazctl.create("watched/one")
        eventually_blocking(lambda: "watched/one" in output.read_text(), lambda: f"the journal: {output.read_text()}")
    finally:
        watching.terminate()
        watching.wait(30)

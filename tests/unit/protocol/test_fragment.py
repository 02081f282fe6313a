from __future__ import annotations

import hashlib

import pytest

from protocol.codec import CompressionCodec
from protocol.errors import ValidationError
from protocol.fragment import Fragment, sum_from_proto, sum_to_proto
from protocol.gen import journal_pb2 as pb
from tests.support.golden import Case, case_id, cases


def fragment_of(case: Case) -> Fragment:
    return Fragment(
        case["journal"],
        case["begin"],
        case["end"],
        bytes.fromhex(case["sum"]),
        CompressionCodec[case["codec"]],
        case.get("backing_store", ""),
        case.get("mod_time", 0),
        case.get("path_postfix", ""),
    )


@pytest.mark.parametrize("case", cases("fragments", "name"), ids=case_id)
def test_names_are_those_of_gazette(case: Case) -> None:
    fragment = fragment_of(case["fragment"])
    assert fragment.content_name == case["content_name"]
    assert fragment.content_path == case["content_path"]
    assert fragment.content_length == case["content_length"]
    assert Fragment.from_proto(fragment.to_proto()) == fragment


@pytest.mark.parametrize("case", cases("fragments", "parse"), ids=case_id)
def test_listed_paths_parse_as_in_gazette(case: Case) -> None:
    if not case["ok"]:
        with pytest.raises(ValidationError):
            Fragment.parse(case["journal"], case["path"])
        return
    fragment = Fragment.parse(case["journal"], case["path"])
    if "fragment" in case:
        assert fragment == fragment_of(case["fragment"])
        assert fragment.content_path == case["content_path"]


@pytest.mark.parametrize("case", cases("fragments", "extension"), ids=case_id)
def test_suffixes_name_their_codec(case: Case) -> None:
    if not case["ok"]:
        with pytest.raises(ValidationError):
            CompressionCodec.of_suffix(case["extension"])
        return
    codec = CompressionCodec.of_suffix(case["extension"])
    assert codec.name == case["codec"]
    assert codec.suffix == case["writes_back"]


@pytest.mark.parametrize("case", cases("fragments", "sha1"), ids=case_id)
def test_digests_travel_as_three_integers(case: Case) -> None:
    digest = bytes.fromhex(case["digest"])
    message = sum_to_proto(digest)
    assert [message.part1, message.part2, message.part3] == [case["part1"], case["part2"], case["part3"]]
    assert message.SerializeToString().hex() == case["wire"]
    assert sum_from_proto(message) == digest
    if "text" in case:
        assert hashlib.sha1(case["text"].encode()).digest() == digest


def test_codec_numbers_are_those_of_the_wire() -> None:
    assert {codec.name: codec.value for codec in CompressionCodec} == dict(pb.CompressionCodec.items())

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from consumer.message.mapping import Partitions, fnv1a_32
from protocol.errors import ValidationError
from tests.support.golden import Case, case_id, cases

TOPIC = [f"a/topic/part-{number:03d}" for number in range(443)]


@pytest.mark.parametrize("case", cases("mapping"), ids=case_id)
def test_keys_map_as_in_gazette(case: Case) -> None:
    of = case["partitions"]
    names = [of["format"] % (of["index_from"] + index) for index in range(of["count"])]
    assert names == case.get("partition_names", names)
    if not case["ok"]:
        with pytest.raises(ValidationError, match="create at least one"):
            Partitions(names)
        return
    partitions, key = Partitions(names), bytes.fromhex(case["key"])
    assert partitions.modulo(key) == case["modulo"]
    assert partitions.rendezvous(key) == case["rendezvous"]


@pytest.mark.parametrize(
    ("key", "modulo"),
    [("It always", 119), ("seems", 54), ("impossible", 308), ("until", 97), ("it is done.", 179)],
)
def test_modulo_vectors_of_the_wire_format(key: str, modulo: int) -> None:
    assert fnv1a_32(key.encode()) % 443 == modulo
    assert Partitions(TOPIC).modulo(key.encode()) == TOPIC[modulo]


@pytest.mark.parametrize(("key", "rendezvous"), [("It always", 21), ("seems", 179), ("impossible", 50), ("until", 13)])
def test_rendezvous_vectors_of_the_wire_format(key: str, rendezvous: int) -> None:
    assert Partitions(TOPIC[:400]).rendezvous(key.encode()) == TOPIC[rendezvous]


def test_fnv_vectors_of_the_wire_format() -> None:
    assert fnv1a_32(b"It always") == 0x5E1F62FD
    assert fnv1a_32(b"") == 0x811C9DC5


def test_rendezvous_is_its_definition() -> None:
    names = [*TOPIC[:20], TOPIC[3]]
    partitions = Partitions(names)
    for number in range(500):
        key = str(number).encode()
        chosen, heaviest = 0, 0
        for index, name in enumerate(names):
            weight = fnv1a_32(key) ^ fnv1a_32(name.encode())
            if weight > heaviest:
                chosen, heaviest = index, weight
        assert partitions.rendezvous(key) == names[chosen]


def test_a_key_that_weighs_nothing_goes_to_the_first_partition() -> None:
    assert Partitions(["same", "same"]).rendezvous(b"same") == "same"


@pytest.mark.parametrize("names", [["costarring", "liquid"], ["liquid", "costarring"]])
def test_of_partitions_with_one_digest_the_first_gets_every_key(names: list[str]) -> None:
    assert fnv1a_32(names[0].encode()) == fnv1a_32(names[1].encode())
    partitions = Partitions(names)
    assert {partitions.rendezvous(str(number).encode()) for number in range(100)} == {names[0]}


def test_a_new_partition_takes_keys_from_others_but_moves_none_between_them() -> None:
    before, after = Partitions(TOPIC[:10]), Partitions(TOPIC[:11])
    keys = [str(number).encode() for number in range(1000)]
    moved = [key for key in keys if before.rendezvous(key) != after.rendezvous(key)]
    assert {after.rendezvous(key) for key in moved} == {TOPIC[10]}


def test_random_choice_follows_its_generator_and_reaches_every_partition() -> None:
    partitions = Partitions(TOPIC[:4])
    chosen = [partitions.random(generator) for generator in [Random(7)] for _ in range(200)]
    assert chosen == [partitions.random(generator) for generator in [Random(7)] for _ in range(200)]
    assert set(Counter(chosen)) == set(TOPIC[:4])

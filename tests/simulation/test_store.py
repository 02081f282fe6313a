from __future__ import annotations

import hashlib
from dataclasses import dataclass

import pytest

from fragment.remote_listing import RemoteListing
from fragment.stores.blob_store import BlobNotFoundError, ListedObject
from protocol.codec import CompressionCodec
from protocol.errors import UnavailableError
from protocol.fragment import Fragment
from tests.simulation.network import Network
from tests.simulation.store import URL, Store, StoreFaults
from tests.simulation.world import Node, World

JOURNAL = "acme/orders"


def fragment(begin: int, content: bytes, journal: str = JOURNAL) -> Fragment:
    return Fragment(journal, begin, begin + len(content), hashlib.sha1(content).digest(), CompressionCodec.SNAPPY)


@dataclass
class Shop:
    world: World
    network: Network
    node: Node
    store: Store

    def put(self, begin: int, content: bytes, journal: str = JOURNAL) -> list[UnavailableError | None]:
        answers: list[UnavailableError | None] = []
        self.store.put(self.node, fragment(begin, content, journal).content_path, content, answers.append)
        self.world.run(self.world.now_s + 6.0)
        return answers

    def listed(self) -> list[ListedObject] | UnavailableError:
        answers: list[list[ListedObject] | UnavailableError] = []
        self.store.list_journal(self.node, JOURNAL, answers.append)
        self.world.run(self.world.now_s + 6.0)
        (answer,) = answers
        return answer

    def get(self, begin: int, content: bytes) -> bytes | BlobNotFoundError | UnavailableError:
        answers: list[bytes | BlobNotFoundError | UnavailableError] = []
        self.store.get(self.node, fragment(begin, content).content_path, answers.append, 1, 3)
        self.world.run(self.world.now_s + 6.0)
        (answer,) = answers
        return answer


def shop(faults: StoreFaults | None = None) -> Shop:
    world = World(0)
    network = Network(world)
    return Shop(world, network, world.node("b0"), Store(network, world.node("store"), faults))


def test_what_is_put_is_listed_and_got_under_the_names_of_fragments() -> None:
    it = shop()
    assert it.put(0, b"hello") == [None]
    it.put(7, b"other", "acme/orders/late")
    listing = RemoteListing(JOURNAL)
    objects = it.listed()
    assert isinstance(objects, list)
    listing.take(URL, objects, [JOURNAL, "acme/orders/late"])
    (found,) = listing.fragments
    assert (found.begin, found.end, found.codec, found.backing_store) == (0, 5, CompressionCodec.SNAPPY, URL)
    assert it.get(0, b"hello") == b"ell"
    assert isinstance(it.get(9, b"none"), BlobNotFoundError)
    (held,) = it.store.fragments(JOURNAL, (JOURNAL, "acme/orders/late"))
    assert held.is_sound
    assert held.content == b"hello"


def test_existence_and_removal() -> None:
    it = shop()
    it.put(0, b"hello")
    path = fragment(0, b"hello").content_path
    answers: list[object] = []
    it.store.exists(it.node, path, answers.append)
    it.world.run(20.0)
    it.store.remove(it.node, path, answers.append)
    it.world.run(40.0)
    it.store.exists(it.node, path, answers.append)
    it.world.run(60.0)
    assert answers == [True, None, False]


def test_a_put_may_take_effect_and_its_answer_be_lost() -> None:
    it = shop(StoreFaults(answer_loss_rate=1.0))
    (answer,) = it.put(0, b"hello")
    assert isinstance(answer, UnavailableError)
    assert len(it.store.fragments(JOURNAL)) == 1


@pytest.mark.parametrize("faults", [StoreFaults(error_rate=1.0), StoreFaults(is_down=True)], ids=["error", "down"])
def test_a_put_that_fails_leaves_nothing(faults: StoreFaults) -> None:
    it = shop(faults)
    (answer,) = it.put(0, b"hello")
    assert isinstance(answer, UnavailableError)
    assert isinstance(it.listed(), UnavailableError)
    assert it.store.fragments(JOURNAL) == []
    it.store.heal()
    assert it.put(0, b"hello") == [None]


def test_a_slow_put_happens_after_it_was_given_up() -> None:
    it = shop(StoreFaults(slow_rate=1.0, slow_s=1000.0))
    (answer,) = it.put(0, b"hello")
    assert isinstance(answer, UnavailableError)
    assert it.store.fragments(JOURNAL) == []
    it.world.run(2000.0)
    assert len(it.store.fragments(JOURNAL)) == 1


def test_a_listing_may_lag_but_a_get_does_not() -> None:
    it = shop(StoreFaults(list_lag_s=1000.0))
    it.put(0, b"hello")
    assert it.listed() == []
    assert it.get(0, b"hello") == b"ell"
    it.world.run(2000.0)
    assert len(it.store.fragments(JOURNAL)) == 1
    objects = it.listed()
    assert isinstance(objects, list)
    assert len(objects) == 1


def test_a_get_may_be_short_and_an_object_spoilt() -> None:
    it = shop()
    it.put(0, b"hello")
    it.store.faults.truncate_rate = 1.0
    answer = it.get(0, b"hello")
    assert isinstance(answer, bytes)
    assert len(answer) < 3
    assert it.store.corrupt() is not None
    assert not it.store.fragments(JOURNAL)[0].is_sound


def test_a_store_beyond_a_cut_does_not_answer() -> None:
    it = shop()
    it.network.cut(it.node, it.store.node)
    (answer,) = it.put(0, b"hello")
    assert isinstance(answer, UnavailableError)


def test_an_operator_may_remove_a_journal() -> None:
    it = shop()
    it.put(0, b"hello")
    it.store.remove_journal(JOURNAL)
    assert it.store.fragments(JOURNAL) == []
    assert it.store.corrupt() is None

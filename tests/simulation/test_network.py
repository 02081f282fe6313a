from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.simulation.network import Cut, End, Ending, Network, NetworkTimes, OnEnd, OnMessage, Stream
from tests.simulation.remote_call import Loss, call
from tests.simulation.world import Node, World

EOF_END = End(Ending.EOF)
LOST = End(Ending.LOST)


@dataclass
class Ears:
    """Whoever listens at one end."""

    messages: list[Any] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)


@dataclass
class Pair:
    world: World
    network: Network
    client: Node
    server: Node
    accepted: list[Stream] = field(default_factory=list)
    near: Ears = field(default_factory=Ears)
    far: Ears = field(default_factory=Ears)

    def accept(self, stream: Stream, method: str) -> tuple[OnMessage, OnEnd]:
        assert method == "Replicate"
        self.accepted.append(stream)
        return self.far.messages.append, self.far.ends.append

    def open(self) -> Stream:
        return self.network.open(
            self.client, self.server, "Replicate", self.near.messages.append, self.near.ends.append
        )


def pair(seed: int = 0, times: NetworkTimes | None = None) -> Pair:
    world = World(seed)
    network = Network(world, times)
    made = Pair(world, network, world.node("client"), world.node("server"))
    network.serve(made.server, made.accept)
    return made


@pytest.mark.parametrize("seed", range(5))
def test_messages_of_each_direction_arrive_in_order(seed: int) -> None:
    it = pair(seed, NetworkTimes(mean_s=1.0))
    stream = it.open()
    for number in range(50):
        assert stream.send(number)
    stream.half_close()
    it.world.run(1000.0)
    assert it.far.messages == list(range(50))
    assert it.far.ends == [EOF_END]
    for number in range(50):
        assert it.accepted[0].send(number)
    it.accepted[0].half_close("OK")
    it.world.run(2000.0)
    assert it.near.messages == list(range(50))
    assert it.near.ends == [End(Ending.EOF, "OK")]
    assert it.network.streams_of(it.client) == it.network.streams_of(it.server) == []


def test_order_survives_clogging_and_pauses_together() -> None:
    it = pair()
    stream = it.open()
    it.world.run(1.0)
    it.network.clog(it.client, it.server)
    stream.send(1)
    it.world.run(2.0)
    it.world.pause(it.server)
    stream.send(2)
    it.world.run(3.0)
    it.network.unclog(it.client, it.server)
    stream.send(3)
    it.world.run(4.0)
    assert it.far.messages == []
    it.world.resume(it.server)
    it.world.run(5.0)
    assert it.far.messages == [1, 2, 3]


def test_after_a_half_close_nothing_more_is_sent() -> None:
    it = pair()
    stream = it.open()
    stream.half_close()
    assert not stream.send(1)
    it.world.run(1.0)
    assert (it.far.messages, it.far.ends) == ([], [EOF_END])


def test_a_server_that_is_done_ends_the_call_for_both() -> None:
    it = pair()
    stream = it.open()
    it.world.run(1.0)
    it.accepted[0].half_close("WRONG_ROUTE")
    stream.send("unheard")
    it.world.run(2.0)
    assert it.near.ends == [End(Ending.EOF, "WRONG_ROUTE")]
    assert not stream.send("too late")
    assert (it.far.messages, it.far.ends) == ([], [])


def test_a_server_takes_a_cancelled_call_for_a_clean_end_at_first() -> None:
    it = pair()
    stream = it.open()
    stream.send(1)
    it.world.run(1.0)
    stream.cancel()
    it.world.run(2.0)
    assert it.far.ends == [EOF_END, End(Ending.CANCELLED)]
    assert it.near.ends == [], "whoever cancels wants to hear no more"
    assert not it.accepted[0].send("nobody is there")


def test_a_cancel_may_overtake_what_was_sent_before_it() -> None:
    outcomes = set()
    for seed in range(20):
        it = pair(seed)
        stream = it.open()
        it.world.run(1.0)
        stream.send(1)
        stream.cancel()
        it.world.run(2.0)
        outcomes.add(tuple(it.far.messages))
    assert outcomes == {(), (1,)}


def test_a_lost_message_takes_the_rest_of_its_direction_with_it() -> None:
    it = pair()
    stream = it.open()
    stream.send(1)
    it.world.run(1.0)
    it.network.cut(it.client, it.server)
    stream.send(2)
    it.world.run(1.5)
    it.network.heal()
    stream.send(3)
    it.accepted[0].send("the other way")
    it.world.run(2.0)
    assert it.far.messages == [1], "a later message never makes up for one that is missing"
    assert it.near.messages == ["the other way"]
    assert it.near.ends == [], "nobody was told"
    it.world.run(20.0)
    assert it.near.ends == [LOST]
    assert it.far.ends == [EOF_END, LOST]


def test_a_rejected_stream_is_known_to_be_lost_at_once() -> None:
    it = pair()
    it.open()
    it.world.run(1.0)
    it.network.cut(it.client, it.server, Cut.REJECTED)
    it.world.run(1.5)
    assert it.near.ends == [LOST]
    assert it.far.ends == [EOF_END, LOST]


def test_an_idle_stream_over_a_silent_cut_is_given_up_in_time() -> None:
    it = pair()
    it.open()
    it.world.run(1.0)
    it.network.cut(it.server, it.client)
    it.world.run(10.0)
    assert it.near.ends == []
    it.world.run(12.0)
    assert it.near.ends == [LOST]


def test_a_short_cut_of_an_idle_stream_is_not_even_noticed() -> None:
    it = pair()
    stream = it.open()
    it.world.run(1.0)
    it.network.cut(it.client, it.server)
    it.world.run(2.0)
    it.network.heal()
    it.world.run(30.0)
    assert stream.send(1)
    it.world.run(31.0)
    assert it.far.messages == [1]


@pytest.mark.parametrize("cut_too", [False, True])
def test_a_crash_breaks_the_streams_of_the_node(cut_too: bool) -> None:
    it = pair()
    stream = it.open()
    it.world.run(1.0)
    if cut_too:
        it.network.cut(it.server, it.client)
    it.world.crash(it.server)
    it.world.run(20.0)
    assert it.near.ends == [LOST]
    assert not stream.send(1)
    assert it.network.streams_of(it.server) == []


def test_a_server_hears_of_its_clients_death() -> None:
    it = pair()
    it.open()
    it.world.run(1.0)
    it.world.crash(it.client)
    it.world.run(2.0)
    assert it.far.ends == [EOF_END, LOST]


def test_a_machine_that_loses_power_says_no_word() -> None:
    it = pair()
    it.open()
    it.world.run(1.0)
    it.world.crash(it.server, power_lost=True)
    it.world.run(9.0)
    assert it.near.ends == []
    it.world.run(12.0)
    assert it.near.ends == [LOST]


def test_of_what_a_node_sent_before_it_died_a_beginning_arrives() -> None:
    lengths = set()
    for seed in range(40):
        it = pair(seed)
        stream = it.open()
        it.world.run(1.0)
        for number in range(3):
            stream.send(number)
        it.world.crash(it.client)
        it.world.run(2.0)
        assert it.far.messages == list(range(len(it.far.messages)))
        lengths.add(len(it.far.messages))
    assert lengths == {0, 1, 2, 3}


@pytest.mark.parametrize("why", ["down", "not serving in this life"])
def test_a_stream_to_nobody_is_lost(why: str) -> None:
    it = pair()
    it.world.crash(it.server)
    if why != "down":
        it.world.restart(it.server)
    it.open()
    it.world.run(1.0)
    assert it.near.ends == [LOST]
    assert it.accepted == []
    assert it.network.streams_of(it.server) == []


def test_a_random_drop_breaks_the_stream() -> None:
    it = pair(times=NetworkTimes(drop_rate=1.0))
    it.open()
    it.world.run(1.0)
    assert it.near.ends == [LOST]


def test_a_partition_cuts_both_ways_and_heals() -> None:
    it = pair()
    it.network.partition([it.client], [it.server], Cut.REJECTED)
    it.open()
    it.world.run(1.0)
    assert it.near.ends == [LOST]
    it.network.heal()
    it.open()
    it.world.run(2.0)
    assert len(it.accepted) == 1


# Calls.


def test_a_call_is_answered() -> None:
    it = pair()
    answers: list[str | None] = []
    call(it.network, it.client, it.server, lambda: "done", answers.append, timeout_s=5.0)
    it.world.run(10.0)
    assert answers == ["done"]


@pytest.mark.parametrize(
    ("loss", "is_done"), [(Loss(request_rate=1.0), False), (Loss(answer_rate=1.0), True)], ids=["request", "answer"]
)
def test_whoever_gets_no_answer_does_not_know(loss: Loss, is_done: bool) -> None:
    it = pair()
    done = iter(range(9))
    answers: list[int | None] = []
    call(it.network, it.client, it.server, lambda: next(done), answers.append, timeout_s=5.0, loss=loss)
    it.world.run(4.9)
    assert answers == []
    it.world.run(5.1)
    assert answers == [None]
    assert (next(done) > 0) is is_done


def test_a_slow_call_happens_after_it_was_given_up() -> None:
    it = pair()
    done_s: list[float] = []
    answers: list[float | None] = []

    def perform() -> float:
        done_s.append(it.world.now_s)
        return it.world.now_s

    call(it.network, it.client, it.server, perform, answers.append, timeout_s=5.0, loss=Loss(work_s=30.0))
    it.world.run(60.0)
    assert answers == [None]
    assert done_s[0] > 30.0


def test_an_answer_is_not_for_the_next_life_of_who_asked() -> None:
    it = pair()
    answers: list[int | None] = []
    call(it.network, it.client, it.server, lambda: 1, answers.append, timeout_s=5.0)
    it.world.crash(it.client)
    it.world.restart(it.client)
    it.world.run(10.0)
    assert answers == []


def test_calls_wait_for_a_paused_server_and_stop_at_a_cut() -> None:
    it = pair()
    answers: list[int | None] = []
    it.world.pause(it.server)
    call(it.network, it.client, it.server, lambda: 1, answers.append, timeout_s=5.0)
    it.world.run(2.0)
    assert answers == []
    it.world.resume(it.server)
    it.world.run(3.0)
    assert answers == [1]
    it.network.cut(it.server, it.client)
    call(it.network, it.client, it.server, lambda: 2, answers.append, timeout_s=5.0)
    it.world.run(20.0)
    assert answers == [1, None]

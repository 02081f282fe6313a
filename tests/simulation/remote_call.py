"""Calls: a question to another node and its answer, either of which may be lost.

Streams are for what cores speak over; this is for etcd and for stores, whose protocols are not ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.simulation.network import Link, Network
from tests.simulation.world import Node

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Loss:
    """Chances of one call: that its request gets lost, that its answer does, and how much longer it takes than the
    network needs."""

    request_rate: float = 0.0
    answer_rate: float = 0.0
    work_s: float = 0.0


NO_LOSS = Loss()


def call(
    network: Network,
    src: Node,
    dst: Node,
    perform: Callable[[], T],
    answered: Callable[[T | None], None],
    *,
    timeout_s: float,
    loss: Loss = NO_LOSS,
) -> None:
    """Have `perform` done at `dst`. `answered` gets what it returned, or None if no answer came in time: then it may
    have happened, may still happen later, or never."""
    _Call(network, src, dst, perform, answered, loss).begin(timeout_s)


class _Call:
    __slots__ = ("_answered", "_dst", "_is_settled", "_life", "_loss", "_network", "_perform", "_src")

    def __init__(
        self,
        network: Network,
        src: Node,
        dst: Node,
        perform: Callable[[], Any],
        answered: Callable[[Any], None],
        loss: Loss,
    ) -> None:
        self._network = network
        self._src = src
        self._dst = dst
        self._perform = perform
        self._answered = answered
        self._loss = loss
        self._life = src.life
        self._is_settled = False

    def begin(self, timeout_s: float) -> None:
        link = self._network.link(self._src, self._dst)
        chance = self._network.world.chance
        self._src.after(timeout_s, self._settle, None)
        if not self._loss.request_rate or chance.random() >= self._loss.request_rate:
            self._dst.after(self._network.delay_s(link) + self._loss.work_s, self._arrive, link)

    def _arrive(self, link: Link) -> None:
        if link.is_clogged:
            link.hold(self._dst, self._arrive, link)
        elif link.cut is None:
            self._answer(self._perform())

    def _answer(self, answer: object) -> None:
        network = self._network
        link = network.link(self._dst, self._src)
        lost = self._loss.answer_rate and network.world.chance.random() < self._loss.answer_rate
        if not lost and self._src.life == self._life:
            self._src.after(network.delay_s(link), self._return, link, answer)

    def _return(self, link: Link, answer: object) -> None:
        if link.is_clogged:
            link.hold(self._src, self._return, link, answer)
        elif link.cut is None:
            self._settle(answer)

    def _settle(self, answer: object) -> None:
        if not self._is_settled:
            self._is_settled = True
            self._answered(answer)

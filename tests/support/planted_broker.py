"""``gazctl serve`` with something about it changed, by a name that comes first: what a test cannot wait for, or has no
program of."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from broker import journal_broker, store_listing
from broker import main as broker_main
from fragment.cover_set import CoverSet
from fragment.index_refresh import list_cover
from fragment.spool_writer import SpoolWriter
from gazctl.main import main


def without_epochs() -> None:
    """As Gazette's own brokers are to ours: its key says nothing of what it can do."""
    vars(broker_main).update(EPOCHS=0, KIN=0)


def tidies_soon() -> None:
    """Retention, trimming and sweeping come every other second."""
    vars(journal_broker).update(TIDY_S=1.0, SWEEP_EVERY=1)


def waits_little_for_room() -> None:
    """Appends that find the disk's budget used up are told so soon."""
    vars(journal_broker).update(BUDGET_WAIT_S=0.1)


def lists_when_told() -> None:
    """No store is listed before SIGUSR1."""
    told = threading.Event()

    async def list_later(*args: Any) -> CoverSet:
        await asyncio.to_thread(told.wait)
        return await list_cover(*args)

    vars(store_listing).update(list_cover=list_later)
    signal.signal(signal.SIGUSR1, lambda *_: told.set())


def hangs_when_told() -> None:
    """Each that is waited for at the end has a second; and after SIGUSR1 the disk takes no content, nor lets go of who
    writes it."""
    within = vars(broker_main)["_within"]
    vars(broker_main).update(END_S=1.0, _within=lambda _, task, what: within(1.0, task, what))

    def hang(*_: object) -> None:
        threading.Event().wait()

    signal.signal(signal.SIGUSR1, lambda *_: setattr(SpoolWriter, "content", hang))


def lists_impatiently() -> None:
    """Appends wait for a first listing for two seconds."""
    vars(store_listing).update(FIRST_REFRESH_S_MAX=2.0)


PLANTED: dict[str, Callable[[], None]] = {
    "without-epochs": without_epochs,
    "tidies-soon": tidies_soon,
    "lists-when-told": lists_when_told,
    "waits-little-for-room": waits_little_for_room,
    "hangs-when-told": hangs_when_told,
    "lists-impatiently": lists_impatiently,
}

if __name__ == "__main__":
    PLANTED[sys.argv.pop(1)]()
    main()

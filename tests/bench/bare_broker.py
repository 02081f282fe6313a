"""``gazctl serve`` without durable heads: no commit records, and no epochs. For measuring what they cost, only."""

from __future__ import annotations

from broker import main as broker_main
from fragment.spool_file import SpoolFile
from gazctl.main import main


def _recorded(*_: object, **__: object) -> None:
    """Nothing is."""


if __name__ == "__main__":
    SpoolFile.record = _recorded  # type: ignore[method-assign]
    # Whoever does not say that it keeps epochs is replicated with by Gazette's rules.
    vars(broker_main)["EPOCHS"] = 0
    main()

"""What can go wrong with etcd, and which of it a caller can do something about.

A class of its own has a caller that acts differently on it.
"""

from __future__ import annotations


class EtcdError(Exception):
    """Root of what this package raises because of etcd."""


class EtcdUnavailableError(EtcdError):
    """No member that could be reached answered in time, or a member could not serve. Retrying may help."""

    def __init__(self, text: str, *, maybe_applied: bool) -> None:
        super().__init__(text)
        self.maybe_applied = maybe_applied
        """Whether what was asked may have happened nevertheless: then read before you write again."""


class EtcdFullError(EtcdUnavailableError):
    """No member takes writes or grants leases, since the store is at its quota. No other member will do better."""

    def __init__(self, text: str) -> None:
        remedy = "compact and defragment it, or raise its quota, then disarm the alarm"
        super().__init__(f"{text} (etcd is out of space: {remedy})", maybe_applied=False)


class CompactedError(EtcdError):
    """The revision asked for is no longer kept. List afresh."""

    def __init__(self, compact_revision: int | None = None) -> None:
        known = f": the oldest is {compact_revision}" if compact_revision else ""
        super().__init__(f"etcd has compacted away the revision asked for{known}")


class LeaseNotFoundError(EtcdError):
    """The lease has run out or was revoked, and its keys are gone."""


class EtcdDeniedError(EtcdError):
    """The user, its password or its rights are not good enough. An operator has to act."""


class StaleTokenError(EtcdDeniedError):
    """The token has run out, or its member has forgotten it. Nothing was done: a new token helps."""


class AuthDisabledError(EtcdError):
    """This etcd wants no users."""


class AnswerTooLargeError(EtcdError):
    """The answer was larger than we take in one message. Ask for less at a time."""


class EtcdRefusedError(EtcdError):
    """The request is wrong: etcd will refuse it again."""


class EtcdHistoryError(EtcdError):
    """This is another cluster, or the past of this one: it was wiped or restored from a backup.

    Nobody may take what it says for news. To believe it would be to drop every journal that the backup does not have.
    """

"""ClientSettings: which cluster a client speaks to, as whom, and for how long it waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from broker.client.retry import Retry, RetryPolicy
from protocol.auth import Keys
from protocol.endpoint import check_endpoint, endpoint_of
from protocol.errors import ValidationError, checked
from protocol.rpc.tls import PeerTls

DEFAULT_ADDRESS = "http://localhost:8080"


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """
    >>> ClientSettings.of("broker.example:8080", zone="eu-west-1a").addresses
    ('http://broker.example:8080',)
    """

    # Brokers that are asked when no better one is known. Any of them leads to all.
    addresses: tuple[str, ...] = (DEFAULT_ADDRESS,)
    # Where we are: of several brokers that can serve a read, one in this zone does.
    zone: str = ""
    # We sign a token of our own for each call, or send the one that we were given, or none.
    keys: Keys | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    # For endpoints that begin with https.
    tls: PeerTls | None = None
    # Below this folder is what ``file://`` URLs of fragments speak of. Without it, brokers read such fragments for us.
    file_root: Path | None = None
    # Whether fragments are read from their store, where a URL leads there, rather than through a broker.
    reads_stores: bool = True
    # What becomes of a call that fails, unless it is said otherwise with the call.
    retry: RetryPolicy = field(default_factory=Retry)
    connect_s: float = 10.0
    # For how long a call may make no progress at all. A read that waits for what is yet to be written makes none,
    # and nothing is wrong with that: after this time its broker is asked whether it is still there.
    stall_s: float = 30.0

    def __post_init__(self) -> None:
        if not self.addresses:
            raise ValidationError("expected the address of at least one broker", "addresses")
        for at, address in enumerate(self.addresses):
            checked(f"addresses[{at}]", check_endpoint, address)
        if self.keys is not None and self.token is not None:
            raise ValidationError("expected keys to sign tokens with, or a token, but not both", "token")
        for name in ("connect_s", "stall_s"):
            if getattr(self, name) <= 0:
                raise ValidationError("expected a time above zero", name)

    @classmethod
    def of(
        cls,
        *addresses: str,
        zone: str = "",
        keys: str | Keys | None = None,
        token: str | None = None,
        tls: PeerTls | None = None,
        file_root: Path | str | None = None,
        retry: RetryPolicy | None = None,
    ) -> ClientSettings:
        """From what people write: addresses without a scheme, keys in base64."""
        return cls(
            tuple(endpoint_of(address) for address in addresses) or (DEFAULT_ADDRESS,),
            zone,
            Keys.parse(keys) if isinstance(keys, str) else keys,
            token,
            tls,
            None if file_root is None else Path(file_root),
            retry=retry or Retry(),
        )

"""TLS from files, read again when they are renewed, so that no process is restarted for a certificate.

A set of files that does not fit together, such as a new certificate beside the old key while both are being replaced,
is left alone until it does.
"""

from __future__ import annotations

import logging
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from protocol.errors import ValidationError

_LOG = logging.getLogger(__name__)

_Signature = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class ServerTls:
    """`server-cert-file`, `server-cert-key-file` and `server-ca-file`. With a CA, clients need a certificate of it."""

    certificate_file: Path
    key_file: Path
    ca_file: Path | None = None


@dataclass(frozen=True, slots=True)
class PeerTls:
    """`peer-cert-file`, `peer-cert-key-file` and `peer-ca-file`: how we present ourselves to peers, and whom we trust.

    Without a CA those are trusted that gRPC brings along.
    """

    certificate_file: Path | None = None
    key_file: Path | None = None
    ca_file: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValidationError("a certificate and its key are given together or not at all", "peer-cert-file")


@dataclass(frozen=True, slots=True)
class _Contents:
    certificate: bytes | None
    key: bytes | None
    ca: bytes | None


class _Files:
    """The contents of a certificate, its key and a CA, as of the last time that they fitted together."""

    def __init__(self, files: ServerTls | PeerTls) -> None:
        self._files = files
        self._seen = self._signature()
        self.contents = self._read()

    def is_renewed(self) -> bool:
        """Whether there are new `contents`. Never raises."""
        try:
            signature = self._signature()
            if signature == self._seen:
                return False
            self._seen = signature
            self.contents = self._read()
        except (OSError, ValidationError) as error:
            _LOG.warning("renewed TLS files cannot be used (those read before still are)", extra={"error": str(error)})
            return False
        _LOG.info("TLS files were renewed", extra={"certificate": str(self._files.certificate_file)})
        return True

    def _signature(self) -> _Signature:
        files = (self._files.certificate_file, self._files.key_file, self._files.ca_file)
        stats = [os.stat(path) for path in files if path is not None]
        return tuple((stat.st_mtime_ns, stat.st_ino, stat.st_size) for stat in stats)

    def _read(self) -> _Contents:
        files = self._files
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            if files.certificate_file and files.key_file:
                # With a password, or OpenSSL would ask for one at the terminal.
                context.load_cert_chain(files.certificate_file, files.key_file, password="")
            if files.ca_file:
                context.load_verify_locations(files.ca_file)
        except ssl.SSLError as error:
            raise ValidationError(
                f"{files.certificate_file}, {files.key_file} and {files.ca_file} are not a certificate, its key and "
                f"certificates of authorities in PEM ({error.reason})"
            ) from error
        return _Contents(_bytes(files.certificate_file), _bytes(files.key_file), _bytes(files.ca_file))


def _bytes(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes()


def server_credentials(tls: ServerTls) -> grpc.ServerCredentials:
    """gRPC asks at every handshake whether there is a newer certificate, on a thread of its own."""
    files = _Files(tls)

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        return _configuration(files.contents) if files.is_renewed() else None

    return grpc.dynamic_ssl_server_credentials(
        _configuration(files.contents),
        renewed,  # type: ignore[arg-type]
        require_client_authentication=tls.ca_file is not None,
    )


def server_context(tls: ServerTls) -> ssl.SSLContext:
    """The same for servers other than gRPC's, which ask with every handshake too: a renewal is good for the next."""
    files = _Files(tls)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls.ca_file:
        context.verify_mode = ssl.CERT_REQUIRED
    _load(context, tls)

    def handshake(_: ssl.SSLObject, _name: str | None, own: ssl.SSLContext) -> None:
        if files.is_renewed():
            _load(own, tls)

    context.sni_callback = handshake
    return context


def _load(context: ssl.SSLContext, tls: ServerTls) -> None:
    context.load_cert_chain(tls.certificate_file, tls.key_file, password="")
    if tls.ca_file:
        context.load_verify_locations(tls.ca_file)


def _configuration(contents: _Contents) -> grpc.ServerCertificateConfiguration:
    assert contents.key is not None
    assert contents.certificate is not None
    pair = (contents.key, contents.certificate)
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=contents.ca)


class PeerCredentials:
    """The credentials of new channels. Those of a channel are for good: one made before a renewal is to be replaced."""

    def __init__(self, tls: PeerTls) -> None:
        self._files = _Files(tls)
        self.current = self._made()

    def refresh(self) -> None:
        """Looks at the files. `current` is another object if they were renewed."""
        if self._files.is_renewed():
            self.current = self._made()

    def _made(self) -> grpc.ChannelCredentials:
        contents = self._files.contents
        return grpc.ssl_channel_credentials(contents.ca, contents.key, contents.certificate)

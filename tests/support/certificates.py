"""A certificate authority for one test, and what it has signed: a server at 127.0.0.1 and a client."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True)
class Authority:
    """Signs as many certificates as a test asks for."""

    key: _Key
    certificate: x509.Certificate

    @classmethod
    def create(cls) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        return cls(key, _signed("test authority", key, "test authority", key, is_authority=True))

    def issue(self, folder: Path, *, is_expired: bool = False) -> None:
        """Files `ca.pem`, `certificate.pem` and `key.pem`, in place of those that were there."""
        folder.mkdir(exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _signed("test", key, "test authority", self.key, is_authority=False, is_expired=is_expired)
        (folder / "ca.pem").write_bytes(_pem(self.certificate))
        (folder / "certificate.pem").write_bytes(_pem(certificate))
        (folder / "key.pem").write_bytes(_key_pem(key))


@dataclass(frozen=True)
class Certificates:
    folder: Path
    ca: bytes
    certificate: bytes
    key: bytes

    @classmethod
    def create(cls, folder: Path) -> Certificates:
        """The same certificate serves both sides."""
        ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        ca = _signed("test authority", ca_key, "test authority", ca_key, is_authority=True)
        certificate = _signed("test", key, "test authority", ca_key, is_authority=False)
        made = cls(folder, _pem(ca), _pem(certificate), _key_pem(key))
        for name in ("ca", "certificate", "key"):
            (folder / f"{name}.pem").write_bytes(getattr(made, name))
        return made

    def etcd_flags(self) -> tuple[str, ...]:
        path = {name: str(self.folder / f"{name}.pem") for name in ("ca", "certificate", "key")}
        files = ("--cert-file", path["certificate"], "--key-file", path["key"], "--trusted-ca-file", path["ca"])
        return (*files, "--client-cert-auth")

    def grpc_credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.ca, self.key, self.certificate)


def _signed(
    subject: str, key: _Key, issuer: str, issuer_key: _Key, *, is_authority: bool, is_expired: bool = False
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=7 if is_expired else 0)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), True)
        .sign(issuer_key, hashes.SHA256())
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: _Key) -> bytes:
    private = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption())

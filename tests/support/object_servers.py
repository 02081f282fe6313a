"""Object stores that tests start for themselves: real servers, in this process or beside it.

Each is a context manager. moto stands for S3, gcp-storage-emulator for GCS, Azurite for Azure; the last is a Node.js
program that is installed into ``.venv/azurite`` by npm, once, where there is an npm.
"""

# The emulator's own attributes are all underscored.
# ruff: noqa: SLF001

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

AZURITE_HOME = Path(sys.prefix) / "azurite"
AZURITE_VERSION = "3.37.0"
AZURE_ACCOUNT = "devstoreaccount1"
# The account of every Azurite, given in its documentation.
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
BUCKET = "fragments"


@contextmanager
def _environment(**variables: str) -> Iterator[pytest.MonkeyPatch]:
    """Set for the libraries of AWS and Google, which look nowhere else."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield patch


@contextmanager
def s3_server() -> Iterator[str]:
    """The endpoint of an S3 with one bucket."""
    with _environment(
        AWS_ACCESS_KEY_ID="test",
        AWS_SECRET_ACCESS_KEY="secret",
        AWS_DEFAULT_REGION="us-east-1",
        AWS_EC2_METADATA_DISABLED="true",
        AWS_CONFIG_FILE=os.devnull,
        AWS_SHARED_CREDENTIALS_FILE=os.devnull,
    ) as patch:
        from moto.s3.models import s3_backends
        from moto.server import ThreadedMotoServer

        # S3 itself wants parts of 5 MiB; tests need not.
        patch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1024)
        server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
        _, port = server.get_host_and_port()
        s3_backends["123456789012"]["global"].create_bucket(BUCKET, "us-east-1")
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.stop()


def put_s3_object(key: str, content: bytes) -> None:
    """Into the bucket of the S3 that runs in this process, without a request."""
    from moto.s3.models import s3_backends

    s3_backends["123456789012"]["global"].put_object(BUCKET, key, content)


@contextmanager
def gcs_server(folder: Path) -> Iterator[str]:
    """The endpoint of a GCS with one bucket, and credentials of a service account that can sign."""
    from gcp_storage_emulator import server as emulator  # type: ignore[import-untyped]

    _page_listings(emulator)
    server = emulator.create_server("127.0.0.1", 0, in_memory=True, default_bucket=BUCKET)
    server.start()
    # It serves one connection at a time, and lets no more than five wait unless told otherwise.
    server._api._httpd.socket.listen(128)
    port = server._api._httpd.server_address[1]
    try:
        with _token_server() as tokens:
            key_file = folder / "service-account.json"
            key_file.write_text(json.dumps(_service_account(tokens)))
            with _environment(
                STORAGE_EMULATOR_HOST=f"http://127.0.0.1:{port}",
                GOOGLE_APPLICATION_CREDENTIALS=str(key_file),
                NO_GCE_CHECK="true",
            ):
                yield f"http://127.0.0.1:{port}"
    finally:
        server.stop()


def _page_listings(emulator: Any) -> None:
    """The emulator answers with everything at once; GCS does as it is asked (``maxResults``, ``pageToken``)."""
    from gcp_storage_emulator.handlers import objects  # type: ignore[import-untyped]

    def paged(request: Any, response: Any, storage: Any) -> None:
        objects.ls(request, response, storage)
        if response.status != 200 or "maxResults" not in request.query:
            return
        answer = json.loads(response._content)
        after = request.query.get("pageToken", [""])[0]
        items = sorted((item for item in answer["items"] if item["name"] > after), key=lambda item: item["name"])
        size = int(request.query["maxResults"][0])
        page = {"kind": "storage#objects", "items": items[:size]}
        if len(items) > size:
            page["nextPageToken"] = items[size - 1]["name"]
        response.json(page)

    for _, methods in emulator.HANDLERS:
        if methods.get("GET") is objects.ls:
            methods["GET"] = paged


@contextmanager
def _token_server() -> Iterator[str]:
    """Gives out access tokens, as Google does to whoever shows a service account's signature."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = json.dumps({"access_token": "token", "expires_in": 3600, "token_type": "Bearer"}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/token"
        finally:
            server.shutdown()
            thread.join()


def _service_account(token_uri: str) -> dict[str, str]:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return {
        "type": "service_account",
        "project_id": "test-project",
        "private_key_id": "1",
        "private_key": _pem(key),
        "client_email": "broker@test-project.iam.gserviceaccount.com",
        "client_id": "1",
        "token_uri": token_uri,
    }


def _pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> str:
    private = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption()).decode()


@dataclass(frozen=True, slots=True)
class AzureServer:
    endpoint: str
    """With TLS: signed URLs are for HTTPS only, and so are tokens."""
    certificate: Path


def why_no_azurite() -> str | None:
    """The reason to skip tests that need Azurite, after an attempt to install it."""
    package = AZURITE_HOME / "node_modules/azurite/package.json"
    if package.exists() and json.loads(package.read_text())["version"] == AZURITE_VERSION:
        return None
    if shutil.which("npm") is None or shutil.which("node") is None:
        return "Azurite needs Node.js and npm, which are not on the PATH"
    AZURITE_HOME.mkdir(parents=True, exist_ok=True)
    install = ["npm", "install", "--prefix", str(AZURITE_HOME), "--no-audit", "--no-fund", f"azurite@{AZURITE_VERSION}"]
    try:
        subprocess.run(install, check=True, capture_output=True, text=True, timeout=300)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        return f"npm could not install Azurite: {str(error.stderr or error)[-300:]}"
    return None


@contextmanager
def azure_server(folder: Path) -> Iterator[AzureServer]:
    certificate, key_file = _certificate(folder)
    command = [
        str(AZURITE_HOME / "node_modules/.bin/azurite-blob"),
        *("--blobHost", "127.0.0.1", "--blobPort", "0"),
        *("--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck"),
        *("--cert", str(certificate), "--key", str(key_file), "--oauth", "basic"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            said = ""
            for line in process.stdout:
                said += line
                if "listens on https://" in line:
                    break
            else:
                raise AssertionError(f"Azurite did not start: {said[-1000:]}")
            # What it says later is of no interest, but must not fill the pipe.
            threading.Thread(target=process.stdout.read, daemon=True).start()
            endpoint = line.split("listens on ")[1].strip()
            yield AzureServer(f"{endpoint}/{AZURE_ACCOUNT}", certificate)
        finally:
            process.terminate()


def _certificate(folder: Path) -> tuple[Path, Path]:
    """Of 127.0.0.1, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "azurite.pem", folder / "azurite-key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_text(_pem(key))
    return paths

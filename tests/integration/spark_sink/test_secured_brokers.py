"""Spark and brokers that want tokens and certificates: written and read back, and turned away with a reason."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
import pytest_asyncio
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import spark_readers
from broker.client.blocking import BlockingClient
from broker.client.settings import ClientSettings
from protocol.auth import Capability, Claims, Keys
from protocol.errors import UnauthenticatedError
from protocol.rpc.tls import PeerTls
from protocol.selector import LabelSelector
from tests.support.broker_cluster import broker_cluster, journal_spec
from tests.support.certificates import Certificates
from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually
from tests.support.object_servers import BUCKET
from tests.support.spark_driver import ROWS, numbered

SECRET = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA=="
STORED, FRESH, COMMITS = "secured/stored", "secured/fresh", "secured/commits"


@dataclass(frozen=True)
class Secured:
    """A cluster, and what its users have on their disks."""

    address: str
    folder: Path

    @property
    def tls(self) -> dict[str, str]:
        files = {"trustedCaFile": "ca.pem", "certFile": "certificate.pem", "certKeyFile": "key.pem"}
        return {"broker": self.address, **{name: str(self.folder / file) for name, file in files.items()}}

    @property
    def with_keys(self) -> dict[str, str]:
        return {**self.tls, "authKeysFile": str(self.folder / "auth-keys")}

    def has_stored(self, journal: str) -> bool:
        tls = PeerTls(*(self.folder / f"{name}.pem" for name in ("certificate", "key", "ca")))
        with BlockingClient(settings=ClientSettings.of(self.address, keys=SECRET, tls=tls)) as client:
            return any(of.fragment.backing_store for of in client.fragments(journal))


def token(capability: int, life_s: int = 600) -> str:
    now_s = int(datetime.now(UTC).timestamp())
    return Keys.parse(SECRET).sign(Claims(capability, LabelSelector(), now_s + life_s))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def secured(
    shared_etcd: EtcdServer, s3_endpoint: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Secured]:
    folder = tmp_path_factory.mktemp("secured-brokers")
    certificates = Certificates.create(folder)
    certificate, key, ca = (str(folder / f"{name}.pem") for name in ("certificate", "key", "ca"))
    (folder / "auth-keys").write_text(f"{SECRET}\n")
    flags = (
        *("--broker.auth-keys", SECRET),
        *("--broker.server-cert-file", certificate, "--broker.server-cert-key-file", key),
        *("--broker.server-ca-file", ca, "--broker.peer-ca-file", ca),
        *("--broker.peer-cert-file", certificate, "--broker.peer-cert-key-file", key),
    )
    async with broker_cluster(
        folder,
        shared_etcd.endpoint,
        "/secured-brokers",
        *("broker-0", "broker-1"),
        flags=flags,
        credentials=certificates.grpc_credentials(),
        token=token(Capability.ALL),
    ) as cluster:
        store = f"s3://{BUCKET}/secured/?endpoint={s3_endpoint}"
        await cluster.apply(
            # Of the first, fragments are stored while the test runs; of the others none is.
            journal_spec(STORED, 2, length=1 << 10, stores=(store,)),
            journal_spec(FRESH, 2, length=1 << 26, stores=(store,)),
            journal_spec(COMMITS, 2, length=1 << 26, stores=(store,)),
        )
        yield Secured(f"https://{cluster.brokers['broker-0'].address}", folder)


def write(spark: SparkSession, options: dict[str, str]) -> None:
    numbered(spark).write.format("gazette").mode("append").options(**options).save()


def read(spark: SparkSession, options: dict[str, str]) -> list[int]:
    table = spark.read.format("gazette").options(**options).option("framing", "json").schema("n long").load()
    return sorted(row["n"] for row in table.collect())


@pytest.mark.asyncio(loop_scope="module")
async def test_rows_are_written_and_read_back_with_keys_and_with_a_token(spark: SparkSession, secured: Secured) -> None:
    token_file = secured.folder / "token"
    token_file.write_text(token(Capability.ALL))
    transaction = {"commitJournal": COMMITS, "txnAppId": "daily", "txnVersion": "1"}
    with_token = {**secured.tls, "tokenFile": str(token_file)}
    write(spark, {**secured.with_keys, "journal": STORED, **transaction})
    write(spark, {**with_token, "selector": f"name={FRESH}", "keyColumn": "key"})
    await eventually(lambda: secured.has_stored(STORED), "a fragment to be stored")
    for shown in (secured.with_keys, with_token):
        # One comes from the store, by URLs that a broker signs for those it believes; the other through brokers.
        for journal in (STORED, FRESH):
            assert read(spark, {**shown, "journal": journal}) == [*range(ROWS)]
    offsets = spark_readers.resolve_offsets(**with_token, journal=FRESH)
    assert offsets[FRESH][1] > 0


def test_a_token_that_was_renewed_counts_at_once(spark: SparkSession, secured: Secured) -> None:
    """In the processes of Spark as well, which are the same ones for both reads."""
    token_file = secured.folder / "renewed-token"
    options = {**secured.tls, "tokenFile": str(token_file), "journal": FRESH}
    token_file.write_text(token(Capability.ALL, life_s=-600))
    with pytest.raises(PySparkException, match="tokenFile: the token there has run out"):
        read(spark, options)
    token_file.write_text(token(Capability.LIST))
    with pytest.raises(PySparkException, match="tokenFile: this is not granted: ask for a token that allows it"):
        read(spark, options)
    token_file.write_text(token(Capability.ALL))
    read(spark, options)


def test_without_a_token_the_error_says_which_options_there_are(spark: SparkSession, secured: Secured) -> None:
    options = {**secured.tls, "journal": FRESH}
    advice = "The brokers want a token: give one of the options authKeysFile, authKeysEnv, tokenFile, tokenEnv"
    for what in (read, write):
        with pytest.raises(PySparkException, match=advice):
            what(spark, options)
    with pytest.raises(UnauthenticatedError, match=advice):
        spark_readers.resolve_offsets(**options)


def test_a_secret_in_an_option_is_refused_and_not_repeated(spark: SparkSession, secured: Secured) -> None:
    for what in (read, write):
        with pytest.raises(PySparkException, match="a secret must not be one") as raised:
            what(spark, {**secured.tls, "journal": FRESH, "authKeys": SECRET})
        assert SECRET not in str(raised.value)


def test_a_file_that_is_missing_is_told_before_anything_is_written(spark: SparkSession, secured: Secured) -> None:
    options = {**secured.tls, "journal": FRESH, "tokenFile": str(secured.folder / "nobody")}
    for what in (read, write):
        with pytest.raises(PySparkException, match=r"tokenFile: .*nobody cannot be read on this machine"):
            what(spark, options)

from __future__ import annotations

from collections.abc import Awaitable

from broker.store_health_api import StoreHealthApi
from fragment.stores.health import Health
from protocol.gen import journal_pb2 as pb
from protocol.validation import validate
from tests.support.journal_cluster import ROOT, A, JournalCluster
from tests.support.journal_cluster import STORE as HERE


def api_of(cluster: JournalCluster, watched: dict[str, Health] | None = None) -> StoreHealthApi:
    async def health(known: Health) -> Health:
        return known

    def known(url: str) -> Awaitable[Health] | None:
        found = (watched or {}).get(url)
        return health(found) if found else None

    return StoreHealthApi(ROOT, A, lambda: cluster.view, cluster.stores.open, known)


async def asked(api: StoreHealthApi, store: str, **fields: object) -> pb.FragmentStoreHealthResponse:
    request = pb.FragmentStoreHealthRequest(fragment_store=store, **fields)  # type: ignore[arg-type]
    validate(request)
    response = await api.store_health(request)
    validate(response)
    return response


async def test_a_store_that_can_be_used_is_healthy(cluster: JournalCluster) -> None:
    response = await asked(api_of(cluster), HERE)
    assert (response.status, response.store_health_error) == (pb.OK, "")
    assert response.header.process_id.suffix == A.suffix
    assert (cluster.folder / "root/store/.test/health-check").exists()


async def test_a_store_that_cannot_be_used_says_why(cluster: JournalCluster) -> None:
    for store in ("file:///missing/", "file:///store/?bogus=1", "file:///a%00b/"):
        response = await asked(api_of(cluster), store)
        assert response.status == pb.FRAGMENT_STORE_UNHEALTHY
        assert response.store_health_error


async def test_what_is_known_of_a_store_is_not_found_out_anew(cluster: JournalCluster) -> None:
    sick = api_of(cluster, {HERE: Health(3, "it is full")})
    assert (await asked(sick, HERE)).store_health_error == "it is full"
    well = api_of(cluster, {HERE: Health(3)})
    assert (await asked(well, HERE)).status == pb.OK
    assert not (cluster.folder / "root/store/.test").exists()


async def test_whether_objects_can_be_deleted_is_tried_if_asked_for(cluster: JournalCluster) -> None:
    api = api_of(cluster, {HERE: Health(3)})
    assert (await asked(api, HERE, check_delete=True, check_delete_prefix="probe/")).status == pb.OK
    assert (cluster.folder / "root/store/probe").is_dir()
    (cluster.folder / "root/store/blocked").write_bytes(b"a file where a folder should be")
    response = await asked(api, HERE, check_delete=True, check_delete_prefix="blocked/")
    assert response.status == pb.FRAGMENT_STORE_UNHEALTHY

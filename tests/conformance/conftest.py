from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.object_servers import AzureServer, azure_server, gcs_server, why_no_azurite


@pytest.fixture(scope="session")
def gcs_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with gcs_server(tmp_path_factory.mktemp("gcs")) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    if reason := why_no_azurite():
        pytest.skip(reason)
    with azure_server(tmp_path_factory.mktemp("azurite")) as server:
        yield server

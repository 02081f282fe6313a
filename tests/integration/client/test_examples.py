"""What the docstrings tell people to write does what they say."""

from __future__ import annotations

import asyncio
import textwrap
from types import ModuleType

import pytest

from broker.client import blocking, client
from broker.client.client import Client
from broker.client.journal_change import ANY_REVISION, Delete, Upsert
from broker.client.settings import ClientSettings
from tests.support.broker_cluster import journal_spec

ADDRESS = "localhost:8080"
JOURNAL = "my/journal"


def example(module: ModuleType, address: str) -> str:
    """The indented lines of its docstring, for the brokers there are."""
    assert module.__doc__ is not None
    lines = [line for line in module.__doc__.splitlines() if line.startswith("    ")]
    code = textwrap.dedent("\n".join(lines))
    assert ADDRESS in code
    return code.replace(ADDRESS, address)


@pytest.fixture
async def address(client: Client, settings: ClientSettings) -> str:
    await client.apply(Delete(JOURNAL, ANY_REVISION))
    await client.apply(Upsert(journal_spec(JOURNAL, replication=1, stores=())))
    return settings.addresses[0]


async def test_the_two_lines_a_newcomer_needs(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = example(client, address)
    names: dict[str, object] = {"Client": Client}
    exec(f"async def example() -> None:\n{textwrap.indent(code, '    ')}", names)
    running = asyncio.get_running_loop().create_task(names["example"]())  # type: ignore[operator]
    async with asyncio.timeout(30):
        # It waits for more lines, for ever.
        while "hello" not in capsys.readouterr().out:
            assert not running.done()
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait([running])


async def test_the_same_without_asyncio(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = example(blocking, address)
    await asyncio.to_thread(exec, code, {"BlockingClient": blocking.BlockingClient})
    assert "hello" in capsys.readouterr().out

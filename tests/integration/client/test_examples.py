"""What the docstrings tell people to write does what they say."""

from __future__ import annotations

import asyncio
import inspect
import re
import textwrap
from collections.abc import Coroutine
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from broker.client import blocking
from broker.client import client as client_module
from broker.client.client import Client
from broker.client.journal_change import ANY_REVISION, Delete, Upsert
from broker.client.retry import Retry
from broker.client.retrying_read import WRITE_HEAD
from broker.client.settings import ClientSettings
from protocol.errors import RefusedError
from tests.support.broker_cluster import journal_spec

ADDRESS = "localhost:8080"
JOURNAL, OTHER = "my/journal", "my/other"
ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
DOCUMENT = ROOT / "docs" / "python-client.md"


def code_of(documented: object) -> str:
    """What its docstring has to show, which is the last thing in it."""
    _, _, code = (inspect.getdoc(documented) or "").partition("::\n\n")
    return textwrap.dedent(code)


def example(module: ModuleType, address: str) -> str:
    """For the brokers there are."""
    code = code_of(module)
    assert ADDRESS in code
    return code.replace(ADDRESS, address)


def coroutine(code: str, names: dict[str, object]) -> Coroutine[object, object, None]:
    exec(f"async def example() -> None:\n{textwrap.indent(code, '    ')}", names)
    made: Coroutine[object, object, None] = names["example"]()  # type: ignore[operator]
    return made


@pytest.fixture
async def address(client: Client, settings: ClientSettings) -> str:
    for name in (JOURNAL, OTHER):
        await client.apply(Delete(name, ANY_REVISION))
        await client.apply(Upsert(journal_spec(name, replication=1, stores=())))
    return settings.addresses[0]


async def test_the_two_lines_a_newcomer_needs(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    running = asyncio.get_running_loop().create_task(coroutine(example(client_module, address), {"Client": Client}))
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


NAMES = (Retry, RefusedError, Upsert, aclosing, replace)
METHODS = [name for name in vars(Client) if not name.startswith("_")]


@pytest.mark.parametrize("method", METHODS)
async def test_every_method_shows_how_it_is_used(
    method: str, client: Client, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = code_of(getattr(Client, method))
    assert f"client.{method}(" in code
    names: dict[str, object] = {each.__name__: each for each in NAMES}
    names |= {"client": client, "WRITE_HEAD": WRITE_HEAD}
    await client.append(JOURNAL, b"hello\n")
    async with asyncio.timeout(30):
        await coroutine(code, names)
    printed = capsys.readouterr().out
    assert SHOWN[method] in printed, printed


SHOWN = {
    "append": "WRONG_APPEND_OFFSET and nothing was written",
    "append_service": "all done, up to 11",
    "read": "b'hello\\n' 6 6",
    "read_lines": "b'hello' 6",
    "read_metadata": "it ends at 6",
    "list": JOURNAL,
    "watch": f"'{JOURNAL}'",
    "apply": "",
    "fragments": "not stored yet",
    "store_health": "",
}


async def test_the_screen_of_the_readme(client: Client, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All of it, as a script."""
    # The one after it is for Spark, and run with it.
    code, _ = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.M | re.S)
    await client.append(JOURNAL, b"old\n")
    await asyncio.to_thread(exec, code.replace(ADDRESS, address), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert "b'hello'" in printed
    assert JOURNAL in printed


async def test_the_document_shows_what_comes_of_its_examples(
    client: Client, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One after the other, each with what it prints below it."""
    blocks = re.findall(r"^```python\n(.*?)^```\n\n```\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.M | re.S)
    assert len(blocks) == DOCUMENT.read_text(encoding="utf-8").count("```python")
    await client.append(OTHER)
    mark = "-- the next one --"
    code = "\n".join(f"{block}\nprint({mark!r})" for block, _ in blocks)
    names: dict[str, object] = {"client": client, "Client": Client}
    async with asyncio.timeout(60):
        await coroutine(code.replace(ADDRESS, address), names)
    printed = capsys.readouterr().out.replace(address, f"http://{ADDRESS}").split(f"{mark}\n")
    assert printed == [*(expected for _, expected in blocks), ""]

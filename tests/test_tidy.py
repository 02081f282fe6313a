"""The rules of the house that a machine can check. ARCHITECTURE.md gives the reasons."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

PACKAGES = ("allocator", "broker", "consumer", "fragment", "gazctl", "protocol", "spark_readers")
FOLDERS = {*PACKAGES, "tests", "examples", "docs"}

# Who may import whom. A package not named here falls under the longest name it begins with.
MAY_IMPORT: dict[str, set[str]] = {
    "protocol": set(),
    "protocol.rpc": {"protocol"},
    "allocator": set(),
    "fragment": {"protocol"},
    "consumer.message": {"protocol"},
    "broker.client": {"protocol", "protocol.rpc", "fragment", "consumer.message"},
    "broker": {"protocol", "protocol.rpc", "fragment", "allocator", "broker.client"},
    "consumer": {"protocol", "protocol.rpc", "allocator", "broker.client", "consumer.message"},
    "spark_readers": {"protocol", "protocol.rpc", "fragment", "broker.client", "consumer.message"},
    "gazctl": {"protocol", "allocator", "fragment", "broker", "broker.client", "consumer", "consumer.message"}
    | {"protocol.rpc", "spark_readers"},
    "examples": {"broker.client", "consumer", "consumer.message", "gazctl", "protocol", "spark_readers"},
}

# Packages and modules that decide and never await: no clock, no chance, no input or output of any kind.
CORES = (
    *("protocol", "consumer.message"),
    *("fragment.cover_set", "fragment.index", "fragment.remote_listing"),
    *("fragment.persist_item", "fragment.persist_destination", "fragment.persist_queue", "fragment.persist_ledger"),
    *("fragment.spool", "fragment.spool_log", "fragment.spool_recovery"),
    *("fragment.encoder", "fragment.decoder", "fragment.zstd_frames"),
    *("allocator.key_event", "allocator.key_value", "allocator.transaction", "allocator.etcd_errors"),
    *("allocator.keyspace", "allocator.keyspace_view", "allocator.lease", "allocator.keys", "allocator.state"),
    *("allocator.placement", "allocator.augmenting_path", "allocator.solve"),
    *("allocator.member_loads", "allocator.converge"),
    *("broker.journal_item", "broker.broker_member", "broker.cluster_keys", "broker.resolution", "broker.resolver"),
    *("broker.slot", "broker.notice", "broker.replica", "broker.proposal", "broker.pipeline", "broker.replication"),
    *("broker.append_event", "broker.append_effect", "broker.append_fsm", "broker.append_run", "broker.append_wire"),
    *("broker.replication_message", "broker.replication_wire", "broker.journal_transaction", "broker.flow_control"),
    *(
        "broker.answer_header",
        "broker.read_message",
        "broker.read_cursor",
        "broker.listing",
        "broker.apply_plan",
        "broker.peer",
        "broker.unpersisted",
    ),
    *("broker.http_target", "broker.http_headers", "broker.http_cors"),
    *("broker.client.answer", "broker.client.outcome", "broker.client.retry", "broker.client.route_cache"),
    *("broker.append_state", "broker.append_demands", "broker.append_content"),
    *("broker.head_opening", "broker.durable_head", "broker.held_copies", "broker.copy_settling", "broker.head_status"),
    *("broker.client.dispatch", "broker.client.append_request", "broker.client.append_queue"),
    *("broker.client.read_message", "broker.client.line_buffer", "broker.client.listing"),
    *("broker.client.journal_change",),
    *("spark_readers.sink_options", "spark_readers.row_framing", "spark_readers.arrow_values"),
    *("spark_readers.commit_record", "spark_readers.broker_access"),
    *("spark_readers.read_options", "spark_readers.path_keys", "spark_readers.clock_summary"),
    *("spark_readers.commit_sieve", "spark_readers.fragment_task", "spark_readers.fragment_table"),
    *("spark_readers.scan_plan", "spark_readers.message_batches", "spark_readers.uuid_extract"),
    *("spark_readers.json_schema", "spark_readers.foresight", "spark_readers.summary_cache"),
    *("spark_readers.journal_selectors",),
    *("spark_readers.stream_offset", "spark_readers.admission", "spark_readers.stream_backlog"),
)
# Packages that people use by their name alone. Their functions import what they need when they are called.
FRONT_DOORS = {"spark_readers"}
# What is not a core although the package around it is.
SHELLS = ("protocol.rpc",)
# Ports: types alone, which cores may name. Their methods are for shells to await.
PORTS = ("fragment.stores.blob_store",)
NOT_IN_CORES = {
    *("aiohttp", "asyncio", "concurrent", "fsspec", "grpc", "http", "io", "logging", "multiprocessing", "os"),
    *("pathlib", "random", "select", "selectors", "signal", "socket", "subprocess", "tempfile", "threading"),
    *("time", "urllib.request", "uvloop"),
}
# A clock or a source of chance may be *named* in a signature by those who take it as a parameter.
NAMED_IN_CORES = {
    "consumer.message.mapping": {"random"},
    "fragment.persist_queue": {"random"},
    "fragment.persist_ledger": {"random"},
}

LINES_MAX = 600


def owner(module: str) -> str:
    """The entry of MAY_IMPORT that rules `module`."""
    return max((name for name in MAY_IMPORT if f"{module}.".startswith(f"{name}.")), key=len)


def is_core(module: str) -> bool:
    return owner(module) not in SHELLS and any(f"{module}.".startswith(f"{core}.") for core in CORES)


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.parent.name != "gen":
                yield path


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[str]:
    """Every module that `path` imports, wherever in the file."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            # `from a.b import c` may name the module a.b.c.
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if (ROOT / inner.replace(".", "/")).with_suffix(".py").exists() else node.module


CODE = list(sources(*PACKAGES, "examples"))
by_module = pytest.mark.parametrize("path", CODE, ids=module_name)


@by_module
def test_imports_point_downwards(path: Path) -> None:
    here = owner(module_name(path))
    for imported in imports(path):
        if imported.split(".")[0] in (*PACKAGES, "tests", "examples"):
            assert imported.split(".")[0] != "tests", f"{module_name(path)} imports {imported}"
            there = owner(imported)
            assert there == here or there in MAY_IMPORT[here], f"{module_name(path)} imports {imported}"


def test_the_import_directions_have_no_cycle() -> None:
    order: list[str] = []
    remaining = {name: set(below) for name, below in MAY_IMPORT.items()}
    while remaining:
        free = sorted(name for name, below in remaining.items() if below <= set(order))
        assert free, f"a cycle among {sorted(remaining)}"
        order += free
        for name in free:
            del remaining[name]


@by_module
def test_cores_neither_wait_nor_touch_the_world(path: Path) -> None:
    module = module_name(path)
    if not is_core(module):
        return
    named = NAMED_IN_CORES.get(module, set())
    touched = {name for name in imports(path) if {name, name.split(".")[0]} & (NOT_IN_CORES - named)}
    assert not touched, f"{module} is a core and imports {sorted(touched)}"
    assert not [node for node in ast.walk(parsed(path)) if isinstance(node, ast.AsyncFunctionDef | ast.Await)]


@by_module
def test_cores_import_only_cores(path: Path) -> None:
    module = module_name(path)
    if is_core(module):
        ours = {name for name in imports(path) if name.split(".")[0] in PACKAGES}
        shells = {name for name in ours if not is_core(name) and name not in PORTS}
        assert not shells, f"{module} is a core and imports {sorted(shells)}"


@pytest.mark.parametrize("port", PORTS)
def test_ports_do_nothing(port: str) -> None:
    """A body of an async method is a docstring or three dots."""
    tree = parsed((ROOT / port.replace(".", "/")).with_suffix(".py"))
    methods = [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef)]
    assert methods
    for method in methods:
        assert all(isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) for line in method.body)


@by_module
def test_a_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(parsed(path)), f"{module_name(path)} has no docstring"


@by_module
def test_a_module_is_short_enough_to_hold_one_idea(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LINES_MAX


@by_module
def test_no_import_is_hidden_from_the_running_program(path: Path) -> None:
    """A TYPE_CHECKING block hides a cycle: move the type down instead."""
    assert "TYPE_CHECKING" not in path.read_text(encoding="utf-8")


PACKAGE_DOCS = [path for path in CODE if path.name == "__init__.py"]


@pytest.mark.parametrize("path", PACKAGE_DOCS, ids=module_name)
def test_a_package_is_a_docstring_whose_names_exist(path: Path) -> None:
    body = parsed(path).body
    package = module_name(path)
    if package in FRONT_DOORS:
        loaded = {name.split(".")[0] for node in body for name in _imported(node)}
        assert loaded <= {"__future__", "collections", "typing"}, "what a front door needs it loads when it is used"
    else:
        assert len(body) == 1, "an __init__ re-exports nothing, so that importing a package loads only what is used"
    for name in re.findall(r"``(\w[\w.]*)``", ast.get_docstring(parsed(path)) or ""):
        if re.fullmatch(r"[A-Z]\w*", name):
            found = any(re.search(rf"^class {name}\b", text, re.M) for text in _texts(path.parent))
            assert found, f"{package} speaks of a class {name} that it does not have"
        else:
            assert _exists(package, name), f"{package} speaks of {name}, which does not exist"


def _imported(node: ast.stmt) -> list[str]:
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom():
            return [node.module or ""]
        case _:
            return []


def _texts(folder: Path) -> Iterator[str]:
    return (path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))


def _exists(package: str, name: str) -> bool:
    for candidate in (name, f"{package}.{name}"):
        try:
            importlib.import_module(candidate)
        except ImportError:
            module, _, attribute = candidate.rpartition(".")
            try:
                if hasattr(importlib.import_module(module or package), attribute):
                    return True
            except ImportError:
                continue
        else:
            return True
    return False


@by_module
def test_docstring_examples_run(path: Path) -> None:
    if ">>> " not in path.read_text(encoding="utf-8"):
        return
    failures, tried = doctest.testmod(importlib.import_module(module_name(path)))
    assert tried > 0
    assert failures == 0


def test_top_level_folders_are_the_agreed_ones() -> None:
    tools_own = {"build", "dist", "node_modules"}
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith((".", "__"))}
    assert {name for name in folders - tools_own if not name.endswith(".egg-info")} == FOLDERS
    assert not [*ROOT.glob("go.mod"), *ROOT.glob("[a-z]*/go.mod")]


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_are_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").exists()


DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
_CONSOLE = re.compile(r"^```console\n(.*?)^```", re.M | re.S)


def commands(document: Path) -> Iterator[str]:
    """The lines a document tells its reader to type."""
    for block in _CONSOLE.findall(document.read_text(encoding="utf-8")):
        yield from (line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ "))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_in_documents_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    for command in commands(document):
        words = command.split()
        if words[0] == "make":
            assert words[1] in targets, f"{document.name} tells to run {command!r}"
        elif words[0] == "gazctl":
            ran = subprocess.run([Path(sys.executable).parent / "gazctl", *words[1:]], capture_output=True, check=False)
            assert ran.returncode == 0, f"{document.name}: {command!r} failed: {ran.stderr.decode()}"
        else:
            assert words[0] in ("git", "cd"), f"{document.name} tells to run {command!r}, which no test knows"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text(encoding="utf-8")):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"


def section(title: str) -> str:
    """A part of ARCHITECTURE.md, down to the next of its kind."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(text: str) -> Iterator[list[str]]:
    """The cells of the tables in a text, without their heads."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) > 1:
            yield cells


def names(cell: str) -> list[str]:
    return re.findall(r"`([a-z][\w.]*)`", cell)


def test_the_table_of_imports_is_the_one_that_is_checked() -> None:
    told: dict[str, set[str]] = {}
    for package, allowed, _ in rows(section("Who may import whom")):
        told[package.strip("`")] = set(told) if allowed.startswith("everything above") else set(names(allowed))
    assert told == MAY_IMPORT


# Those whose modules are all named there. What lies in folders below them is named by its folder.
MAPPED = ("allocator", "broker", "broker.client", "fragment", "gazctl", "protocol", "spark_readers")


def mapped() -> Iterator[tuple[str, list[str], list[str]]]:
    """Of each row of the map: the package, the modules that it is about, and all names in it."""
    for part in section("Modules").split("\n### ")[1:]:
        heading, _, body = part.partition("\n")
        for cells in rows(body) if heading != "Planned" else ():
            about = names(cells[0])
            package, _, first = about[0].rpartition(".")
            yield package or heading, [first, *about[1:]], names(" ".join(cells))


def test_modules_on_the_map_exist() -> None:
    for package, about, _ in mapped():
        folder = ROOT / package.replace(".", "/")
        for name in about:
            exists = name == package or (folder / name).is_dir() or (folder / f"{name}.py").exists()
            assert exists, f"ARCHITECTURE.md tells of {package}.{name}"


@pytest.mark.parametrize("package", MAPPED)
def test_every_module_is_on_the_map(package: str) -> None:
    told = {name.rpartition(".")[2] for of, _, all_names in mapped() if of == package for name in all_names}
    modules = {path.stem for path in (ROOT / package.replace(".", "/")).glob("*.py")} - {"__init__"}
    assert not modules - told, f"ARCHITECTURE.md says nothing of {sorted(modules - told)} in {package}"


def test_the_demo_runs() -> None:
    ran = subprocess.run([sys.executable, "-m", "examples.demo"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"the demo failed:\n{ran.stderr[-4000:]}\nafter it had shown:\n{ran.stdout[-4000:]}"
    assert "acme/orders/part-000" in ran.stdout

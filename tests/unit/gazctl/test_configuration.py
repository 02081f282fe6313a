from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from gazctl.command import Command, ServiceCommand
from gazctl.etcd_user import etcd_user
from gazctl.ini_file import IniFile
from gazctl.main import main
from gazctl.serve import serve
from protocol.errors import ValidationError
from tests.support.golden import GOLDEN


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nobody's own files and variables have a say."""
    home = tmp_path / "home"
    (home / ".config" / "gazette").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(home))
    for name in ("BROKER_ADDRESS", "ZONE", "LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)
    return home


def params_of(*arguments: str) -> dict[str, Any]:
    """What a command of gazctl would be called with."""
    seen: dict[str, Any] = {}
    ctx = main.make_context("gazctl", list(arguments))
    for name in arguments[:2]:
        command = ctx.command.get_command(ctx, name) if isinstance(ctx.command, click.Group) else None
        if command is None:
            break
        rest = list(arguments[arguments.index(name) + 1 :])
        ctx = command.make_context(name, rest, parent=ctx)
        seen = ctx.params
    return seen


def test_flags_win_over_the_environment_and_that_over_the_file(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    assert params_of("journals", "list")["broker_address"] == "http://localhost:8080"
    (home / ".config/gazette/gazctl.ini").write_text("[journals.Broker]\nAddress = http://file:1\n")
    assert params_of("journals", "list")["broker_address"] == "http://file:1"
    monkeypatch.setenv("BROKER_ADDRESS", "http://environment:2")
    assert params_of("journals", "list")["broker_address"] == "http://environment:2"
    assert params_of("journals", "list", "--broker.address", "http://flag:3")["broker_address"] == "http://flag:3"


def test_the_file_in_this_folder_comes_before_the_one_at_home(home: Path) -> None:
    (home / ".config/gazette/gazctl.ini").write_text("[journals]\nZone = home\n")
    Path("gazctl.ini").write_text("[journals]\nZone = here\n")
    assert params_of("journals", "read", "-l", "app=web")["zone"] == "here"


def test_keys_of_a_command_are_in_its_own_section_and_may_repeat(home: Path) -> None:
    Path("gazctl.ini").write_text(
        '[journals.list]\nformat = yaml\nRF = true\nlabels = one\nLabels = "two"\nUnknown = ignored\n'
    )
    params = params_of("journals", "list")
    assert (params["format"], params["rf"], params["labels"]) == ("yaml", True, ("one", "two"))
    assert params_of("journals", "fragments")["format"] == "table"


def test_a_broker_is_configured_by_a_file_of_gazettes_names(home: Path) -> None:
    Path("gazette.ini").write_text("[Broker]\nPort = 8099\nMaxAppendRate = 7\n[Etcd]\nLeaseTTL = 7s\n")
    params = params_of("serve")
    assert (params["broker_port"], params["broker_max_append_rate"], params["etcd_lease"]) == ("8099", 7, 7.0)


@pytest.mark.parametrize("level", ["trace", "debug", "info", "warn", "error", "fatal", "panic"])
def test_levels_and_formats_of_gazettes_logs_are_understood(level: str) -> None:
    text = f"[Logging]\nLevel = {level}\nFormat = color\n"
    Path("gazette.ini").write_text(text)
    Path("gazctl.ini").write_text(text.replace("Logging", "journals.Logging"))
    assert (params_of("serve")["log_level"], params_of("serve")["log_format"]) == (level, "color")
    assert params_of("journals", "list")["log_level"] == level


def test_a_file_that_makes_no_sense_is_told_with_its_line() -> None:
    Path("gazctl.ini").write_text("[journals]\nwhat is this\n")
    ran = CliRunner().invoke(main, ["journals", "list"])
    assert ran.exit_code == 1
    assert "gazctl.ini: line 2" in ran.stderr


@pytest.mark.parametrize("text", ["key", '[a]\nkey = "open'])
def test_ini_lines_that_are_neither_are_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        IniFile.parse(text)


def test_print_config_has_the_keys_that_gazettes_has() -> None:
    recorded = json.loads((GOLDEN / "live/cli/print-config.json").read_text())
    for case, arguments in ((recorded[0], []), (recorded[1], ["serve"])):
        printed = CliRunner().invoke(main, ["print-config", *arguments]).stdout
        ours, section = set(), ""
        for line in printed.splitlines():
            section = line if line.startswith("[") else section
            if " =" in line:
                ours.add((section, line.removeprefix("; ").partition(" =")[0]))
        theirs, section = set(), ""
        for line in case["stdout_without_comments"].splitlines():
            section = line if line.startswith("[") else section
            if " = " in line and not section.startswith("[shards"):
                theirs.add((section, line.removeprefix("; ").partition(" = ")[0]))
        assert theirs - ours - {("[Debug]", "Private")} == set()


def test_print_config_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_ADDRESS", "http://elsewhere:1")
    printed = CliRunner().invoke(main, ["print-config"]).stdout
    monkeypatch.delenv("BROKER_ADDRESS")
    Path("gazctl.ini").write_text(printed)
    assert params_of("journals", "list")["broker_address"] == "http://elsewhere:1"
    assert CliRunner().invoke(main, ["print-config"]).stdout == printed


def test_wrong_usage_exits_with_one_and_says_what_there_is() -> None:
    ran = CliRunner().invoke(main, ["journals", "explode"])
    assert (ran.exit_code, "store-health" in ran.stderr) == (1, True)
    assert CliRunner().invoke(main, ["journals", "list", "--explode"]).exit_code == 1
    assert CliRunner().invoke(main, ["journals", "list", "-o", "xml"]).exit_code == 1
    assert CliRunner().invoke(main, ["journals", "append"]).exit_code == 1


def commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    ctx = click.Context(group)
    found: list[tuple[str, ...]] = []
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        found += commands(command, (*path, name)) if isinstance(command, click.Group) else [(*path, name)]
    return found


@pytest.mark.parametrize("path", commands(main), ids=" ".join)
def test_every_command_has_help_that_teaches_by_example(path: tuple[str, ...]) -> None:
    ran = CliRunner().invoke(main, [*path, "--help"])
    assert ran.exit_code == 0
    assert (
        f"  gazctl {' '.join(path)}" in ran.stdout.replace("Usage: gazctl", "", 1) or "gazctl completion" in ran.stdout
    )


def test_help_loads_neither_grpc_nor_the_client() -> None:
    script = (
        "import sys; from gazctl.main import main; main(['--help'], standalone_mode=False);"
        "sys.exit(any(name in sys.modules for name in ('grpc', 'google.protobuf', 'rich', 'broker')))"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("flag", "value"),
    [("broker.id", "abc"), ("broker.zone", "a#b"), ("broker.port", "http"), ("broker.spool-fsync", "sometimes")],
)
def test_a_setting_that_is_wrong_is_named_as_it_is_set(flag: str, value: str) -> None:
    ran = CliRunner().invoke(main, ["serve", f"--{flag}", value])
    assert ran.exit_code == 1
    assert ran.stderr.startswith(f"Error: {flag}: expected")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--etcd.user", "me"], "etcd.password-file: a user needs a password: name a file"),
        (["--etcd.user", "me", "--etcd.password-file", "empty"], "etcd.password-file: a user needs a password"),
        (["--etcd.user", "me", "--etcd.password-file", "latin"], "etcd.password-file: expected a text in UTF-8"),
        (["--etcd.password-file", "password"], "etcd.user: a password needs the name of a user"),
        (["--etcd.user", "me", "--etcd.password-file", "nowhere"], "No such file"),
    ],
)
@pytest.mark.parametrize("command", [["serve"], ["brokers", "list"]], ids=" ".join)
def test_a_user_of_etcd_comes_with_a_password_and_it_is_not_told(
    command: list[str], flags: list[str], told: str
) -> None:
    for name, content in (("empty", b""), ("latin", b"sesam\xe9"), ("password", b"sesame\n")):
        Path(name).write_bytes(content)
    ran = CliRunner().invoke(main, [*command, *flags])
    assert ran.exit_code == 1
    assert told in ran.stderr
    assert "sesam" not in ran.stderr


def test_the_password_of_etcd_is_the_first_line_of_its_file_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETCD_PASSWORD", "another")
    Path("password").write_text("open sesame \nand more\n")
    user = etcd_user({"etcd_user": "me", "etcd_password_file": "password"})
    assert (user.name, user.password) == ("me", "open sesame ")
    assert "sesame" not in repr(user)
    assert "another" not in CliRunner().invoke(main, ["print-config", "serve"]).stdout


def test_serve_keeps_its_file_apart_from_gazctls() -> None:
    assert isinstance(serve, ServiceCommand)
    assert (Command.file_name, ServiceCommand.file_name) == ("gazctl.ini", "gazette.ini")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete(shell: str) -> None:
    ran = CliRunner().invoke(main, ["completion", shell])
    assert ran.exit_code == 0
    assert "_GAZCTL_COMPLETE" in ran.stdout

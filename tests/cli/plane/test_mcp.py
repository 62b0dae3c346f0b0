# SPDX-License-Identifier: Apache-2.0
"""`dovetail plane mcp`: what it refuses, and that it serves."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from mcp import Client, StdioServerParameters, stdio_client

from dovetail.cli import cli, main
from tests.paths import ROOT
from tests.piped import piped
from tests.plane.mcp.process import IMPORTED

COMMAND = [sys.executable, "-c", "from dovetail.cli import main; main()", "plane", "mcp", "--fake", "2"]


def refused(*arguments: str) -> str:
    """The one line of a command that does not start."""
    result = CliRunner().invoke(cli, ["plane", "mcp", *arguments])
    assert result.exit_code in (1, 2), result.output
    return result.output.strip().splitlines()[-1]


def test_without_the_package_it_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.cli.extras.find_spec", lambda name: None)
    assert refused("--fake", "1") == "Error: this needs mcp: pip install 'dovetail[mcp]'"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--plane NAMESPACE/NAME is required, or --fake NODES"),
        (["--fake", "0"], "0 is not in the range"),
        (["--fake", "1", "--plane", "a"], "must be NAMESPACE/NAME"),
        (["--fake", "1", "--plane", "a/"], "must be NAMESPACE/NAME"),
        (["--fake", "1", "--transport", "http", "--listen", "here"], "must be HOST:PORT"),
        (["--fake", "1", "--transport", "http", "--listen", "0.0.0.0:0"], "--token-file is required"),
        (["--fake", "1", "--transport", "http", "--listen", "256.0.0.1:0", "--token-file", "TOKEN"], "--allow-host"),
        (["--fake", "1", "--transport", "http", "--token-file", "SHORT"], "16 ASCII characters"),
        (["--fake", "1", "--transport", "http", "--token-file", "NONE"], "does not exist"),
        (["--fake", "1", "--transport", "sse"], "'sse' is not one of 'stdio', 'http'"),
    ],
)
def test_what_it_does_not_start_with(arguments: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "TOKEN").write_text("a-token-of-a-test\n")
    (tmp_path / "SHORT").write_text("short")
    paths = {name: str(tmp_path / name) for name in ("TOKEN", "SHORT", "NONE")}
    assert message in refused(*[paths.get(argument, argument) for argument in arguments])


def test_an_address_that_is_taken_is_named() -> None:
    from dovetail.plane.mcp.transports import listen

    with listen("127.0.0.1:0") as bound:
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        assert f"cannot listen at {address}: " in refused("--fake", "1", "--transport", "http", "--listen", address)


@pytest.mark.slow
async def test_it_serves_a_model_over_stdio_without_a_cluster() -> None:
    server = StdioServerParameters(command=COMMAND[0], args=COMMAND[1:], env={"PYTHONPATH": str(ROOT / "src")})
    async with Client(stdio_client(server)) as here:
        asked = await here.call_tool("ask", {"options": [{"gpus": 16}]})
        assert asked.structured_content["offers"][0]["gpus"] == 16


@pytest.mark.slow
def test_it_serves_over_http_until_a_signal(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-a-test\n")
    listening = ["--transport", "http", "--listen", "0.0.0.0:0", "--token-file", str(token), "--allow-host", "agents"]
    command = piped(main, "plane", "mcp", "--fake", "2", *listening, imported=IMPORTED)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert re.search(r"serving fake/agent at http://0\.0\.0\.0:\d+/mcp", line)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert "Traceback" not in process.stderr.read()

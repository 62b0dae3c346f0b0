# SPDX-License-Identifier: Apache-2.0
"""`dovetail plane mcp`."""

from __future__ import annotations

import logging
import socket
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from dovetail.cli.extras import needs
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.log import log_options, start_log
from dovetail.cli.plane.control_plane import cluster_plane, fake_plane
from dovetail.cli.service import address_option, first_of, serve

if TYPE_CHECKING:
    from dovetail.plane.agent_plane import AgentPlane

_log = logging.getLogger("dovetail.plane")
_LEAST_TOKEN = 16


class _Endpoint(Struct, frozen=True):
    """Where HTTP is served. Without a socket it is stdio."""

    bound: socket.socket | None = None
    token: str = ""
    hosts: tuple[str, ...] = ()


@click.command(name="mcp")
@click.option(
    "--plane", "plane_id", metavar="NAMESPACE/NAME", help="The agent's control plane. Required without --fake."
)
@kubeconfig_options
@click.option(
    "--fake",
    metavar="NODES",
    type=click.IntRange(1, 1000),
    help="Try it without a cluster: a broker in this process, with so many nodes of 8 GPUs that do not exist.",
)
@click.option("--transport", type=click.Choice(["stdio", "http"]), default="stdio", show_default=True)
@address_option("--listen", "127.0.0.1:10358", "HOST:PORT for http; port 0: a free one.")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The bearer token that each request must have. Required where --listen is not of this machine alone.",
)
@click.option("--allow-host", multiple=True, metavar="NAME", help="A name under which clients reach it, for http.")
@log_options
def command(
    plane_id: str | None,
    kubeconfig: str | None,
    context: str | None,
    fake: int | None,
    transport: str,
    listen: str,
    token_file: Path | None,
    allow_host: tuple[str, ...],
    log_level: str,
    log_format: str,
) -> None:
    """Let a language model negotiate for leases of GPUs, over the Model Context Protocol.

    One process is one agent. With stdio it ends with its input, with http when it gets SIGTERM or SIGINT (exit code 0).
    In the end it returns all leases.
    """
    from dovetail.plane.broker import BrokerRefused, BrokerUnavailable

    needs("mcp")
    if plane_id is None and fake is None:
        raise click.UsageError("--plane NAMESPACE/NAME is required, or --fake NODES to try it without a cluster")
    plane_id = plane_id or "fake/agent"
    if plane_id.count("/") != 1 or not all(plane_id.split("/")):
        raise click.BadParameter("must be NAMESPACE/NAME", param_hint="--plane")
    where = "the broker in memory" if fake is not None else config_of(kubeconfig, context).server
    endpoint = _endpoint(listen, token_file, allow_host) if transport == "http" else _Endpoint()
    start_log(log_level, log_format)
    opened = cluster_plane(plane_id, kubeconfig, context) if fake is None else fake_plane(plane_id, fake)
    try:
        serve(_ended_once(_run(opened, endpoint)), _log)
    except* (BrokerRefused, BrokerUnavailable) as errors:
        raise click.ClickException(f"{where}: {first_of(errors)}") from None


async def _ended_once(work: Coroutine[object, object, None]) -> None:
    """The work, which a second signal does not keep from returning its leases: that takes some seconds at most."""
    import asyncio

    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        raise


async def _run(opened: AbstractAsyncContextManager[AgentPlane], endpoint: _Endpoint) -> None:
    from dovetail.plane.mcp import transports
    from dovetail.plane.mcp.server import AgentServer

    async with opened as plane, AgentServer(plane) as server:
        if endpoint.bound is None:
            await transports.serve_stdio(server)
            return
        host, port = endpoint.bound.getsockname()[:2]
        _log.info("serving %s at http://%s:%d%s", plane.id, f"[{host}]" if ":" in host else host, port, transports.PATH)
        await transports.serve_http(server, endpoint.bound, endpoint.token, endpoint.hosts)


def _endpoint(listen: str, token_file: Path | None, hosts: tuple[str, ...]) -> _Endpoint:
    """Raises ClickException."""
    from dovetail.plane.mcp import transports

    token = ""
    if token_file is not None:
        try:
            token = token_file.read_text().strip()
        except (OSError, UnicodeError) as error:
            raise click.ClickException(f"cannot read {token_file}: {error}") from error
        if len(token) < _LEAST_TOKEN or not token.isascii() or any(character.isspace() for character in token):
            raise click.ClickException(f"{token_file}: a token is one word of {_LEAST_TOKEN} ASCII characters or more")
    if not transports.is_loopback(listen):
        if not token:
            raise click.ClickException(f"others can reach {listen}: --token-file is required")
        if not hosts:
            raise click.ClickException(f"others can reach {listen}: --allow-host is required, the name that they use")
    try:
        return _Endpoint(transports.listen(listen), token, hosts)
    except OSError as error:
        raise click.ClickException(f"cannot listen at {listen}: {error.strerror or error}") from error

# SPDX-License-Identifier: Apache-2.0
"""`dovetail install`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dovetail import __version__
from dovetail.cli.cluster import now_ms, run
from dovetail.cli.console import Console
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.markup import escape
from dovetail.cli.output import versioned, write_json
from dovetail.cli.status import read_status
from dovetail.kube.api.errors import KubeError
from dovetail.kube.manifests.documents import ManifestError, read_documents

if TYPE_CHECKING:
    from dovetail.kube.api.config import ClusterConfig

_POLL_S = 1.0
_DRY_RUN, _PLAN = "dry run", "plan"


@click.command(name="install")
@kubeconfig_options
@click.option(
    "--image",
    metavar="IMAGE",
    default="",
    help=f"Image of operator, scheduler and agents, by tag or digest. Default: dovetail:{__version__}.",
)
@click.option(
    "--stack",
    "stack_file",
    metavar="PATH",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the GPUStack to install. Default: an empty one, where the cluster has none.",
)
@click.option("--dry-run", "only", flag_value=_DRY_RUN, help="Write nothing; show what would be written.")
@click.option("--plan", "only", flag_value=_PLAN, help="Write nothing; show what becomes of NVIDIA's stack.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until a first GPU node is ready.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    help="The most seconds to wait.",
)
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
def command(
    kubeconfig: str | None,
    context: str | None,
    image: str,
    stack_file: Path | None,
    only: str | None,
    wait: bool,
    timeout_s: float,
    output: str,
) -> None:  # fmt: skip
    """Install Dovetail: the definitions, the operator, and a GPUStack, from which the operator installs the rest.

    Safe to repeat, also to upgrade: what is as it should be is not written. `-o yaml` prints the objects. Exit code 1:
    something was refused, or is missing when the time is over.
    """
    import yaml

    from dovetail.cli.install.plan import show_plan
    from dovetail.cli.install.report import InstallAnswer, show
    from dovetail.operator.installation.installer import InstallRefused, InstallRequest, documents, install

    dry_run = only == _DRY_RUN
    request = InstallRequest(image, None if stack_file is None else _stack(stack_file), dry_run)
    if output == "yaml":
        if not dry_run:
            raise click.UsageError("-o yaml needs --dry-run: it prints the objects, and installs nothing")
        sys.stdout.write(yaml.safe_dump_all(documents(request), sort_keys=False))
        return
    config = config_of(kubeconfig, context)
    if only == _PLAN:
        show_plan(config, request.stack, output)
        return
    try:
        done = run(install(config, request), config.server)
    except InstallRefused as error:
        raise click.ClickException(str(error)) from error
    console = Console()
    if output == "table":
        show(done, console, dry_run=dry_run)
    left: tuple[str, ...] = ()
    if wait and not dry_run:
        left = run(_wait(config, timeout_s), config.server)
    if output == "json":
        write_json(versioned("Installation", InstallAnswer(done, left)))
    elif wait and not dry_run and not left:
        console.print("A first GPU node is ready. What runs: dovetail status")
    if left:
        raise click.ClickException(f"still missing: {'; '.join(left)}")


def _stack(file: Path) -> dict[str, object]:
    from dovetail.operator.installation.installer import InstallRefused, parsed_stack

    try:
        return parsed_stack([one.value for one in read_documents([str(file)])])
    except (ManifestError, InstallRefused) as error:
        raise click.ClickException(f"{file}: {error}" if isinstance(error, InstallRefused) else str(error)) from error


async def _wait(config: ClusterConfig, timeout_s: float) -> tuple[str, ...]:
    """What is still missing when the time is over; each change is printed."""
    import asyncio

    from dovetail.views.install_progress import missing, refused

    console = Console(stderr=True)
    began_s = time.monotonic()
    shown: tuple[str, ...] = ()
    while True:
        try:
            view = await read_status(config, now_ms())
            left = missing(view)
            if text := refused(view):
                raise click.ClickException(text)
        except KubeError as error:
            # The API server may be away for a moment.
            left = (str(error),)
        if not left:
            return ()
        passed_s = time.monotonic() - began_s
        if left != shown:
            console.print(f"[dim]{passed_s:.0f} s[/dim] waiting: {escape('; '.join(left))}")
            shown = left
        if passed_s >= timeout_s:
            return left
        await asyncio.sleep(_POLL_S)

# SPDX-License-Identifier: Apache-2.0
"""`dovetail completion`, and the completion of `kubectl dovetail`."""

from __future__ import annotations

import sys

import click

_SHELLS = ("bash", "zsh", "fish")
_NO_FILES = ":4"
"""The last line of an answer for kubectl: offer these words and no files. Source: ShellCompDirective of cobra."""


@click.command(name="completion")
@click.argument("shell", type=click.Choice(_SHELLS))
def command(shell: str) -> None:
    """Print the script by which SHELL completes commands, options, and the names of jobs, queues and nodes.

    \b
    bash: source <(dovetail completion bash)        in ~/.bashrc
    zsh:  source <(dovetail completion zsh)         in ~/.zshrc, after compinit
    fish: dovetail completion fish > ~/.config/fish/completions/dovetail.fish
    """
    from click.shell_completion import get_completion_class

    from dovetail.cli import cli

    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(cli, {}, "dovetail", "_DOVETAIL_COMPLETE").source())


def kubectl() -> None:
    """The program `kubectl_complete-dovetail`: print what can follow `kubectl dovetail ARGUMENT...`.

    kubectl calls it with the arguments, of which the last is incomplete.
    Source: https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/
    """
    from click.shell_completion import ShellComplete

    from dovetail.cli import cli

    *arguments, incomplete = sys.argv[1:] or [""]
    completion = ShellComplete(cli, {}, "dovetail", "_DOVETAIL_COMPLETE")
    for item in completion.get_completions(arguments, incomplete):
        if item.type == "plain":
            click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(_NO_FILES)

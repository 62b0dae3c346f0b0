# SPDX-License-Identifier: Apache-2.0
"""`dovetail demo agents`: software agents negotiate for GPUs, and each of their steps is a line."""

from __future__ import annotations

import click

from dovetail.cli.answer_form import AnswerForm, answer_option, write_answer
from dovetail.cli.cluster import run
from dovetail.cli.console import Console


@click.command(name="agents")
@answer_option
def command(form: AnswerForm) -> None:
    """Let five software agents with bursts of work negotiate for the GPUs of two nodes, for 20 seconds.

    The cluster is in memory and served as a Kubernetes API, with the scheduler and the library for agents as on a real
    cluster. Each line is one step of an agent. Needs no cluster, no container and no GPU.
    """
    from dovetail.cli.demo.agents_story import demo, show

    console = Console(stderr=form.whole)
    found = run(demo(console, quiet=form.whole), "the demo's cluster")
    if form.whole:
        write_answer(form, "AgentsDemo", found)
    else:
        show(found, console)

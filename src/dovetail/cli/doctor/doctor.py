# SPDX-License-Identifier: Apache-2.0
"""`dovetail doctor`."""

from __future__ import annotations

import sys

import click

from dovetail.cli.answer_form import AnswerForm, answer_option, write_answer
from dovetail.cli.cluster import ClusterSource, run
from dovetail.cli.console import Console
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.output import INCOMPLETE
from dovetail.cli.scheduling import SCHEDULER_NAME, TIGHTEST, PolicyChoice, fabric_option, scheduler_name_option
from dovetail.cli.snapshots import facts_in, snapshot_option
from dovetail.core.fabric import DEFAULT_FABRIC


@click.command(name="doctor")
@snapshot_option
@kubeconfig_options
@scheduler_name_option
@fabric_option
@answer_option
def command(
    kubeconfig: str | None,
    context: str | None,
    files: tuple[str, ...],
    scheduler_name: str,
    fabric: tuple[str, ...],
    form: AnswerForm,
) -> None:
    """Find faults in the GPU setup of a cluster, and show how to fix each.

    Only lists objects, writes nothing. Exit code 1: there is a finding of level error. 3: there is none, but some
    objects could not be read, so that checks were left out. 0: else.
    """
    from dovetail.cli.doctor.answer import UNKNOWN, DoctorFacts, answer_of, look, show, waits_for_us, with_reasons

    if files:
        others = {"scheduler_name": scheduler_name != SCHEDULER_NAME, "fabric": fabric != DEFAULT_FABRIC}
        _, facts = facts_in(files, "doctor", DoctorFacts, kubeconfig=kubeconfig, context=context, **others)
        if waits_for_us(facts):
            source = ClusterSource(PolicyChoice(scoring=TIGHTEST), scheduler_name, files)
            facts = with_reasons(facts, source.state(), source.now_ms)
        answer = answer_of(facts)
    else:
        config = config_of(kubeconfig, context)
        answer = run(look(config, scheduler_name, fabric), config.server)
    if form.whole:
        write_answer(form, "Doctor", answer)
    else:
        show(answer, Console())
    levels = {one.level for one in answer.findings}
    if "error" in levels:
        sys.exit(1)
    if UNKNOWN in levels:
        sys.exit(INCOMPLETE)

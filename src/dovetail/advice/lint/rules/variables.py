# SPDX-License-Identifier: Apache-2.0
"""The rule about variables whose values are in the notation of a shell.

Only values of one word are reported, with a name in capitals at the start or after a separator: a longer value may be a
script. In braces only PATH and LD_LIBRARY_PATH are, as tools that fill in templates use braces. An object with such a
name in another field is a template of envsubst, and is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template, env_of
from dovetail.advice.lint.rule import Facts, Rule, RuleMatch, Severity

OF_IMAGES = ("PATH", "LD_LIBRARY_PATH")
SHELL_NAME = rf"^(\S*[:=/,;])?\$([A-Z][A-Z0-9_]{{2,}}|\{{({'|'.join(OF_IMAGES)})\}})\S*$"
"""A pattern, in the common part of Python's and RE2's syntax."""
_SHELL_NAME = re.compile(SHELL_NAME)


def _literal(pod: Template, _: Facts) -> Iterator[RuleMatch]:
    if not pod.uses_gpu or any("$" in field.text for field in _filled_in(pod)):
        return
    for container in pod.all_containers:
        for _name, entry in env_of(container):
            found = _SHELL_NAME.search(entry.at("value").text)
            if found is None:
                continue
            name = found[3] or found[2]
            if name in OF_IMAGES:
                advice = "write the directories of the image, too"
            else:
                advice = f"write $({name}) for a variable that the container sets before, or valueFrom"
            yield RuleMatch(entry, f"Kubernetes leaves ${name} as it is: {advice}; not if envsubst fills it in")


def _filled_in(pod: Template) -> Iterator[Field]:
    """The fields that a template of envsubst most often fills in."""
    yield from (pod.whole.at("metadata", name) for name in ("name", "namespace"))
    for container in pod.all_containers:
        yield container.at("image")
        yield from (amount for _, amount in container.at("resources", "limits").entries())


_POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: serve, labels: {{team: vision}}}}
spec:
  restartPolicy: Never
  priorityClassName: batch
  containers:
  - name: serve
    image: registry.example.com/serve:1.4
    env: [{{name: HF_TOKEN, {0}}}]
    resources: {{limits: {{nvidia.com/gpu: 1}}}}
"""

RULES = (
    Rule(
        id="G53",
        level=Severity.WARNING,
        title="The value of a variable names another one as a shell does",
        effect=(
            "The program gets the text, `$HF_TOKEN`: Kubernetes fills in only `$(NAME)`, of variables that the "
            "container sets before. A token is refused: `401 Unauthorized`; a PATH loses the directories of the image."
        ),
        bad=_POD.format("value: $HF_TOKEN"),
        good=_POD.format("valueFrom: {secretKeyRef: {name: hugging-face, key: token}}"),
        template=_literal,
        source="https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/",
    ),
)

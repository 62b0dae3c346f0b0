# SPDX-License-Identifier: Apache-2.0
"""The parts of rules that CEL can express, for admission policies of Kubernetes 1.30 and later.

Rules
- An expression is a list of texts: the findings, as `path: message`. Lists in it are joined to lines, because CEL of
  these versions cannot flatten lists.
- `p` is a pod template: `at` (its path, with a dot at the end), `meta`, `spec`, `containers`, `inits`, `all`, `asking`
  (the containers that request GPUs), `computing` (those, else all containers) and `uses` (whether it requests GPUs in
  any form). A container has `at`, `c`, `limits`, `requests` and `gpus` (names of GPU resources).
- Containers are named in paths, as these versions have no index.
- A missing field is never an error. What the API server fills in counts as missing, as the linter reads manifests.
Source: k8s.io/apiserver/pkg/cel/environment/base.go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from dovetail.advice.lint.pods import FRAMEWORK
from dovetail.advice.lint.rule import Facts
from dovetail.core.model import GPU, SHARED_GPU
from dovetail.kube.manifests.templates import HOLDERS

GPU_NAME = r"^nvidia\.com/(gpu(\.shared)?|mig-[1-9][0-9]?g\.[1-9][0-9]{0,3}gb(\.me\.all|\.me|\.gfx|-me)?(\.shared)?)$"
assert GPU == "nvidia.com/gpu" and SHARED_GPU == "nvidia.com/gpu.shared"


class Cel(Struct, frozen=True):
    """`pod` lists the findings of a template `p`, `whole` those of the object. `omits` states what the linter finds
    beyond them. `in_cluster` is `pod` for a cluster of which these facts are known. `resource` is the (API group,
    plural) of a kind without pods to which `whole` applies."""

    pod: str = ""
    whole: str = ""
    omits: str = ""
    in_cluster: Callable[[Facts], str] | None = None
    resource: tuple[str, str] | None = None


def text(value: str) -> str:
    """A literal of this text."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def texts(values: Iterable[str]) -> str:
    """A literal of a list of texts."""
    return f"[{', '.join(map(text, values))}]"


def matches(value: str, pattern: str) -> str:
    """Whether the text `value` has a part that the pattern, in the syntax of RE2, matches."""
    return f"{value}.matches({text(pattern)})"


def each(values: str, name: str, found: str) -> str:
    """The findings `found` of all `values`, each of which is `name`."""
    return f"{values}.map({name}, ({found}).join('\\n')).filter(s, s != '')"


def only(condition: str, found: str) -> str:
    """The findings if the condition holds."""
    return f"({condition} ? {found} : [])"


def finding(condition: str, *parts: str) -> str:
    """One finding, the joined texts, if the condition holds."""
    return only(condition, f"[{' + '.join(parts)}]")


def counted(value: str) -> str:
    """The value as a whole number; 0 if it is none."""
    return (
        f"(isQuantity(string({value})) && quantity(string({value})).isInteger() ? "
        f"quantity(string({value})).asInteger() : 0)"
    )


def is_whole(value: str) -> str:
    """Whether a valid quantity is a whole number. `isInteger` is false for "1.0" and "1000m"."""
    amount = f"quantity(string({value}))"
    return f"({amount}.isInteger() || {amount}.compareTo(quantity(string(int({amount}.asApproximateFloat())))) == 0)"


def asked(container: str, name: str) -> str:
    """The amount of a resource: the limit, else the request."""
    return f"({name} in {container}.limits ? {container}.limits[{name}] : {container}.requests[{name}])"


def gpus(container: str, name: str = text(GPU)) -> str:
    """The number of GPUs of this resource that a container requests."""
    return f"({name} in {container}.gpus ? {counted(asked(container, name))} : 0)"


def words(container: str) -> str:
    """The command and the arguments, joined by spaces."""
    return f"({container}.c.?command.orValue([]) + {container}.c.?args.orValue([])).join(' ')"


def runs_framework(container: str) -> str:
    """As `pods.runs_framework`."""
    return matches(f"({container}.c.?image.orValue('') + ' ' + {words(container)})", FRAMEWORK)


def env(container: str, name: str, found: str) -> str:
    """The findings of all variables `name` of a container."""
    return each(f"{container}.c.?env.orValue([])", name, found)


def _reached(path: str) -> str:
    """The templates of `object` at a path of HOLDERS, each with its own path."""
    *before, last = path.split(".*.") if path else [""]
    place = text(f"{last}." if last else "")
    if not before:
        one = f"[{{'at': dyn({place}), 'pod': dyn(object{_below(last)}{'.orValue({})' if last else ''})}}]"
        return f"(object{_below(last)}.hasValue() ? {one} : [])" if last else one
    (listed,) = before
    held = f"object{_below(listed)}"
    is_mapping = listed.endswith("ReplicaSpecs")
    item = f"{held}[?k]" if is_mapping else "k"
    name = "k" if is_mapping else "k.?name.orValue(k.?groupName.orValue(''))"
    at = f"{text(f'{listed}[')} + {name} + {text(f'].{last}.')}"
    found = f"{{'at': dyn({at}), 'pod': dyn({item}{_below(last)}.value())}}"
    return f"{held}.orValue({'{}' if is_mapping else '[]'}).filter(k, {item}{_below(last)}.hasValue()).map(k, {found})"


def _below(path: str) -> str:
    return "".join(f".?{step}" for step in path.split(".")) if path else ""


def _templates() -> str:
    kinds: dict[tuple[str, ...], list[str]] = {}
    for holder in HOLDERS:
        group, kind = holder.resource.group, holder.resource.kind
        kinds.setdefault(holder.paths, []).append(f"{group}/{kind}" if group else kind)
    cases = [f"variables.kind in {texts(some)} ? {' + '.join(map(_reached, paths))}" for paths, some in kinds.items()]
    return " : ".join((*cases, "[]"))


def _containers(field: str) -> str:
    limits, requests = (f"c.?resources.?{side}.orValue({{}})" for side in ("limits", "requests"))
    named = matches("n", GPU_NAME)
    gpu_names = f"{limits}.filter(n, {named}) + {requests}.filter(n, {named} && !(n in {limits}))"
    return (
        f"t.pod.?spec.?{field}.orValue([]).map(c, {{'at': dyn(t.at + 'spec.{field}[' + c.?name.orValue('') + ']'), "
        f"'c': dyn(c), 'limits': dyn({limits}), 'requests': dyn({requests}), 'gpus': dyn({gpu_names})}})"
    )


_USES = (
    "t.containers.exists(c, size(c.gpus) > 0) || size(t.spec.?resourceClaims.orValue([])) > 0 || "
    "['dovetail.dev/gpu-memory', 'dovetail.dev/gpu-fraction'].exists(a, a in t.meta.?annotations.orValue({}))"
)
VARIABLES: dict[str, str] = {
    "kind": "object.apiVersion.contains('/') ? object.apiVersion.split('/')[0] + '/' + object.kind : object.kind",
    "templates": _templates(),
    "read": (
        "variables.templates.map(t, {'at': dyn(t.at), 'meta': dyn(t.pod.?metadata.orValue({})), "
        "'spec': dyn(t.pod.?spec.orValue({})), "
        f"'containers': dyn({_containers('containers')}), 'inits': dyn({_containers('initContainers')})}})"
    ),
    "pods": (
        "variables.read.map(t, {'at': t.at, 'meta': t.meta, 'spec': t.spec, 'containers': t.containers, "
        "'inits': t.inits, 'all': dyn(t.inits + t.containers), 'asking': dyn(t.containers.filter(c, size(c.gpus) > "
        "0)), 'computing': dyn(t.containers.exists(c, size(c.gpus) > 0) ? t.containers.filter(c, size(c.gpus) > 0) : "
        f"t.containers), 'uses': dyn({_USES})}})"
    ),
}
"""The variables of policies by name, in the order in which they use each other."""


def found(cel: Cel, facts: Facts) -> str:
    """The lines with all findings in an object, in a cluster of which these facts are known."""
    pod = cel.in_cluster(facts) if cel.in_cluster is not None else cel.pod
    parts = [f"variables.pods.map(p, ({pod}).join('\\n'))"] if pod else []
    parts += [f"[({cel.whole}).join('\\n')]"] if cel.whole else []
    return f"({' + '.join(parts)}).filter(s, s != '').join('\\n')"


def variables(expression: str) -> dict[str, str]:
    """The variables that the expression needs, in order."""
    needed: dict[str, str] = {}
    for name, value in reversed(VARIABLES.items()):
        if any(f"variables.{name}" in one for one in (expression, *needed.values())):
            needed[name] = value
    return dict(reversed(needed.items()))

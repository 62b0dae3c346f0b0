# SPDX-License-Identifier: Apache-2.0
"""Policies about the kubelet's handling of a pod: CPUs, shared memory, probes and the end of pods."""

from __future__ import annotations

from dovetail.advice.lint.cel import Cel, each, finding, gpus, is_whole, matches, only, runs_framework, text, words
from dovetail.advice.lint.rules.lifecycle import TRAINING
from dovetail.advice.lint.served import SERVER_COMMAND, SERVER_IMAGE
from dovetail.core.model import GPU

_ANNOTATIONS = "p.meta.?annotations.orValue({})"
_ALIGNED = (
    f"!has(p.spec.resources) && p.containers.exists(c, {text(GPU)} in c.gpus) && ("
    "['cpu-load-balancing.crio.io', 'cpu-quota.crio.io', 'irq-load-balancing.crio.io'].exists(a, "
    f"{_ANNOTATIONS}[?a].orValue('') == 'disable') || "
    f"!({_ANNOTATIONS}[?'volcano.sh/numa-topology-policy'].orValue('') in ['', 'none']) || "
    "p.spec.?nodeSelector[?'cpumanager'].orValue('') == 'true')"
)


def _amount(value: str) -> str:
    return f"string({value})"


def _breaks(container: str, resource: str) -> str:
    """Whether the limit of a resource is missing, or differs from the request."""
    limit, request = (f"{container}.{side}[{resource}]" for side in ("limits", "requests"))
    return (
        f"(!({resource} in {container}.limits) || !isQuantity({_amount(limit)}) || "
        f"sign(quantity({_amount(limit)})) == 0 || {resource} in {container}.requests && "
        f"(!isQuantity({_amount(request)}) || quantity({_amount(request)}).compareTo(quantity({_amount(limit)})) != 0))"
    )


_BROKEN = f"['cpu', 'memory'].exists(r, {_breaks('c', 'r')})"
_NOT_GUARANTEED = only(
    _ALIGNED,
    f"p.all.filter(c, {_BROKEN}).map(c, c.at + '.resources: no equal request and limit of CPU and memory: the pod is "
    "not Guaranteed; set equal limits and requests for every container, also init containers')",
)
_CPUS = "c.limits['cpu']"
_PART_OF_A_CPU = only(
    f"{_ALIGNED} && !p.all.exists(c, {_BROKEN})",
    f"p.asking.filter(c, !{is_whole(_CPUS)})"
    ".map(c, c.at + '.resources.limits[cpu]: ' + string(c.limits['cpu']) + ' CPUs are not a whole number, so none is "
    "exclusive')",
)

_SHM = "^(/dev/shm|/dev)/*$"
_MOUNTS = "c.c.?volumeMounts.orValue([]).filter(m, " + matches("m.?mountPath.orValue('')", _SHM) + ")"
_VOLUME = (
    f"p.spec.?volumes.orValue([]).filter(v, {_MOUNTS}.exists(m, m == {_MOUNTS}[0] && "
    + matches("m.?mountPath.orValue('')", "^/dev/shm/*$")
    + " && m.?name.orValue('') == v.?name.orValue('')) && has(v.emptyDir))"
)
_HAS_MEMORY = "('memory' in c.limits ? string(c.limits['memory']) : p.spec.?resources.?limits[?'memory'].orValue('0'))"
_HAS_SIZE = "string(v.emptyDir.?sizeLimit.orValue('0'))"
_LARGER = (
    f"isQuantity({_HAS_MEMORY}) && isQuantity({_HAS_SIZE}) && sign(quantity({_HAS_MEMORY})) != 0 && "
    f"quantity({_HAS_SIZE}).isGreaterThan(quantity({_HAS_MEMORY}))"
)
_UNLIMITED = f"[{_HAS_MEMORY}, {_HAS_SIZE}].all(q, !isQuantity(q) || sign(quantity(q)) == 0)"
_MEDIUM = "v.emptyDir.?medium.orValue('')"
_SHARED_MEMORY = only(
    "!variables.kind.startsWith('ray.io/') && p.spec.?hostIPC.orValue(false) != true && "
    f"!('io.kubernetes.cri-o.ShmSize' in {_ANNOTATIONS})",
    each(
        "p.asking",
        "c",
        finding(
            f"size({_MOUNTS}) == 0 && {gpus('c')} > 1 && {runs_framework('c')}",
            f"c.at + ': ' + string({gpus('c')}) + ' GPUs, and /dev/shm has only 64 MiB: mount a memory volume there'",
        )
        + " + "
        + only(
            f"size({_MOUNTS}) > 0",
            each(
                _VOLUME,
                "v",
                " + ".join(
                    finding(condition, "p.at + 'spec.volumes[' + v.?name.orValue('') + '].emptyDir: '", what)
                    for condition, what in (
                        (f"{_MEDIUM} == ''", '"/dev/shm is a directory on the node\'s disk: write medium: Memory"'),
                        (
                            f"{_MEDIUM} == 'Memory' && {_UNLIMITED}",
                            "'/dev/shm may use all memory of the node: write a sizeLimit, or a memory limit'",
                        ),
                        (
                            f"{_MEDIUM} != '' && !({_UNLIMITED}) && {_LARGER}",
                            f"'sizeLimit ' + {_HAS_SIZE} + ' exceeds the memory of the container: ' + {_HAS_MEMORY}",
                        ),
                    )
                ),
            ),
        ),
    ),
)

_STEP_SECONDS, _DEFAULT_SECONDS = 600, 30
_TRAINING = " || ".join(f"variables.kind == {text(f'{group}/{kind}')}" for group, kind in sorted(TRAINING))
_IMAGE = f"^({SERVER_IMAGE.pattern})(:[^/@]*)?(@.*)?$"


def _number(value: str, name: str, default: int) -> str:
    return f"({value}.?{name}.orValue(0) == 0 ? {default} : {value}.{name})"


def _silence(probe: str) -> str:
    return f"({_number(probe, 'periodSeconds', 10)} * {_number(probe, 'failureThreshold', 3)})"


def _allowed(probe: str) -> str:
    return f"({_number(probe, 'initialDelaySeconds', 0)} + {_silence(probe)})"


_OF_A_SERVER = matches("c.c.?image.orValue('')", _IMAGE)
_KILLED = f"({_TRAINING}) && has(c.c.livenessProbe) && {_silence('c.c.livenessProbe')} < {_STEP_SECONDS}"
_PROBES = only(
    "p.uses",
    each(
        "p.computing",
        "c",
        finding(
            _KILLED,
            f"c.at + '.livenessProbe: the probe ends a job that does not answer for ' + "
            f"string({_silence('c.c.livenessProbe')}) + ' s, as in a long step, a checkpoint or a collective: "
            f"remove it, "
            f"or allow {_STEP_SECONDS} s with failureThreshold'",
        )
        + " + "
        + only(
            f"!({_KILLED})",
            "[c.c.?startupProbe, c.c.?livenessProbe].filter(o, o.hasValue()).map(o, o.value()).filter(o, "
            f"({_OF_A_SERVER} || !has(o.exec) && {matches(words('c'), SERVER_COMMAND.pattern)}) && "
            f"(!has(c.c.startupProbe) || o == c.c.startupProbe) && {_allowed('o')} <= {_DEFAULT_SECONDS})"
            f".map(o, c.at + ': the server has ' + string({_allowed('o')}) + ' s to load its model: add a startupProbe "
            "with a high failureThreshold')",
        ),
    ),
)

_GRACE = "p.spec.?terminationGracePeriodSeconds.orValue(30)"
_SLEPT = (
    "([c.c.?lifecycle.?preStop.?sleep.?seconds.orValue(0)] + c.c.?lifecycle.?preStop.?exec.?command.orValue([])"
    ".join(' ').findAll('\\\\bsleep [0-9]{1,9}\\\\b').map(w, int(w.substring(6)))).max()"
)
_SAVES = (
    "[object.?metadata.?annotations.orValue({}), " + _ANNOTATIONS + "]"
    ".map(a, a[?'dovetail.dev/checkpoint-interval'].orValue('')).filter(v, v != '')"
)
_HOOKS = each(
    "p.containers",
    "c",
    finding(
        f"{_SLEPT} > 0 && {_SLEPT} >= {_GRACE}",
        f"c.at + '.lifecycle.preStop: the preStop hook takes ' + string({_SLEPT}) + ' s, and "
        f"terminationGracePeriodSeconds is ' + string({_GRACE})",
    ),
)
_SHORT = finding(
    f"{_GRACE} < 30 && size({_SAVES}) > 0 && {_SAVES}[0].matches('^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && "
    f"{_SAVES}[0].matches('[1-9]')",
    "p.at + 'spec.terminationGracePeriodSeconds: the pods save checkpoints, and have ' + "
    f"string({_GRACE}) + ' s for that when they are evicted: write how long it takes'",
)

POLICIES = {
    "G17": Cel(_NOT_GUARANTEED, omits="the policies of the nodes' kubelets: only pods that ask for such CPUs"),
    "G18": Cel(_PART_OF_A_CPU, omits="the policies of the nodes' kubelets: only pods that ask for such CPUs"),
    "G20": Cel(_SHARED_MEMORY, omits="a volume that the pod does not have, and one of 64 MiB or less"),
    "G36": Cel(_PROBES, omits="dovetail.dev/startup-time, and the size of the served model"),
    "G41": Cel(
        only("p.uses", f"({_HOOKS} + {_SHORT})"),
        omits="hooks of pods that save checkpoints within the default grace period, which the API server fills in",
    ),
}

# SPDX-License-Identifier: Apache-2.0
"""Policies about the amounts and the names of GPU resources."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.advice.gpus import GPUS
from dovetail.advice.lint.cel import (
    GPU_NAME,
    Cel,
    asked,
    counted,
    each,
    finding,
    gpus,
    is_whole,
    matches,
    only,
    runs_framework,
    text,
    texts,
    words,
)
from dovetail.advice.lint.rule import Facts
from dovetail.advice.lint.selection import gpu_nodes, grows, offers
from dovetail.core.model import GPU, SHARED_GPU

_IS_GPU = matches("n", GPU_NAME)
_RETIRED = "alpha.kubernetes.io/nvidia-gpu"
_WORDS = ("gpu", "gpus", "nvidia", "nvidiacom", "nvidiagpu", "nvidiagpus", "nvidiacomgpu", "nvidiacomgpus")
_DOMAIN, _SHARED = "nvidia.com", "gpu.shared"
_LIKE_MIG = r"(?i)^nvidia\.com/.*(mig[-_.]|[0-9]g[^a-z0-9]*[0-9]+g)"
_LIKE_GPU = "(gpu|gp|gu|pu|.gpu|g.pu|gp.u|gpu.)"
"""The texts with at least 80 % of the letters of gpu, as the linter compares them."""


def _near(word: str) -> Iterator[str]:
    """Patterns of the word with one letter more, less, changed, or two exchanged."""
    letters = [f"\\{one}" if one == "." else one for one in word]
    for i, _ in enumerate(letters):
        yield "".join((*letters[:i], ".?", *letters[i + 1 :]))
        yield "".join((*letters[:i], ".", *letters[i:]))
        if i:
            yield "".join((*letters[: i - 1], letters[i], letters[i - 1], *letters[i + 1 :]))
    yield "".join((*letters, "."))


def _misspelt(name: str, facts: Facts) -> str:
    """Whether the name nearly is one of NVIDIA's device plugin, and no node allocates it."""
    of_letters = "|".join("[^a-z]*".join(word) for word in _WORDS)
    domain, shared = "|".join(_near(_DOMAIN)), "|".join(_near(_SHARED))
    patterns = (
        _LIKE_MIG,
        f"(?i)^[^a-z]*({of_letters})[^a-z]*(s[^a-z]*h[^a-z]*a[^a-z]*r[^a-z]*e[^a-z]*d[^a-z]*)?$",
        f"(?i)^({domain})/{_LIKE_GPU}$",
        f"(?i)^nvidia\\.com/({shared})$",
        f"^({domain})/{GPU_NAME.partition('/')[2]}",
    )
    others = " || ".join(matches(name, pattern) for pattern in patterns)
    allocated = {other for node in facts.nodes or () for other in node.allocatable}
    known = texts(sorted({_RETIRED, *allocated}))
    fine = f"{name} in {known} || {name}.lowerAscii() in ['nvidia.com/pgpu', 'nvidia.com/vgpu']"
    return f"!({_IS_GPU.replace('n.', f'{name}.', 1)} || {fine}) && ({others})"


def _of_sides(condition: str, *parts: str) -> str:
    """A finding for each name `n` of a resource in a side `r` of a container, at its amount."""
    sides = ("limits", "requests")
    return each(
        "p.all",
        "c",
        " + ".join(
            f"c.{side}.filter(n, {condition.replace('SIDE', side)})"
            f".map(n, {' + '.join((_at(side), *parts)).replace('SIDE', side)})"
            for side in sides
        ),
    )


def _at(side: str) -> str:
    return f"c.at + '.resources.{side}[' + n + ']: '"


_HAVE_LIMITS = each(
    "p.all",
    "c",
    f"c.requests.filter(n, {_IS_GPU} && !(n in c.limits))"
    f".map(n, {_at('requests')} + n + ' has a request and no limit: set the limit to the same amount')",
)
_ARE_VALID = "[string(c.requests[n]), string(c.limits[n])].filter(q, isQuantity(q)).size()"
_ARE_EQUAL = each(
    "p.all",
    "c",
    f"c.limits.filter(n, {_IS_GPU} && n in c.requests && ({_ARE_VALID} == 1 || {_ARE_VALID} == 2 && "
    "quantity(string(c.requests[n])).compareTo(quantity(string(c.limits[n]))) != 0))"
    f".map(n, {_at('requests')} + n + ': the request is ' + string(c.requests[n]) + ' and the limit is ' + "
    "string(c.limits[n]) + ': write ' + string(c.limits[n]) + ' for both')",
)
_AMOUNT = "string(c.SIDE[n])"
_ARE_WHOLE = _of_sides(
    f"{_IS_GPU} && (!isQuantity({_AMOUNT}) || !{is_whole('c.SIDE[n]')} || sign(quantity({_AMOUNT})) < 0 || "
    f"'SIDE' == 'limits' && sign(quantity({_AMOUNT})) == 0)",
    f"n + ': ' + (isQuantity({_AMOUNT}) && sign(quantity({_AMOUNT})) == 0 ? "
    f"'0 requests no GPU: write how many, or remove the resource' : {_AMOUNT} + ' is not a whole number of GPUs')",
)
_MOST_GPUS = 16


def _misspelt_names(facts: Facts) -> str:
    return _of_sides(
        _misspelt("n", facts), "'no device plugin offers ' + n + ': did you mean nvidia.com/gpu, or a MIG profile?'"
    )


def _more_than(most: int, name: str, whose: str) -> str:
    """A finding if a pod needs more of a resource at the same time than there is on the largest of `whose`."""
    asked = gpus("c", text(name))
    beside = "p.containers + p.inits.filter(c, c.c.?restartPolicy.orValue('') == 'Always')"
    return finding(
        f"({beside}).map(c, {asked}).filter(g, g > 0).sum() > {most} || p.inits.exists(c, {asked} > {most})",
        "p.at",
        text(f"spec: {whose} has more than {most} {name}, and the pod requests more: use more pods"),
    )


def _too_many(facts: Facts) -> str:
    """Selectors are not evaluated: the largest node counts, also for a pod that selects others."""
    nodes = gpu_nodes(facts)
    if not nodes or grows(facts):
        return _more_than(_MOST_GPUS, GPU, "no machine")
    return " + ".join(
        _more_than(max(offers(node, name) for node in nodes), name, "no node") for name in (GPU, SHARED_GPU)
    )


_GPU_LIMIT = f"c.limits[{text(GPU)}]"
_ON_CPUS = r"\bgloo\b|--device[= ]cpu"
_RANKS = r"--nproc[-_]per[-_]node[= ][0-9]{1,4}\b"
_PARALLEL = r"(--tensor[-_]parallel[-_]size|--tp[-_]size|--num-shard|(^|\s)-tp)[= ][0-9]{1,4}\b"
_SHARING = (
    "(variables.kind == 'leaderworkerset.x-k8s.io/LeaderWorkerSet' ? "
    "object.spec.?leaderWorkerTemplate.?size.orValue(1) : 1)"
)
_SEVERAL_PODS = r"\bray\b|multi-node|--nnodes[= ]([^1]|1\w|$)|--node[-_]rank|--dist-init-addr|distributed-executor"


def _started(pattern: str) -> str:
    """The number in the argument that the pattern matches; 0 without one."""
    argument = f"{words('c')}.find({text(pattern)})"
    return f"({argument} == '' ? 0 : int({argument}.find('[0-9]+$')))"


_HAVE_GPUS = each(
    "p.containers",
    "c",
    only(
        f"{text(GPU)} in c.limits && {counted(_GPU_LIMIT)} > 0 && !{matches(words('c'), _ON_CPUS)}",
        " + ".join(
            finding(
                f"{condition}{_started(pattern)} > {gpus('c')} * {pods}",
                f"c.at + '.resources.limits[{GPU}]: the command starts '",
                f"string({_started(pattern)})",
                f"' {what}, and the container has ' + string({gpus('c')}) + ' GPUs'",
            )
            for pattern, what, condition, pods in (
                (_RANKS, "processes", "", "1"),
                (_PARALLEL, "tensor-parallel ranks", f"!{matches(words('c'), _SEVERAL_PODS)} && ", _SHARING),
            )
        ),
    ),
)
_UNMISTAKABLE_MIB = 143_771
_MIB_OF = ", ".join(
    f"{text(name.casefold())}: {gpu.memory_mib}" for gpu in GPUS for name in dict.fromkeys((gpu.model, gpu.name))
)
_SELECTOR = "p.spec.?nodeSelector"
_LABELLED = f"{_SELECTOR}[?'nvidia.com/gpu.memory'].orValue('')"
_MIB = (
    f"({_LABELLED}.matches('^[0-9]{{1,9}}$') ? int({_LABELLED}) : "
    f"{{{_MIB_OF}}}[?{_SELECTOR}[?'nvidia.com/gpu.product'].orValue('').lowerAscii()].orValue(0))"
)
_KNOWN_MIB = f"(m == 0 ? {_UNMISTAKABLE_MIB} : m)"
_WRITTEN_GB = f"[({_KNOWN_MIB} + 1023) / 1024, {_KNOWN_MIB} * 1048576 / 1000000000].filter(g, g >= 64)"
_LIMIT = "string(c.limits['memory'])"
_IS_LIMIT = f"quantity({_LIMIT}).compareTo(quantity(string(SIZE) + u)) == 0"
_RUNS_ITSELF = f"(variables.kind != 'kubeflow.org/MPIJob' || {words('c')} != '')"
_HAVE_MEMORY = each(
    f"p.containers.filter(c, 'memory' in c.limits && isQuantity({_LIMIT}) && {text(GPU)} in c.limits)",
    "c",
    finding(
        f"{gpus('c')} > 1 && {runs_framework('c')} && {_RUNS_ITSELF} && sign(quantity({_LIMIT})) != 0 && "
        f"quantity({_LIMIT}).isLessThan(quantity(string({gpus('c')}) + 'Gi'))",
        f"c.at + '.resources.limits[memory]: ' + {_LIMIT} + ' for the processes of ' + string({gpus('c')})",
        "' GPUs: each takes more than 1 GiB of host memory for CUDA and the framework alone'",
    )
    + " + "
    + finding(
        f"{gpus('c')} > 0 && [{_MIB}].exists(m, ['Gi', 'G'].exists(u, {_WRITTEN_GB}.exists(g, "
        f"g % 4 != 0 && g % 5 != 0 && [g, g * {gpus('c')}].exists(s, {_IS_LIMIT.replace('SIZE', 's')}) || "
        f"{gpus('c')} >= 8 && m != 0 && {_IS_LIMIT.replace('SIZE', 'g')})))",
        f"c.at + '.resources.limits[memory]: ' + {_LIMIT} + ' is the memory of its GPUs, and the limit is for host "
        "memory: write what the program needs of that; GPU memory has no limit'",
    ),
)
_INIT_GPUS = each(
    "p.inits.filter(c, c.c.?restartPolicy.orValue('') != 'Always')",
    "c",
    f"c.gpus.filter(n, {counted(asked('c', 'n'))} != 0).map(n, c.at + '.resources: ' + (size(p.asking) > 0 ? "
    "'the init container requests ' + n + ', as the containers do: do that work in a container' : "
    "'only the init container requests ' + n + ', which stays allocated until the pod ends'))",
)
_COUNTED = each(
    "[object.?spec.?hard.orValue({})]",
    "h",
    "h.filter(k, "
    + matches("k", GPU_NAME.replace("^", r"^(limits\.)?"))
    + ").map(k, 'spec.hard[' + k + ']: the quota of an extended resource counts only as requests.' + "
    "(k.startsWith('limits.') ? k.substring(7) : k))",
)

POLICIES = {
    "G01": Cel(_HAVE_LIMITS),
    "G02": Cel(_ARE_EQUAL),
    "G03": Cel(_ARE_WHOLE),
    "G04": Cel(in_cluster=_misspelt_names, omits="domains that differ from nvidia.com in more than one letter"),
    "G05": Cel(
        _of_sides(f"n == {text(_RETIRED)}", f"'Kubernetes 1.11 removed {_RETIRED}: write {GPU}'"),
    ),
    "G11": Cel(in_cluster=_too_many, omits="selectors of nodes: a pod may ask for as much as the largest node has"),
    "G15": Cel(whole=_COUNTED, resource=("", "resourcequotas")),
    "G16": Cel(
        each(
            "p.all",
            "c",
            f"c.gpus.filter(n, n.endsWith('.shared') && {counted(asked('c', 'n'))} > 1).map(n, c.at + '.resources: ' "
            f"+ n + ': ' + string({asked('c', 'n')}) + ' replicas give no more of a GPU than one: write 1')",
        ),
        omits="the configuration of the device plugin, which may allow it",
    ),
    "G28": Cel(
        _HAVE_MEMORY,
        omits="the memory of the nodes' GPUs, and what served models need: only that of the GPUs that the pod selects, "
        "and of an H200",
    ),
    "G42": Cel(_INIT_GPUS),
    "G48": Cel(_HAVE_GPUS, omits="the stages of pipelines, and the numbers in fields of Kubeflow's and Ray's objects"),
}

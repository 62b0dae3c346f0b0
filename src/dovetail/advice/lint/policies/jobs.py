# SPDX-License-Identifier: Apache-2.0
"""Policies about gangs, schedulers, interruptions, priorities, notebooks and spreading."""

from __future__ import annotations

from dovetail.advice.lint.cel import Cel, finding, matches, only, text, texts, words
from dovetail.advice.lint.inventory import DEFAULT_SCHEDULER
from dovetail.advice.lint.rule import Facts
from dovetail.advice.lint.rules.gangs import KNOWN, MARKS
from dovetail.advice.lint.rules.jobs import ENDING
from dovetail.advice.lint.rules.lifecycle import LAUNCHED, SLEEP_COMMAND
from dovetail.advice.spot_nodes import SPOT_NODES, SpotNodes

_TRAINING = ("PyTorchJob", "TFJob", "MPIJob", "XGBoostJob", "PaddleJob", "JAXJob")
_REPLICAS = (
    "["
    + ", ".join(
        f"object.spec.?{side}ReplicaSpecs.orValue({{}})" for side in ("pytorch", "tf", "mpi", "xgb", "paddle", "jax")
    )
    + "]"
)
_SUM = f"{_REPLICAS}.map(r, r.map(k, int(r[k].?replicas.orValue(1))).sum()).sum()"


def _kinds(group: str, *kinds: str) -> str:
    return texts(f"{group}/{kind}" for kind in kinds)


_TASKS = "object.?spec.?tasks.orValue([])"
_VOLCANO = (
    f"{_TASKS}.filter(t, has(t.replicas) && t.?minAvailable.orValue(0) > t.replicas).map(t, 'spec.tasks[' + "
    "t.?name.orValue('') + '].minAvailable: it is ' + string(t.minAvailable) + ', and the task has ' + "
    "string(t.replicas) + ' pods') + "
    + finding(
        f"size({_TASKS}) > 0 && object.spec.?minAvailable.orValue(0) > "
        f"{_TASKS}.map(t, int(t.?replicas.orValue(1))).sum()",
        "'spec.minAvailable: it is ' + string(object.spec.minAvailable) + ', and the tasks have fewer pods'",
    )
)
_LEAST = "object.?spec.?runPolicy.?schedulingPolicy.?minAvailable"
_LAUNCHER = "object.?spec.?mpiReplicaSpecs.?Launcher"
_WAITS = (
    "object.?spec.?launcherCreationPolicy.orValue('') == 'WaitForWorkersReady' || "
    "object.?spec.?waitForWorkers.orValue(false) == true"
)
_LATE = f"(({_WAITS}) && {_LAUNCHER}.hasValue() ? int({_LAUNCHER}.?replicas.orValue(1)) : 0)"
_KUBEFLOW = finding(
    f"{_LEAST}.hasValue() && (!({_WAITS}) || {_SUM} > 0) && ({_LEAST}.value() > {_SUM} - {_LATE} || "
    f"variables.kind in {_kinds('kubeflow.org', 'PyTorchJob', 'JAXJob')} && !has(object.spec.elasticPolicy) && "
    f"{_LEAST}.value() > 0 && {_LEAST}.value() < {_SUM})",
    f"'spec.runPolicy.schedulingPolicy.minAvailable: it is ' + string({_LEAST}.value()) + ', and ' + "
    f"string({_SUM} - {_LATE}) + ' pods start together'",
)
_MINIMUM = (
    only("variables.kind == 'batch.volcano.sh/Job'", f"({_VOLCANO})")
    + " + "
    + only(f"variables.kind in {_kinds('kubeflow.org', *_TRAINING)}", _KUBEFLOW)
)

_SCHEDULER = "p.spec.?schedulerName.orValue('')"


def _schedulers(facts: Facts) -> str:
    found = []
    for mark in MARKS:
        strangers = sorted(KNOWN - mark.readers - {DEFAULT_SCHEDULER})
        unnamed = ["", DEFAULT_SCHEDULER] if mark.meant else []
        readers = " or ".join(sorted(mark.readers))
        found.append(
            f"{texts(mark.keys)}.filter(k, k in p.meta.?{mark.side}.orValue({{}}) && {_SCHEDULER} in "
            f"{texts([*strangers, *unnamed])}).map(k, p.at + 'spec.schedulerName: ' + ({_SCHEDULER} == '' ? "
            f"'the default scheduler' : {_SCHEDULER}) + ' does not read ' + k + {text(f': write {readers}')})"
        )
    if facts.schedulers is not None:
        names = sorted({"", *facts.schedulers})
        missing = f"' is installed: the schedulers are {', '.join(names[1:])}'"
        unknown = finding(
            f"!({_SCHEDULER} in {texts(names)})", f"p.at + 'spec.schedulerName: no scheduler ' + {_SCHEDULER}", missing
        )
        found.append(unknown)
    return only("p.uses", f"({' + '.join(found)})")


_ENDS = texts(f"{group}/{kind}" if group else kind for group, kind in sorted(ENDING))
_TO_AN_END = (
    f"p.uses && variables.kind in {_ENDS} && "
    "(variables.kind != 'Pod' || p.spec.?restartPolicy.orValue('') in ['Never', 'OnFailure'])"
)
_TERMS = "p.spec.?affinity.?nodeAffinity.?requiredDuringSchedulingIgnoredDuringExecution.?nodeSelectorTerms.orValue([])"
_SINGLE = (
    f"(size({_TERMS}) == 1 ? {_TERMS}[0].?matchExpressions.orValue([]) : []).filter(e, e.?operator.orValue('') == "
    f"'In' && size(e.?values.orValue([])) == 1)"
)
_SPOT = (
    "(p.spec.?nodeSelector.orValue({}).exists(k, k + '=' + string(p.spec.nodeSelector[k]) in SPOT) || "
    f"{_SINGLE}.exists(e, e.?key.orValue('') + '=' + string(e.values[0]) in SPOT))"
)


def _on_spot(*nodes: SpotNodes) -> str:
    return _SPOT.replace("SPOT", texts(f"{one.label}={one.value}" for one in nodes))


_JOB = "(variables.kind == 'batch/CronJob' ? object.?spec.?jobTemplate.?spec : object.?spec)"
_IS_JOB = "variables.kind in ['batch/Job', 'batch/CronJob']"
_DEADLINES = (
    f"([p.spec.?activeDeadlineSeconds] + ({_IS_JOB} ? [{_JOB}.?activeDeadlineSeconds] : []) + "
    "(variables.kind.startsWith('kubeflow.org/') ? [object.?spec.?runPolicy.?activeDeadlineSeconds] : []))"
    ".filter(d, d.hasValue()).map(d, int(d.value()))"
)
_LOST = "['emptyDir', 'hostPath', 'ephemeral', 'configMap', 'secret', 'downwardAPI', 'projected', 'image', 'name']"
_KEPT = f"p.spec.?volumes.orValue([]).filter(v, v.exists(k, !(k in {_LOST}))).map(v, v.?name.orValue(''))"
_STORE = r"\b(s3|gs|gcs|az|abfss?|wasbs|hdfs|oci)://"
_OF_GPU = "[c.limits, c.requests].exists(r, r.exists(n, n.matches('gpu|nvidia[.]com/mig-')))"
_TRAINERS = f"(p.containers.exists(c, {_OF_GPU}) ? p.containers.filter(c, {_OF_GPU}) : p.containers)"
_STORES = (
    f"c.c.?volumeMounts.orValue([]).exists(m, m.?name.orValue('') in {_KEPT} && m.?readOnly.orValue(false) != true) || "
    + matches(words("c"), _STORE)
    + " || c.c.?env.orValue([]).exists(e, "
    + matches("e.?value.orValue('')", _STORE)
    + ")"
)
_ALL_STORE = f"{_TRAINERS}.all(c, {_STORES})"
_NO_HOOK = f"{_TRAINERS}.exists(c, !has(c.c.lifecycle) || !has(c.c.lifecycle.preStop))"
_EARLY = " + ".join(
    finding(
        f"{_ALL_STORE} && {_NO_HOOK} && {_on_spot(one)} && "
        f"p.spec.?terminationGracePeriodSeconds.orValue(30) < {one.notice_s}",
        f"p.at + 'spec.terminationGracePeriodSeconds: {one.cloud} reclaims a spot node {one.notice_s} s after a "
        f"notice, and no preStop hook saves: write {one.notice_s}'",
    )
    for one in SPOT_NODES
)
_INTERRUPTED = only(
    f"{_TO_AN_END} && size(p.asking) > 0 && {_on_spot(*SPOT_NODES)} && !{_DEADLINES}.exists(d, d <= 3600)",
    "("
    + finding(
        f"!{_ALL_STORE}",
        "p.at + 'spec: a spot node can be reclaimed at any time, and checkpoints would be lost with the pod: mount a "
        "PersistentVolumeClaim, or name an object store'",
    )
    + f" + {_EARLY})",
)
_WIDE = f"{_JOB}.?parallelism.orValue(1)"
_TOGETHER = (
    f"({_IS_JOB} ? {_JOB}.?completionMode.orValue('') == 'Indexed' && {_WIDE} > 1 && "
    f"{_JOB}.?completions.orValue(0) == {_WIDE} : variables.kind.startsWith('kubeflow.org/') && {_SUM} > 1)"
)
_KARPENTER = (
    "(p.spec.?nodeSelector.orValue({}).exists(k, k.startsWith('karpenter.sh/')) || "
    f"{_SINGLE}.exists(e, e.?key.orValue('').startsWith('karpenter.sh/')))"
)
_DISRUPTED = finding(
    f"{_TO_AN_END} && size(p.asking) > 0 && !['karpenter.sh/do-not-disrupt', 'karpenter.sh/do-not-evict'].exists(a, "
    f"a in p.meta.?annotations.orValue({{}})) && (size({_DEADLINES}) == 0 ? {_TOGETHER} : {_DEADLINES}.min() >= "
    f"{4 * 3600}) && "
    f"{_KARPENTER} && !{_ALL_STORE}",
    "p.at + 'metadata.annotations: Karpenter may remove the node to save cost, and the job stores no progress: "
    "annotate "
    'its pods with karpenter.sh/do-not-disrupt: "true"\'',
)
_KEPT_NOT = finding(
    f"{_IS_JOB} && variables.pods.exists(p, p.uses) && {_JOB}.?ttlSecondsAfterFinished.orValue(1) == 0",
    "'spec.ttlSecondsAfterFinished: it is 0: write how long to keep its status and logs, such as 86400'",
)
_SYSTEM = "p.spec.?priorityClassName.orValue('') in ['system-node-critical', 'system-cluster-critical']"
_PRIORITY = finding(
    f"{_TO_AN_END} && {_SYSTEM}",
    "p.at + 'spec.priorityClassName: ' + p.spec.priorityClassName + ' is for components of the cluster: use a class "
    "for "
    "batch work'",
)

_METAS = "[object.?metadata, optional.of(p.meta)].map(m, m.?annotations.orValue({}))"
_DEADLINE = "has(p.spec.activeDeadlineSeconds) || object.?spec.?activeDeadlineSeconds.hasValue()"
_ENDED = (
    f"{_DEADLINE} || {_METAS}.exists(a, a.exists(k, {matches('k', '(?i)idle|cull|inactiv')} || "
    "k == 'dovetail.dev/preemptible' && a[k] == 'true'))"
)
_RUNS = (
    f"({words('c')} != '' ? "
    + matches(words("c"), r"\bjupyter[ -](lab|notebook|server)\b|\bstart-notebook\.(sh|py)\b|\bcode-server\b")
    + " : "
    + matches("c.c.?image.orValue('')", r"^[^@]*\b(jupyter|jupyterlab)\b")
    + ")"
)
_NOTEBOOK = only(
    f"p.uses && variables.kind != 'kubeflow.org/Notebook' && !({_ENDED})",
    f"(variables.kind in {texts(f'kubeflow.org/{kind}' for kind in LAUNCHED)} ? [] : p.computing.filter(c, "
    + matches(words("c"), SLEEP_COMMAND)
    + ").map(c, c.at + ': the container only waits: run the work as its command, or, in a Pod or "
    "Job, end it with activeDeadlineSeconds')) + "
    f"p.computing.filter(c, {_RUNS} && !"
    + matches(words("c"), r"(shutdown_no_activity_timeout|cull_idle_timeout)[= ]([^0]|0\w|$)")
    + " && !c.c.?env.orValue([]).exists(e, e.?name.orValue('') in ['JUPYTERHUB_API_TOKEN', "
    "'JUPYTERHUB_SERVICE_PREFIX']) && !c.c.?volumeMounts.orValue([]).exists(m, "
    + matches("m.?mountPath.orValue('')", r"/(\.jupyter|etc/jupyter)(/|$)")
    + ")).map(c, c.at + ': nothing ends the notebook when it is idle: add the argument "
    "--ServerApp.shutdown_no_activity_timeout=SECONDS')",
)

POLICIES = {
    "G12": Cel(
        whole=_MINIMUM, omits="PodGroups, and gangs that pods name: only the numbers of Jobs of Volcano and Kubeflow"
    ),
    "G13": Cel(in_cluster=_schedulers, omits="misspelt names of schedulers, where none are known"),
    "G29": Cel(_INTERRUPTED),
    "G30": Cel(
        _DISRUPTED,
        omits="the labels of the nodes, JobSets, training runtimes and Volcano's Jobs: only Jobs and those of Kubeflow "
        "that select nodes of Karpenter",
    ),
    "G31": Cel(whole=_KEPT_NOT, omits="backoffLimit, which the API server fills in"),
    "G35": Cel(_PRIORITY, omits="the priority classes of the cluster: only those of Kubernetes' components"),
    "G40": Cel(_NOTEBOOK, omits="Kubeflow's notebooks, which their controller may end"),
}

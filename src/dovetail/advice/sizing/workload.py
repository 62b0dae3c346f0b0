# SPDX-License-Identifier: Apache-2.0
"""What kind of work a job is: training, serving, a notebook, or not known.

Rules: a notebook is known by its kind, its labels or its name, as in the alerts; else the kind of the object that made
the job decides. Kinds that end are taken for training: batch inference is sized in the same way.
"""

from __future__ import annotations

import re
from typing import Literal

from dovetail.history.records import PodRecord
from dovetail.monitoring.thresholds import resolved

Workload = Literal["training", "serving", "notebook", "other"]
_NOTEBOOK_NAME = re.compile(str(resolved()["notebook_pods"]))
_NOTEBOOK_LABELS = ("notebook-name", "hub.jupyter.org/username")
"""Of Kubeflow's notebook controller, and of JupyterHub on Kubernetes."""
_NOTEBOOKS = frozenset(("Notebook", "Workspace"))
TRAINING = frozenset((
    "Job", "CronJob", "JobSet", "TrainJob", "PyTorchJob", "MPIJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob",
    "RayJob",
))  # fmt: skip
_REPLICAS = frozenset(("Deployment", "ReplicaSet", "StatefulSet", "InferenceService", "Rollout"))
SERVING = _REPLICAS | {"LeaderWorkerSet", "RayService"}


def workload_of(pod: PodRecord) -> Workload:
    """The kind of work of the job that has this pod."""
    named = _NOTEBOOK_NAME.fullmatch(pod.name) or _NOTEBOOK_NAME.fullmatch(pod.job)
    if pod.kind in _NOTEBOOKS or any(label in pod.labels for label in _NOTEBOOK_LABELS) or named:
        return "notebook"
    if pod.kind in TRAINING:
        return "training"
    return "serving" if pod.kind in SERVING else "other"


def is_replicated(pod: PodRecord) -> bool:
    """Whether the pods of the job do not work together: replicas, each of which serves on its own."""
    return pod.kind in _REPLICAS

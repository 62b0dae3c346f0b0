# SPDX-License-Identifier: Apache-2.0
"""The controller and the webhooks of LeaderWorkerSet, pinned and built from source, on a plane.

Rules: it is ready when `start` returns, and `stop`, or any end of this process, ends it. Its webhooks see
LeaderWorkerSets and their pods alone, so that other tests of the same plane do not depend on it; they go with it. Its
definitions and the paths of its webhooks are those of the module.
"""

import json
import re
import shutil
import socket
import subprocess
import tempfile
import time
from base64 import b64encode
from pathlib import Path
from typing import Any, Self

import yaml

from tools.controlplane import binaries
from tools.controlplane.binaries import Module, PlaneUnavailable, Report
from tools.controlplane.children import Children, tail
from tools.controlplane.components import HOST
from tools.controlplane.credentials import Authority
from tools.controlplane.plane import Plane, RequestFailed, print_progress
from tools.controlplane.started import Started

FOLDER = Path(__file__).parent
_MODULE = "sigs.k8s.io/lws"
VERSION = re.findall(rf"\s{_MODULE} (v\S+)", (FOLDER / "go.mod").read_text())[0]
PACKAGES = {"lws": f"{_MODULE}/cmd"}
MODULE = Module(
    f"LeaderWorkerSet {VERSION}",
    f"lws-{VERSION}",
    FOLDER,
    ("-mod=readonly", "-ldflags=-s -w"),
    binaries.GO_ENVIRONMENT,
)
SETS = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/{namespace}/leaderworkersets"
READY_WITHIN_S = 120.0
POLL_S = 0.2
_NAMED = {"matchExpressions": [{"key": "leaderworkerset.sigs.k8s.io/name", "operator": "Exists"}]}


class ControllerFailed(Exception):
    """The controller ended, or was not ready in time. The message has the end of its log."""


class LeaderWorkerSets(Started):
    """The controller of a plane, not started yet. Use it as a context manager, or call `start` and `stop`."""

    def __init__(self, plane: Plane, report: Report = print_progress) -> None:
        self._plane = plane
        self._report = report
        self._children = Children()

    def start(self) -> Self:
        """Build the program if the cache lacks it, start it, and wait until the plane takes a LeaderWorkerSet.

        Raises PlaneUnavailable if it cannot be built, ControllerFailed if it does not come up.
        """
        program = binaries.build(self._report, PACKAGES, MODULE) / "lws"
        source = _source()
        scratch = Path(tempfile.mkdtemp(prefix="dovetail-lws-"))
        self._log = scratch / "lws.log"
        self._children.open(scratch)
        try:
            self._plane.kubectl("apply", "--server-side", "-f", str(source / "config" / "crd" / "bases"))
            with socket.socket() as free:
                free.bind((HOST, 0))
                port = free.getsockname()[1]
            authority = Authority("dovetail webhooks")
            pair = authority.server(["localhost"], [HOST])
            (scratch / "tls.crt").write_bytes(pair.certificate_pem)
            (scratch / "tls.key").write_bytes(pair.key_pem)
            configuration = {
                "apiVersion": "config.lws.x-k8s.io/v1alpha1",
                "kind": "Configuration",
                "leaderElection": {"leaderElect": False},
                "metrics": {"bindAddress": "0"},
                "health": {"healthProbeBindAddress": "0"},
                "webhook": {"host": HOST, "port": port, "certDir": str(scratch)},
                "internalCertManagement": {"enable": False},
            }
            (scratch / "lws.yaml").write_text(yaml.safe_dump(configuration))
            argv = [str(program), f"--config={scratch / 'lws.yaml'}", f"--kubeconfig={self._plane.kubeconfig}"]
            self._children.start("lws", argv, self._log)
            self._webhooks = list(_webhooks(source, f"https://{HOST}:{port}", authority.pem))
            self._plane.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(self._webhooks))
            self._await_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the controller and remove its webhooks; its definition stays."""
        for one in getattr(self, "_webhooks", ()):
            self._plane.kubectl("delete", "--ignore-not-found", one["kind"], one["metadata"]["name"])
        self._webhooks = []
        self._children.close()

    def _await_ready(self) -> None:
        template = {"spec": {"containers": [{"name": "a", "image": "b"}]}}
        probe = {
            "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "probe"},
            "spec": {"leaderWorkerTemplate": {"workerTemplate": template}},
        }  # fmt: skip
        deadline = time.monotonic() + READY_WITHIN_S
        while True:
            try:
                self._plane.apply(f"{SETS.format(namespace='default')}/probe", probe, dry_run=True)
                return
            except RequestFailed as failed:
                ended = self._children.exit_status("lws") is not None
                if ended or time.monotonic() > deadline:
                    what = "ended" if ended else f"took no object within {READY_WITHIN_S:g} s ({failed})"
                    raise ControllerFailed(f"lws {what}:\n{tail(self._log.read_text())}") from failed
            time.sleep(POLL_S)


def _source() -> Path:
    """The folder of the module's source, downloaded if it is not there. Raises PlaneUnavailable."""
    go = shutil.which("go")
    argv = [go or "go", "mod", "download", "-json", f"{_MODULE}@{VERSION}"]
    done = subprocess.run(argv, cwd=FOLDER, capture_output=True, text=True, check=False) if go else None
    if done is None or done.returncode:
        raise PlaneUnavailable(f"no source of {_MODULE} {VERSION}: {done.stdout if done else 'there is no go'}")
    return Path(json.loads(done.stdout)["Dir"])


def _webhooks(source: Path, url: str, ca_pem: bytes) -> Any:
    """The module's webhook configurations, called at this address."""
    for one in yaml.safe_load_all((source / "config" / "webhook" / "manifests.yaml").read_text()):
        one["metadata"]["name"] = f"lws-{one['metadata']['name']}"
        for hook in one["webhooks"]:
            path = hook["clientConfig"].pop("service")["path"]
            hook["clientConfig"] |= {"url": url + path, "caBundle": b64encode(ca_pem).decode()}
            if path.endswith("pod"):
                hook["objectSelector"] = _NAMED
        yield one

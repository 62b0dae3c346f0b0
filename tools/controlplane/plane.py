# SPDX-License-Identifier: Apache-2.0
"""A real Kubernetes control plane on loopback: etcd, kube-apiserver and, if asked for, the controllers and a scheduler.

Rules: a plane is ready when `start` returns. It has its own certificate authority, ports and data, so any number can
run at the same time. `stop`, or any end of this process, removes all of it. There is no kubelet: tests create the Node
objects, and a bound Pod stays Pending until a test changes its status.
"""

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, Self

import yaml

from tools.controlplane import binaries, components
from tools.controlplane.children import Children, tail
from tools.controlplane.components import HOST, SERVICE_ADDRESS, Files, Options
from tools.controlplane.connections import Connections
from tools.controlplane.credentials import Authority, KeyPair, key_pem, kubeconfig, new_key
from tools.controlplane.started import Started

READY_WITHIN_S = 60.0
POLL_S = 0.05
_OPENING = b"storage is (re)initializing"
# etcd preallocates 64 MiB per log segment, and a container's /dev/shm is often just that large.
SHM_FREE_BYTES = 2 << 30

# The users of the components; `admin` is for the caller.
USERS = {
    "admin": ("kubernetes-admin", ("system:masters",)),
    "kube-controller-manager": ("system:kube-controller-manager", ()),
    "kube-scheduler": ("system:kube-scheduler", ()),
}


class ComponentFailed(Exception):
    """A component exited, or was not ready in time. The message has the end of its log."""


class KubectlFailed(Exception):
    """kubectl failed. The message has its arguments and its stderr."""


class RequestFailed(Exception):
    """The API server refused a request. The message has its answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def print_progress(text: str) -> None:
    """Report progress of a build on stderr."""
    print(text, file=sys.stderr, flush=True)


class Plane(Started):
    """One control plane, not started yet. Use it as a context manager, or call `start` and `stop`.

    All methods except `start` and `stop` need a started plane.

    features, controllers, fair_queueing, audit_log, extra_flags: see `components.Options`.
    scheduler: also start the stock kube-scheduler with its default profile.
    work_dir: directory for logs, credentials and configuration files, which is kept; by default they are removed with
        the plane.
    report: called with each line of progress of a build.
    """

    def __init__(
        self,
        *,
        features: bool = True,
        controllers: bool | Sequence[str] = True,
        scheduler: bool = False,
        fair_queueing: bool = True,
        audit_log: Path | None = None,
        extra_flags: Mapping[str, Sequence[str]] | None = None,
        work_dir: Path | None = None,
        report: binaries.Report = print_progress,
    ) -> None:
        self.options = Options(features, controllers, fair_queueing, audit_log, extra_flags or {})
        self._with_scheduler = scheduler
        self._asked_work_dir = work_dir
        self._report = report
        self._authority = Authority("dovetail development plane")
        self._front_proxy = Authority("dovetail development front proxy")
        self._ports: dict[str, socket.socket] = {}
        self._tls_of_users: dict[str, ssl.SSLContext] = {}
        self._kept: Connections | None = None
        self._children = Children()

    def start(self) -> Self:
        """Build what is missing, start the processes and wait until they serve (about 3 s with the controllers).

        Raises binaries.PlaneUnavailable if the binaries cannot be had, ComponentFailed if one does not come up.
        """
        self._binaries = binaries.build(self._report)
        data = _scratch_dir()
        self._children.open(data)
        try:
            self._files = Files(self._asked_work_dir or data, data)
            self._write_credentials()
            self._execute("etcd", components.etcd(self._files))
            self.restart_apiserver()
            if self.options.controllers:
                self._bring_up("kube-controller-manager", components.kube_controller_manager, "/healthz")
            # The server creates this namespace after it is ready, and rejects Pods before their ServiceAccount exists.
            account = "/serviceaccounts/default" if self.options.runs("serviceaccount-controller") else ""
            self._await("kube-apiserver", f"/api/v1/namespaces/default{account}")
            if self._with_scheduler:
                self.start_scheduler()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Kill all processes and remove the data. A stopped plane can be started again, empty."""
        self._disconnect()
        self._children.close()
        for reserved in self._ports.values():
            reserved.close()
        self._ports.clear()

    @property
    def url(self) -> str:
        """The URL of kube-apiserver, `https://127.0.0.1:PORT`. A restart does not change it."""
        return f"https://{HOST}:{self._port('kube-apiserver')}"

    @property
    def scheduler_url(self) -> str:
        """The URL of kube-scheduler for /metrics, open to all users of this machine."""
        return f"https://{HOST}:{self._port('kube-scheduler')}"

    @property
    def ca_file(self) -> Path:
        """The certificate authority that signs all serving certificates, PEM."""
        return self._files.pem("ca")

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig with all rights (group system:masters)."""
        return self._files.kubeconfig("admin")

    @property
    def work_dir(self) -> Path:
        """The directory with logs (`<component>.log`), credentials and configuration files."""
        return self._files.work

    @property
    def bin_dir(self) -> Path:
        """The directory with the binaries, including kubectl."""
        return self._binaries

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the running components."""
        return self._children.pids

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        """Run kubectl as the administrator and return its output. `--kubeconfig=FILE` selects another user.

        Raises KubectlFailed.
        """
        environment = os.environ | {
            "KUBECONFIG": str(self.kubeconfig),
            # The discovery cache in the home directory is keyed by host and port, and ports are reused.
            "KUBECACHEDIR": str(self.work_dir / "kubectl-cache"),
            # Ignore the user's aliases and default flags.
            "KUBERC": "off",
        }
        argv = [str(self._binaries / "kubectl"), *arguments]
        done = subprocess.run(argv, input=input, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise KubectlFailed(f"kubectl {' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def request(
        self, method: str, path: str, body: object = None, content_type: str = "application/json", user: str = ""
    ) -> Any:
        """Send a request as the administrator, or as a user of `kubeconfig_for`, and return the decoded answer. kubectl
        needs ten times the CPU: use this to ask again and again. A kind that was just defined is asked for until the
        server has opened its storage, as kubectl does.

        Raises RequestFailed, OSError if nobody listens.
        """
        context = self._tls_of_users[user] if user else self._tls
        deadline = time.monotonic() + READY_WITHIN_S
        while True:
            status, text = self._connections().request(context, method, path, body, content_type)
            if status != HTTPStatus.TOO_MANY_REQUESTS or _OPENING not in text or time.monotonic() > deadline:
                break
            time.sleep(POLL_S)
        if status >= 400:
            raise RequestFailed(status, f"{method} {path}: {status}: {_message(text)}")
        return json.loads(text)

    def get(self, path: str) -> Any:
        """The object or list at a path of the API, None where there is none. Raises as `request`."""
        try:
            return self.request("GET", path)
        except RequestFailed as failed:
            if failed.status != 404:
                raise
            return None

    def apply(self, path: str, document: object, *, dry_run: bool = False) -> Any:
        """Apply an object on the server side, as `kubectl apply --server-side` does, and return what became of it.

        path: of the object, or of its subresource. Raises as `request`.
        """
        options = "fieldManager=kubectl&fieldValidation=Strict" + ("&dryRun=All" if dry_run else "")
        return self.request("PATCH", f"{path}?{options}", document, "application/apply-patch+yaml")

    def kubeconfig_for(self, user: str, groups: Sequence[str] = ()) -> Path:
        """Write a kubeconfig with a client certificate for a user and its groups. RBAC decides what it may do."""
        pair = self._authority.client(user, groups)
        path = self._write_kubeconfig(f"user-{user}", pair)
        certificate = path.with_suffix(".pem")
        _write_private(certificate, pair.certificate_pem + pair.key_pem)
        self._tls_of_users[user] = ssl.create_default_context(cafile=self.ca_file)
        self._tls_of_users[user].load_cert_chain(certificate)
        return path

    def serving_certificate(self, name: str) -> tuple[Path, Path]:
        """Write a serving certificate that the plane's authority signed, for this host name, and its key."""
        pair = self._authority.server([name], [])
        certificate, key = self._files.pem(f"serving-{name}"), self._files.pem(f"serving-{name}-key")
        _write_private(certificate, pair.certificate_pem)
        _write_private(key, pair.key_pem)
        return certificate, key

    def token(self, namespace: str, name: str, seconds: int = 3600) -> str:
        """Request a token of a ServiceAccount from the TokenRequest API. The server rejects less than 600 seconds.

        Raises as `request`.
        """
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        asked = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds},
        }
        return str(self.request("POST", path, asked)["status"]["token"])

    def service_account_kubeconfig(self, namespace: str, name: str) -> Path:
        """Write a kubeconfig with a one-hour token of an existing ServiceAccount. Raises as `request`."""
        return self._write_kubeconfig(f"service-account-{namespace}-{name}", self.token(namespace, name))

    def start_scheduler(self, config_overrides: Mapping[str, object] | None = None) -> None:
        """Start the stock kube-scheduler: no leader election, 10,000 requests a second.

        config_overrides: top-level fields of KubeSchedulerConfiguration, e.g. {"profiles": [...]}.
        Raises ComponentFailed.
        """
        configuration = components.scheduler_configuration(self._files, config_overrides or {})
        self._files.scheduler_config.write_text(yaml.safe_dump(configuration))
        self._bring_up("kube-scheduler", components.kube_scheduler, "/readyz")

    def stop_scheduler(self) -> None:
        """Kill kube-scheduler, if it runs."""
        self._children.stop("kube-scheduler")

    def stop_apiserver(self) -> None:
        """Kill kube-apiserver. Its port stays reserved and refuses connections until the restart."""
        self._disconnect()
        self._children.stop("kube-apiserver")

    def restart_apiserver(self) -> None:
        """Start kube-apiserver (again) at the same port over the same data, and wait until it is ready.

        Raises ComponentFailed.
        """
        self.stop_apiserver()
        self._bring_up("kube-apiserver", components.kube_apiserver, "/readyz")

    def _write_credentials(self) -> None:
        self.work_dir.mkdir(parents=True, exist_ok=True)
        serving = self._authority.server(components.SERVING_NAMES, [HOST, SERVICE_ADDRESS])
        proxy = self._front_proxy.client(components.FRONT_PROXY)
        users = {file_name: self._authority.client(user, groups) for file_name, (user, groups) in USERS.items()}
        for name, content in {
            "ca": self._authority.pem,
            "serving": serving.certificate_pem,
            "serving-key": serving.key_pem,
            "service-account-key": key_pem(new_key()),
            "admin": users["admin"].certificate_pem + users["admin"].key_pem,
            "front-proxy-ca": self._front_proxy.pem,
            "front-proxy": proxy.certificate_pem + proxy.key_pem,
        }.items():
            _write_private(self._files.pem(name), content)
        for file_name, pair in users.items():
            self._write_kubeconfig(file_name, pair)
        self._files.audit_policy.write_text(components.AUDIT_POLICY)
        self._tls = ssl.create_default_context(cafile=self.ca_file)
        self._tls.load_cert_chain(self._files.pem("admin"))

    def _write_kubeconfig(self, file_name: str, user: KeyPair | str) -> Path:
        path = self._files.kubeconfig(file_name.replace(":", "-").replace("/", "-"))
        _write_private(path, kubeconfig(self.url, self._authority.pem, user).encode())
        return path

    def _port(self, name: str) -> int:
        if name not in self._ports:
            # Bound but not listening, and with SO_REUSEPORT: only a process of ours that asks for sharing can listen
            # there, so the port can be neither lost before the component is up nor taken while it is down.
            reserved = socket.socket()
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            reserved.bind((HOST, 0))
            self._ports[name] = reserved
        port: int = self._ports[name].getsockname()[1]
        return port

    def _bring_up(self, name: str, flags: Callable[[Files, Options, int], list[str]], ready_path: str) -> None:
        self._execute(name, flags(self._files, self.options, self._port(name)))
        self._await(name, ready_path)

    def _execute(self, name: str, flags: Sequence[str]) -> None:
        argv = [str(self._binaries / name), *flags, *self.options.extra_flags.get(name, ())]
        self._children.start(name, argv, self._log(name))

    def _log(self, name: str) -> Path:
        return self.work_dir / f"{name}.log"

    def _await(self, name: str, path: str) -> None:
        """Poll until `path` answers 200: a component that comes up has no event to wait for.

        All polls are on one connection: a handshake takes more CPU time than the answer.
        """
        deadline = time.monotonic() + READY_WITHIN_S
        with closing(Connections(HOST, self._port(name), timeout_s=2.0)) as connections:
            while not self._answers(connections, path):
                # Without etcd kube-apiserver waits instead of exiting.
                for suspect in ("etcd", name):
                    status = self._children.exit_status(suspect)
                    if status is not None:
                        raise self._failure(suspect, f"ended with status {status}")
                if time.monotonic() > deadline:
                    raise self._failure(name, f"did not answer {path} within {READY_WITHIN_S:.0f} s")
                time.sleep(POLL_S)

    def _failure(self, name: str, what: str) -> ComponentFailed:
        log = tail(self._log(name).read_text(errors="replace"))
        return ComponentFailed(f"{name} {what}; the end of its log:\n{log}")

    def _connections(self) -> Connections:
        if self._kept is None:
            self._kept = Connections(HOST, self._port("kube-apiserver"))
        return self._kept

    def _disconnect(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _answers(self, connections: Connections, path: str) -> bool:
        try:
            return connections.request(self._tls, "GET", path, None, "")[0] == HTTPStatus.OK
        except (OSError, HTTPException):
            return False


def _message(answer: bytes) -> str:
    """The message of a Status, or what else was answered."""
    try:
        return str(json.loads(answer)["message"])
    except (ValueError, KeyError, TypeError):
        return answer.decode(errors="replace")


def _scratch_dir() -> Path:
    """Create a directory for etcd's data and sockets: in memory if it has space, with a path short enough for
    sockets."""
    memory = Path("/dev/shm")
    parent = memory if memory.is_dir() and shutil.disk_usage(memory).free > SHM_FREE_BYTES else None
    return Path(tempfile.mkdtemp(prefix="dovetail-plane-", dir=parent))


def _write_private(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)

# SPDX-License-Identifier: Apache-2.0
"""Kubeconfig files, service accounts and credential plugins: what is taken from them, and how errors name the place."""

import asyncio
import base64
import json
import os
import stat
import sys
import threading
from pathlib import Path

import pytest
import yaml

from dovetail.kube.api.config import in_cluster, load_config, load_kubeconfig
from dovetail.kube.api.credentials import Credentials, ExecPlugin, Files, Identity
from dovetail.kube.api.errors import ConfigError
from tests.patience import PATIENCE_S


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def kubeconfig(path: Path, *, cluster: object = None, user: object = None, **top: object) -> Path:
    """A file with one context "c" of the cluster and user "x"."""
    content: dict[str, object] = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "x", "user": "x", "namespace": "team"}}],
        "clusters": [{"name": "x", "cluster": cluster or {"server": "https://api:6443/"}}],
        "users": [{"name": "x", "user": user or {}}],
    }
    path.write_text(yaml.safe_dump(content | top))
    return path


def test_a_plain_file(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("CA")
    cluster = {"server": "https://api:6443/", "certificate-authority": "ca.pem", "tls-server-name": "kube"}
    config = load_kubeconfig([kubeconfig(tmp_path / "config", cluster=cluster, user={"token": "secret"})])
    assert (config.server, config.namespace, config.ca_pem) == ("https://api:6443", "team", "CA")
    assert config.tls_server_name == "kube"
    assert config.source.issue().token == "secret"


def test_data_wins_over_files_and_files_are_relative_to_their_config(tmp_path: Path) -> None:
    for name in ("cert", "key"):
        (tmp_path / name).write_text(name.upper())
    files = {"client-certificate": "cert", "client-key": "key"}
    cluster = {"server": "https://api", "certificate-authority": "absent", "certificate-authority-data": b64("CA")}
    config = load_kubeconfig([kubeconfig(tmp_path / "a", cluster=cluster, user=files)])
    assert config.ca_pem == "CA"
    assert config.source.issue().client_pem == "CERT\nKEY"
    data = {"client-certificate-data": b64("C"), "client-key-data": b64("K")}
    assert load_kubeconfig([kubeconfig(tmp_path / "b", user=files | data)]).source.issue().client_pem == "C\nK"
    mixed = {"client-certificate-data": b64("C"), "client-key": "key"}
    assert load_kubeconfig([kubeconfig(tmp_path / "c", user=mixed)]).source.issue().client_pem == "C\nKEY"


def test_the_first_file_to_name_something_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "token").write_text("from more")
    first = tmp_path / "first"
    first.write_text("current-context: c\nclusters:\n- name: x\n  cluster: {server: 'https://first'}\nusers: null\n")
    second = kubeconfig(tmp_path / "more" / "config", user={"tokenFile": "token"}, **{"current-context": "other"})
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, [tmp_path / "absent", first, "", second])))
    config = load_config()
    assert config.server == "https://first"
    assert config.source.issue().token == "from more"


def test_a_context_can_be_selected_and_may_have_no_user(tmp_path: Path) -> None:
    contexts = [{"name": "anonymous", "context": {"cluster": "x"}}]
    config = load_config(str(kubeconfig(tmp_path / "config", contexts=contexts)), "anonymous")
    assert config.source == Files()
    assert config.namespace == "default"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"cluster": {"server": 7}}, r"config: clusters\[0\]\.cluster\.server: Expected `str`, got `int`"),
        ({"cluster": {"server": "api:6443"}}, r"config: clusters\[x\]\.cluster\.server: 'api:6443' is not an http"),
        (
            {"cluster": {"server": "https://a", "proxy-url": "http://p"}},
            r"clusters\[x\]\.cluster\.proxy-url: .*not supp",
        ),
        (
            {"cluster": {"server": "https://a", "certificate-authority": "no.pem"}},
            r"certificate-authority: cannot read .*no\.pem",
        ),
        (
            {"cluster": {"server": "https://a", "certificate-authority-data": "%"}},
            r"certificate-authority-data: not base64",
        ),
        ({"user": {"username": "u", "password": "p"}}, r"users\[x\]\.user\.username: not supported: use a token"),
        ({"user": {"auth-provider": {"name": "gcp"}}}, r"users\[x\]\.user\.auth-provider: not supported"),
        ({"user": {"as": "admin"}}, r"users\[x\]\.user\.as: not supported"),
        ({"user": {"client-certificate": "c"}}, r"users\[x\]\.user\.client-key: .*both halves"),
        (
            {"user": {"exec": {"command": "x", "apiVersion": "v1alpha1"}}},
            r"user\.exec\.apiVersion: 'v1alpha1' is not one",
        ),
        (
            {"user": {"exec": {"apiVersion": "v1"}}},
            r"config: users\[0\]\.user\.exec: Object missing required field `command`",
        ),
        ({"current-context": "gone"}, r"current-context: 'gone' is not defined; there are \['c'\]"),
        ({"current-context": ""}, r"current-context is not set: name one with --context, of \['c'\]"),
        ({"clusters": []}, r"contexts\[c\]\.context\.cluster: 'x' is not defined"),
        ({"users": None}, r"contexts\[c\]\.context\.user: 'x' is not defined"),
    ],
)
def test_errors_name_the_file_and_the_field(tmp_path: Path, parts: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_kubeconfig([kubeconfig(tmp_path / "config", **parts)])


@pytest.mark.parametrize(
    ("text", "message"), [("a: [", "not YAML"), ("- a", "top level"), ("", "current-context is not set")]
)
def test_files_that_are_no_kubeconfig(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(str(path))


def test_no_file_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*/absent"):
        load_config(str(tmp_path / "absent"))
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/a{os.pathsep}{tmp_path}/b")
    with pytest.raises(ConfigError, match="no file of the list exists"):
        load_config()


def service_account(root: Path) -> Path:
    for name, text in {"token": "t1\n", "ca.crt": "CA", "namespace": "here"}.items():
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("host", "server"), [("10.0.0.1", "https://10.0.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
def test_in_cluster(tmp_path: Path, host: str, server: str) -> None:
    config = in_cluster({"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"}, service_account(tmp_path))
    assert (config.server, config.namespace, config.ca_pem) == (server, "here", "CA")
    with pytest.raises(ConfigError, match="this is not a pod"):
        in_cluster({}, tmp_path)
    (tmp_path / "token").write_text("")
    with pytest.raises(ConfigError, match="token is empty"):
        in_cluster({"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"}, tmp_path)


def test_secrets_do_not_show_in_a_repr(tmp_path: Path) -> None:
    secrets = {"client-certificate-data": b64("SECRET"), "client-key-data": b64("SECRET"), "token": "SECRET"}
    config = load_kubeconfig([kubeconfig(tmp_path / "config", user=secrets)])
    assert "SECRET" not in repr((config, config.source.issue()))


async def test_token_files_are_read_again_before_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s = 1000.0
    monkeypatch.setattr("dovetail.kube.api.credentials.time.monotonic", lambda: clock_s)
    credentials = Credentials(Files(token_file=service_account(tmp_path) / "token"))
    first = await credentials.renew()
    (tmp_path / "token").write_text("t2")
    assert credentials.fresh() is first
    clock_s += 60
    assert credentials.fresh() is None
    assert (await credentials.renew()).token == "t2"
    (tmp_path / "token").unlink()
    clock_s += 60
    kept = await credentials.renew()
    assert kept.token == "t2", "a token file that is missing for a moment stops nobody"
    with pytest.raises(ConfigError, match="tokenFile: cannot read"):
        await credentials.renew(kept)


class HeldSource:
    """Each credential is issued when `go` is set. `most` is how many were being issued at a time."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.now = self.most = self.issued = 0

    def issue(self) -> Identity:
        self.now += 1
        self.most = max(self.most, self.now)
        self.begun.set()
        assert self.go.wait(PATIENCE_S)
        self.now -= 1
        self.issued += 1
        return Identity(f"t{self.issued}")


async def test_a_plugin_is_not_run_again_beside_the_run_of_a_caller_that_was_cancelled() -> None:
    source = HeldSource()
    credentials = Credentials(source)
    cancelled = asyncio.create_task(credentials.renew())
    try:
        assert await asyncio.to_thread(source.begun.wait, PATIENCE_S)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        others = [asyncio.create_task(credentials.renew()) for _ in range(3)]
        await asyncio.sleep(0.05)
    finally:
        source.go.set()
    assert [(await one).token for one in others] == ["t1"] * 3
    assert (source.issued, source.most) == (1, 1)


PLUGIN = """\
import json, os, pathlib, sys
runs = pathlib.Path(__file__).with_suffix(".runs")
runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
assert info["spec"]["interactive"] is False
token = "-".join([os.environ["MORE"], *sys.argv[1:], info["spec"].get("cluster", {}).get("server", "")])
status = {"token": token, "expirationTimestamp": os.environ["EXPIRES"]}
print(json.dumps({"apiVersion": info["apiVersion"], "kind": "ExecCredential", "status": status}))
"""


@pytest.mark.parametrize(("expires", "runs"), [("2999-01-01T00:00:00Z", 1), ("2001-01-01T00:00:00Z", 2)])
async def test_a_plugin_runs_again_only_when_its_credential_has_expired(
    tmp_path: Path, expires: str, runs: int
) -> None:
    (tmp_path / "plugin.py").write_text(PLUGIN)
    command = tmp_path / "plugin"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path}/plugin.py "$@"\n')
    command.chmod(stat.S_IRWXU)
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "./plugin",
        "args": ["a", "b"],
        "env": [{"name": "MORE", "value": "m"}, {"name": "EXPIRES", "value": expires}],
        "provideClusterInfo": True,
        "installHint": None,
    }
    credentials = Credentials(load_kubeconfig([kubeconfig(tmp_path / "config", user={"exec": plugin})]).source)
    for _ in range(2):
        identity = credentials.fresh() or await credentials.renew()
        assert identity.token == "m-a-b-https://api:6443"
    assert len((tmp_path / "plugin.runs").read_text()) == runs


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("echo oops >&2; exit 3", "users.*exec: '/bin/sh' exited with 3: oops"),
        ("echo not json", "gave no credential"),
        ('echo \'{"apiVersion": "v9", "status": {"token": "t"}}\'', "printed no ExecCredential of v1"),
        ('echo \'{"apiVersion": "v1", "status": {}}\'', "neither a token nor a certificate"),
    ],
)
def test_plugins_that_fail_state_how(command: str, message: str) -> None:
    plugin = ExecPlugin("/bin/sh", ("-c", command), (), json.dumps({}), "v1", "config: users[x].user.exec")
    with pytest.raises(ConfigError, match=message):
        plugin.issue()


def test_a_plugin_that_is_missing_gives_its_hint() -> None:
    plugin = ExecPlugin("/no/such", (), (), "{}", "v1", "config: users[x].user.exec", "Get it at the usual place.")
    with pytest.raises(ConfigError, match=r"is not installed\. Get it at the usual place\."):
        plugin.issue()

# SPDX-License-Identifier: Apache-2.0
"""How to reach a cluster: kubeconfig files or the service account of a pod, as one frozen `ClusterConfig`.

Kubeconfig rules are client-go's (clientcmd): of several files in $KUBECONFIG the first to name a cluster, user, context
or current-context wins, a file of that list that does not exist is skipped, and relative paths start at the file that
holds them. What cannot be honoured (proxy-url, basic auth, auth-provider, impersonation) is refused by name, never
ignored. Secrets may be read here but are never part of a message.
"""

import base64
import binascii
import os
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from dovetail.kube.api.credentials import CredentialSource, ExecPlugin, Files, read
from dovetail.kube.api.errors import ConfigError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ClusterConfig(Struct, frozen=True):
    """The address of the API server, how to trust it, and our identity. `namespace` is the context's own, else
    "default"."""

    server: str
    namespace: str = "default"
    ca_pem: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    source: CredentialSource = field(default_factory=Files)

    def ssl_context(self, client_pem: str = "") -> ssl.SSLContext | None:
        """TLS settings with this client certificate; None for plain http. Raises ConfigError for unusable PEM data."""
        if not self.server.startswith("https://"):
            return None
        try:
            context = ssl.create_default_context(cadata=self.ca_pem or None)
            # Python 3.13 refuses CAs without an Authority Key Identifier; old kubeadm made such, and Go takes them.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            context.set_alpn_protocols(["http/1.1"])
            if self.insecure_skip_tls_verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if client_pem:
                # Imported here: most users have a token, and it takes as long as their request.
                import tempfile

                # OpenSSL's Python binding loads key pairs from files only.
                with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                    file.write(client_pem)
                    file.flush()
                    # A password passed beforehand: OpenSSL would ask for one on the terminal.
                    context.load_cert_chain(file.name, password="")
        except ssl.SSLError as error:
            raise ConfigError(f"{self.server}: the CA or client certificate cannot be used: {error}") from error
        return context


class _Cluster(Struct, rename="kebab"):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""


class _Variable(Struct):
    name: str
    value: str


class _Exec(Struct, rename="camel"):
    command: str
    api_version: str
    args: tuple[str, ...] | None = ()
    env: tuple[_Variable, ...] | None = ()
    install_hint: str | None = ""
    interactive_mode: str | None = ""
    provide_cluster_info: bool = False


class _User(Struct, rename="kebab"):
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    username: str = ""
    auth_provider: object = None
    impersonate: str = msgspec.field(default="", name="as")
    exec: _Exec | None = None


class _Context(Struct):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _Named(Struct):
    name: str
    cluster: _Cluster | None = None
    user: _User | None = None
    context: _Context | None = None


class _KubeConfig(Struct, rename="kebab"):
    clusters: list[_Named] | None = None
    users: list[_Named] | None = None
    contexts: list[_Named] | None = None
    current_context: str | None = ""


# Entries by name, each with the file it came from.
_Merged = dict[str, tuple[_Named, Path]]


def load_config(kubeconfig: str | None = None, context: str | None = None) -> ClusterConfig:
    """The cluster to use: the named file, else $KUBECONFIG, else the pod's service account, else ~/.kube/config.

    Raises ConfigError.
    """
    listed = kubeconfig or os.environ.get("KUBECONFIG")
    if not listed and "KUBERNETES_SERVICE_HOST" in os.environ and (SERVICE_ACCOUNT / "token").exists():
        return in_cluster()
    return load_kubeconfig(_paths(listed), context)


def context_names(kubeconfig: str | None = None) -> tuple[str, ...]:
    """The contexts of the named file, else of $KUBECONFIG, else of ~/.kube/config. Raises ConfigError."""
    files = [_parse(path) for path in _paths(kubeconfig or os.environ.get("KUBECONFIG"))]
    return tuple(dict.fromkeys(entry.name for file in files for entry in file.contexts or ()))


def _paths(listed: str | None) -> list[Path]:
    """Of a list of files those that exist; a file that is named alone has to."""
    paths = [Path(path).expanduser() for path in (listed or "~/.kube/config").split(os.pathsep) if path]
    return [path for path in paths if len(paths) == 1 or path.exists()]


def load_kubeconfig(paths: Sequence[Path], context: str | None = None) -> ClusterConfig:
    """The cluster that `context` (else the current one) names in these files, merged. Raises ConfigError."""
    files = " + ".join(map(str, paths)) or "$KUBECONFIG: no file of the list exists"
    clusters: _Merged = {}
    users: _Merged = {}
    contexts: _Merged = {}
    current = context or ""
    for path in paths:
        parsed = _parse(path)
        for merged, entries in ((clusters, parsed.clusters), (users, parsed.users), (contexts, parsed.contexts)):
            for entry in entries or ():
                merged.setdefault(entry.name, (entry, path))
        current = current or parsed.current_context or ""
    if not current:
        raise ConfigError(f"{files}: current-context is not set: name one with --context, of {sorted(contexts)}")

    named, file = _pick(contexts, current, f"{files}: current-context")
    chosen, where = named.context or _Context(), f"{file}: contexts[{current}].context"
    named, file = _pick(clusters, chosen.cluster, f"{where}.cluster")
    config = _cluster(named.cluster or _Cluster(), file, f"{file}: clusters[{named.name}].cluster", chosen.namespace)
    if not chosen.user:
        return config
    named, file = _pick(users, chosen.user, f"{where}.user")
    return replace(config, source=_source(named.user or _User(), config, file, f"{file}: users[{named.name}].user"))


def in_cluster(env: Mapping[str, str] = os.environ, root: Path = SERVICE_ACCOUNT) -> ClusterConfig:
    """The cluster this process runs in, as the pod's service account. Raises ConfigError."""
    host, port = env.get("KUBERNETES_SERVICE_HOST", ""), env.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise ConfigError("KUBERNETES_SERVICE_HOST and _PORT are not set, so this is not a pod: use --kubeconfig")
    source = Files(token_file=root / "token")
    source.issue()
    namespace = root / "namespace"
    return ClusterConfig(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=read(namespace, "service account").strip() if namespace.exists() else "default",
        ca_pem=read(root / "ca.crt", "service account"),
        source=source,
    )


def _parse(path: Path) -> _KubeConfig:
    # Imported here: in a pod there is no kubeconfig, and a process starts faster without PyYAML.
    import yaml

    from dovetail.kube.yaml_text import decode_yaml

    text = read(path, "kubeconfig")
    try:
        return decode_yaml(text, _KubeConfig | None) or _KubeConfig()
    except msgspec.ValidationError as error:
        message, _, at = str(error).partition(" - at `$.")
        raise ConfigError(f"{path}: {at.rstrip('`') or 'top level'}: {message}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error


def _pick(merged: _Merged, name: str, where: str) -> tuple[_Named, Path]:
    try:
        return merged[name]
    except KeyError:
        raise ConfigError(f"{where}: {name!r} is not defined; there are {sorted(merged)}") from None


def _cluster(cluster: _Cluster, file: Path, where: str, namespace: str) -> ClusterConfig:
    if not cluster.server.startswith(("https://", "http://")):
        raise ConfigError(f"{where}.server: {cluster.server!r} is not an http(s) URL")
    if cluster.proxy_url:
        raise ConfigError(f"{where}.proxy-url: proxies are not supported: use a server URL that needs none")
    ca_pem = _inline(cluster.certificate_authority_data, f"{where}.certificate-authority-data")
    if not ca_pem and cluster.certificate_authority:
        ca_pem = read(file.parent / cluster.certificate_authority, f"{where}.certificate-authority")
    return ClusterConfig(
        server=cluster.server.rstrip("/"),
        namespace=namespace or "default",
        ca_pem=ca_pem,
        insecure_skip_tls_verify=cluster.insecure_skip_tls_verify,
        tls_server_name=cluster.tls_server_name,
    )


def _source(user: _User, config: ClusterConfig, file: Path, where: str) -> CredentialSource:
    for name, value in (("username", user.username), ("auth-provider", user.auth_provider), ("as", user.impersonate)):
        if value:
            raise ConfigError(f"{where}.{name}: not supported: use a token, a client certificate or an exec plugin")
    if user.exec:
        return _plugin(user.exec, config, file, f"{where}.exec")
    cert = _inline(user.client_certificate_data, f"{where}.client-certificate-data")
    key = _inline(user.client_key_data, f"{where}.client-key-data")
    has_cert, has_key = bool(cert or user.client_certificate), bool(key or user.client_key)
    if has_cert != has_key:
        missing = "client-key" if has_cert else "client-certificate"
        raise ConfigError(f"{where}.{missing}: a client certificate needs both halves, and this one is missing")
    if bool(cert) != bool(key):
        cert = cert or read(file.parent / user.client_certificate, f"{where}.client-certificate")
        key = key or read(file.parent / user.client_key, f"{where}.client-key")
    return Files(
        token=user.token,
        token_file=file.parent / user.token_file if user.token_file else None,
        client_pem=f"{cert}\n{key}" if cert else "",
        cert_file=file.parent / user.client_certificate if user.client_certificate and not cert else None,
        key_file=file.parent / user.client_key if user.client_key and not key else None,
    )


def _plugin(plugin: _Exec, config: ClusterConfig, file: Path, where: str) -> ExecPlugin:
    versions = [f"client.authentication.k8s.io/{version}" for version in ("v1", "v1beta1")]
    if plugin.api_version not in versions:
        raise ConfigError(f"{where}.apiVersion: {plugin.api_version!r} is not one of {versions}")
    if plugin.interactive_mode == "Always":
        raise ConfigError(f"{where}.interactiveMode: plugins that ask questions cannot be used: log in beforehand")
    spec: dict[str, object] = {"interactive": False}
    if plugin.provide_cluster_info:
        spec["cluster"] = {
            "server": config.server,
            "tls-server-name": config.tls_server_name,
            "insecure-skip-tls-verify": config.insecure_skip_tls_verify,
            "certificate-authority-data": base64.b64encode(config.ca_pem.encode()).decode(),
        }
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    return ExecPlugin(
        command=str(file.parent / plugin.command) if "/" in plugin.command else plugin.command,
        args=plugin.args or (),
        env=tuple((variable.name, variable.value) for variable in plugin.env or ()),
        info=msgspec.json.encode(info).decode(),
        api_version=plugin.api_version,
        where=where,
        install_hint=plugin.install_hint or "",
    )


def _inline(data: str, where: str) -> str:
    try:
        return base64.b64decode(data, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: not base64 of a PEM text: {error}") from error

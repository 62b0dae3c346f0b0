# SPDX-License-Identifier: Apache-2.0
"""The same client over TLS with certificates, on both event loops that it will run on."""

import asyncio
import contextlib
import datetime
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from msgspec import Struct
from msgspec.structs import replace

from dovetail.kube.api.client import Attempts, Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.credentials import Files
from dovetail.kube.api.errors import ConfigError, Unreachable
from dovetail.kube.api.http1 import Dropped
from tests.kube.api.fake_server import read_request, serve_raw
from tests.patience import PATIENCE_S


class Authority:
    """A certificate authority without key identifiers, as old clusters have."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-ca")])
        self.pem = self._sign(self._name, self._key, x509.BasicConstraints(ca=True, path_length=None))

    def issue(self, name: str) -> str:
        """A certificate for this name and 127.0.0.1, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        pem = self._sign(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key, names)
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        return pem + key.private_bytes(encoding, form, serialization.NoEncryption()).decode()

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType) -> str:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(self._name, subject, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
        certificate = builder.add_extension(extension, critical=True).sign(self._key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM).decode()


class Cluster(Struct, frozen=True):
    authority: Authority
    tls: ssl.SSLContext


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """What a server needs that asks its clients for certificates of the same authority."""
    authority = Authority()
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    path.write_text(authority.issue("kubernetes"))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(path)
    tls.load_verify_locations(cadata=authority.pem)
    tls.verify_mode = ssl.CERT_REQUIRED
    return Cluster(authority, tls)


async def identify(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers every client with its name, and calls those named "old" unauthorized."""
    (((_, name),),) = writer.get_extra_info("peercert")["subject"]
    while True:
        await read_request(reader)
        status = 401 if name == "old" else 200
        writer.write(b'HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n"%b"' % (status, len(name) + 2, name.encode()))


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.slow
def test_both_sides_show_certificates(cluster: Cluster, run: Callable[..., None]) -> None:
    async def main() -> None:
        async with serve_raw(identify, ssl=cluster.tls) as url:
            source = Files(client_pem=cluster.authority.issue("scheduler"))
            config = ClusterConfig(url.replace("http", "https"), ca_pem=cluster.authority.pem, source=source)
            async with Client(config) as client:
                names = [client.request("GET", "/x", decode=str) for _ in range(100)]
                assert set(await asyncio.gather(*names)) == {"scheduler"}
                async with client.stream("/x", {}) as connection:
                    assert await connection.read() == b'"scheduler"'
            async with Client(replace(config, tls_server_name="kubernetes")) as client:
                assert await client.request("GET", "/x", decode=str) == "scheduler"
            async with Client(replace(config, tls_server_name="elsewhere")) as client:
                with pytest.raises(Unreachable, match="certificate"):
                    await client.request("GET", "/x", attempts=Attempts(retries=0))
            async with Client(replace(config, ca_pem=Authority().pem)) as client:
                with pytest.raises(Unreachable, match="certificate"):
                    await client.request("GET", "/x", attempts=Attempts(retries=0))
            async with Client(replace(config, ca_pem="", insecure_skip_tls_verify=True)) as client:
                assert await client.request("GET", "/x", decode=str) == "scheduler"

    run(main())


async def test_a_rotated_client_certificate_is_used_for_new_connections(cluster: Cluster, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert", tmp_path / "key"

    def rotate(name: str) -> None:
        pem = cluster.authority.issue(name)
        at = pem.index("-----BEGIN PRIVATE")
        cert.write_text(pem[:at])
        key.write_text(pem[at:])

    rotate("old")
    async with serve_raw(identify, ssl=cluster.tls) as url:
        source = Files(cert_file=cert, key_file=key)
        config = ClusterConfig(url.replace("http", "https"), ca_pem=cluster.authority.pem, source=source)
        async with Client(config) as client:
            rotate("new")
            assert await client.request("GET", "/x", decode=str) == "new"


async def test_certificates_that_cannot_be_used_are_a_configuration_error() -> None:
    for config in (
        ClusterConfig("https://x", ca_pem="nonsense"),
        ClusterConfig("https://x", source=Files(client_pem="no")),
    ):
        with pytest.raises(ConfigError, match="https://x: the CA or client certificate cannot be used"):
            async with Client(config):
                pass


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_server_that_closes_its_side_and_stays_has_gone(cluster: Cluster, run: Callable[..., None]) -> None:
    """TLS can be closed while TCP is not: the stream ends then, and not with the silence that follows."""

    def serve_half_closed(listener: socket.socket, done: threading.Event) -> None:
        peer, _ = listener.accept()
        with peer:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = cluster.tls.wrap_bio(incoming, outgoing, server_side=True)

            def until_done(act: Callable[[], object]) -> object:
                while True:
                    try:
                        return act()
                    except ssl.SSLWantReadError:
                        peer.sendall(outgoing.read())
                        incoming.write(peer.recv(65536))

            until_done(tls.do_handshake)
            until_done(lambda: tls.read(65536))
            tls.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
            with contextlib.suppress(ssl.SSLWantReadError):
                tls.unwrap()
            peer.sendall(outgoing.read())
            done.wait(20)

    async def main(port: int) -> None:
        source = Files(client_pem=cluster.authority.issue("scheduler"))
        config = ClusterConfig(f"https://127.0.0.1:{port}", ca_pem=cluster.authority.pem, source=source)
        async with Client(config) as client, asyncio.timeout(PATIENCE_S), client.stream("/x", {}) as connection:
            assert await connection.read() == b"x"
            with pytest.raises(Dropped, match="closed"):
                await connection.read()

    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve_half_closed, args=(listener, done))
        thread.start()
        try:
            run(main(listener.getsockname()[1]))
        finally:
            done.set()
            thread.join()

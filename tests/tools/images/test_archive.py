# SPDX-License-Identifier: Apache-2.0
"""An archive that loads as an OCI layout and as one of docker save."""

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import cyclonedx.schema
import pytest
from jsonschema import Draft7Validator
from referencing import Registry, Resource

from tools.images import archive, sbom
from tools.images.archive import Image, Layer
from tools.images.debian import Package
from tools.images.python_packages import Distribution
from tools.images.sbom import DebianComponent

LABELS = {"org.opencontainers.image.version": "1.2", "org.opencontainers.image.licenses": "Apache-2.0"}
LAYERS = (Layer("first", b"one", b"packed one"), Layer("second", b"two", b"packed two"))
IMAGE = Image("amd64", 1_000_000_000, LAYERS, {"User": "65532:65532"}, LABELS)


def files(content: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(content)) as opened:
        read = {member.name: opened.extractfile(member) for member in opened if member.isreg()}
        return {name: file.read() for name, file in read.items() if file}


def blob(found: dict[str, bytes], described: dict[str, Any]) -> bytes:
    content = found[f"blobs/{described['digest'].replace(':', '/')}"]
    assert described["size"] == len(content) and described["digest"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
    return content


def test_every_digest_of_the_layout_is_of_the_blob_that_it_names() -> None:
    found = files(archive.archive(IMAGE, "example.org/a/dovetail:1.2"))
    assert json.loads(found["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (top,) = json.loads(found["index.json"])["manifests"]
    assert top["annotations"]["io.containerd.image.name"] == "example.org/a/dovetail:1.2"
    manifest = json.loads(blob(found, top))
    configuration = json.loads(blob(found, manifest["config"]))
    assert [blob(found, layer) for layer in manifest["layers"]] == [layer.compressed for layer in LAYERS]
    assert configuration["rootfs"]["diff_ids"] == [archive.digest(layer.content) for layer in LAYERS]
    assert [entry["created_by"] for entry in configuration["history"]] == ["first", "second"]
    assert configuration["created"] == "2001-09-09T01:46:40Z"
    assert configuration["config"] == {"User": "65532:65532", "Labels": LABELS} and manifest["annotations"] == LABELS


def test_docker_finds_the_same_configuration_and_layers() -> None:
    found = files(archive.archive(IMAGE, "dovetail:1.2"))
    (described,) = json.loads(found["manifest.json"])
    assert described["RepoTags"] == ["dovetail:1.2"]
    assert found[described["Config"]] == archive.configuration(IMAGE)
    assert [found[path] for path in described["Layers"]] == [layer.compressed for layer in LAYERS]


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("dovetail:1", "docker.io/library/dovetail:1"),
        ("team/dovetail:1", "docker.io/team/dovetail:1"),
        ("localhost/dovetail:1", "localhost/dovetail:1"),
        ("localhost:5000/dovetail:1", "localhost:5000/dovetail:1"),
        ("example.org/a/dovetail:1", "example.org/a/dovetail:1"),
    ],
)
def test_containerd_gets_the_full_name(name: str, full: str) -> None:
    assert archive.full_name(name) == full


def schema(name: str) -> Any:
    return json.loads((Path(cyclonedx.schema.__file__).parent / "_res" / f"{name}.SNAPSHOT.schema.json").read_text())


def faults(document: bytes) -> list[str]:
    """What the schema of CycloneDX 1.6 refuses in a document."""
    parts = [schema(name) for name in ("spdx", "jsf-0.82", "cryptography-defs")]
    registry = Registry().with_resources([(part["$id"], Resource.from_contents(part)) for part in parts])
    return [
        error.message
        for error in Draft7Validator(schema("bom-1.6"), registry=registry).iter_errors(json.loads(document))
    ]


def test_the_sbom_is_valid_and_names_each_component_with_its_digest() -> None:
    package = DebianComponent(Package("libstdc++6", "12.2.0-14", "0" * 64, 1, "pool/x.deb"), "1:12.2.0-14", "gcc-12")
    python = [Distribution("Pkg_A", "2.0", "MIT", "1" * 64), Distribution("b", "1", "", "2" * 64)]
    text = sbom.document(IMAGE, "example.org/a/dovetail", [package], python)
    assert faults(text) == []
    components = {component["purl"]: component for component in json.loads(text)["components"]}
    assert set(components) == {
        "pkg:deb/debian/libstdc%2B%2B6@1%3A12.2.0-14?arch=amd64&distro=debian-12", "pkg:pypi/pkg-a@2.0", "pkg:pypi/b@1",
    }  # fmt: skip
    assert components["pkg:pypi/b@1"]["hashes"] == [{"alg": "SHA-256", "content": "2" * 64}]
    assert text == sbom.document(IMAGE, "example.org/a/dovetail", [package], python)


def test_the_schema_refuses_what_is_no_sbom() -> None:
    assert faults(b'{"bomFormat": "CycloneDX", "specVersion": "1.6", "components": [{"name": "a"}]}')

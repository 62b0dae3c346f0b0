# SPDX-License-Identifier: Apache-2.0
"""What an image contains, as a CycloneDX 1.6 document (JSON): Debian's packages and Python's distributions.

Rules: it has no random serial number and no time but the image's, so that it is the same for the same image. Licences
of Debian's packages are in the image, at /usr/share/doc/*/copyright.
Sources: CycloneDX 1.6 (ECMA-424); the package URL specification, types deb, pypi and oci.
"""

import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from tools.images import debian
from tools.images.archive import Image, digest, manifest, time_text
from tools.images.debian import Package
from tools.images.python_packages import Distribution


class DebianComponent(Struct, frozen=True):
    """version: the full one of the control file, with its epoch; source: name of the source package."""

    package: Package
    version: str
    source: str


def document(
    image: Image, name: str, packages: Iterable[DebianComponent], distributions: Iterable[Distribution]
) -> bytes:
    """name: of the image, without its tag."""
    version = image.labels["org.opencontainers.image.version"]
    image_digest = digest(manifest(image))
    subject = {
        "type": "container",
        "bom-ref": f"image@{image_digest}",
        "name": name,
        "version": version,
        "licenses": [{"expression": image.labels["org.opencontainers.image.licenses"]}],
        "purl": f"pkg:oci/{quote(name.rsplit('/', 1)[-1])}@{quote(image_digest)}?arch={image.architecture}",
    }
    components = [_of_debian(each) for each in packages] + [_of_python(each) for each in distributions]
    whole = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"timestamp": time_text(image.epoch_s), "component": subject},
        "components": components,
        "dependencies": [{"ref": subject["bom-ref"], "dependsOn": [each["bom-ref"] for each in components]}],
    }
    return json.dumps(whole, indent=1, sort_keys=True).encode() + b"\n"


def _of_debian(component: DebianComponent) -> dict[str, Any]:
    package = component.package
    purl = (
        f"pkg:deb/debian/{quote(package.name)}@{quote(component.version, safe='')}"
        f"?arch={debian.ARCHITECTURE}&distro=debian-{debian.RELEASE}"
    )
    return {
        "type": "library",
        "bom-ref": purl,
        "name": package.name,
        "version": component.version,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": package.sha256}],
        "properties": [{"name": "debian:source", "value": component.source}],
    }


def _of_python(distribution: Distribution) -> dict[str, Any]:
    normal = distribution.name.lower().replace("_", "-").replace(".", "-")
    purl = f"pkg:pypi/{quote(normal)}@{quote(distribution.version, safe='')}"
    named = [{"license": {"name": distribution.licence}}] if distribution.licence else []
    return {
        "type": "library",
        "bom-ref": purl,
        "name": distribution.name,
        "version": distribution.version,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": distribution.sha256}],
        "licenses": named,
    }

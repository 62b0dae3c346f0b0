# SPDX-License-Identifier: Apache-2.0
"""An image as one archive: an OCI image layout that is also an archive of `docker save`.

Rules: `docker load`, `podman load`, `ctr images import`, `skopeo copy oci-archive:` and `nerdctl load` read it;
unpacked it is an OCI layout. Layers are compressed blobs, shared by both formats. It has no times but the ones passed
in.
Sources: the OCI image specification 1.1 (image-layout.md, manifest.md, config.md, annotations.md); containerd's
annotation io.containerd.image.name; manifest.json of Docker's image archive v1.2.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from msgspec import Struct

_MEDIA = "application/vnd.oci.image"


class Layer(Struct, frozen=True, dict=True):
    """created_by: what made it, for the image's history; content: the tar archive; compressed: the same by gzip."""

    created_by: str
    content: bytes
    compressed: bytes

    @cached_property
    def content_digest(self) -> str:
        return digest(self.content)

    @cached_property
    def compressed_digest(self) -> str:
        return digest(self.compressed)


class Image(Struct, frozen=True):
    """config: fields of the OCI configuration's `config`; labels are also annotations of the manifest."""

    architecture: str
    epoch_s: int
    layers: tuple[Layer, ...]
    config: Mapping[str, Any]
    labels: Mapping[str, str]


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def time_text(epoch_s: int) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def configuration(image: Image) -> bytes:
    """The image's configuration, whose digest is the image's id."""
    created = time_text(image.epoch_s)
    return _json(
        {
            "architecture": image.architecture,
            "os": "linux",
            "created": created,
            "config": {**image.config, "Labels": dict(image.labels)},
            "rootfs": {"type": "layers", "diff_ids": [layer.content_digest for layer in image.layers]},
            "history": [{"created": created, "created_by": layer.created_by} for layer in image.layers],
        }
    )


def manifest(image: Image) -> bytes:
    """The image's manifest, whose digest is the image's in a registry."""
    return _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{_MEDIA}.manifest.v1+json",
            "config": _descriptor(f"{_MEDIA}.config.v1+json", configuration(image)),
            "layers": [
                _descriptor(f"{_MEDIA}.layer.v1.tar+gzip", layer.compressed, layer.compressed_digest)
                for layer in image.layers
            ],
            "annotations": dict(image.labels),
        }
    )


def archive(image: Image, name: str) -> bytes:
    """name: with a tag, under which the image is loaded; without a registry's host it is one of docker.io."""
    config, described = configuration(image), manifest(image)
    qualified = full_name(name)
    annotations = {"io.containerd.image.name": qualified, "org.opencontainers.image.ref.name": name.rsplit(":", 1)[-1]}
    platform = {"architecture": image.architecture, "os": "linux"}
    top = _descriptor(f"{_MEDIA}.manifest.v1+json", described) | {"annotations": annotations, "platform": platform}
    files = {_blob(digest(content)): content for content in (config, described)}
    files |= {_blob(layer.compressed_digest): layer.compressed for layer in image.layers}
    files["oci-layout"] = _json({"imageLayoutVersion": "1.0.0"})
    files["index.json"] = _json({"schemaVersion": 2, "mediaType": f"{_MEDIA}.index.v1+json", "manifests": [top]})
    layers = [_blob(layer.compressed_digest) for layer in image.layers]
    files["manifest.json"] = _json([{"Config": _blob(digest(config)), "RepoTags": [name], "Layers": layers}])
    return _tar(files, image.epoch_s)


def full_name(name: str) -> str:
    """The name with the host and the folder that Docker's and Kubernetes' references leave out."""
    first, slash, _ = name.partition("/")
    if not slash:
        return f"docker.io/library/{name}"
    return name if "." in first or ":" in first or first == "localhost" else f"docker.io/{name}"


def _tar(files: Mapping[str, bytes], epoch_s: int) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for folder in ("blobs", "blobs/sha256"):
            info = tarfile.TarInfo(folder)
            info.type, info.mode, info.mtime = tarfile.DIRTYPE, 0o755, epoch_s
            tar.addfile(info)
        for path, content in sorted(files.items()):
            info = tarfile.TarInfo(path)
            info.size, info.mode, info.mtime = len(content), 0o644, epoch_s
            tar.addfile(info, io.BytesIO(content))
    return target.getvalue()


def _descriptor(media_type: str, content: bytes, known_digest: str = "") -> dict[str, Any]:
    return {"mediaType": media_type, "digest": known_digest or digest(content), "size": len(content)}


def _blob(content_digest: str) -> str:
    return f"blobs/{content_digest.replace(':', '/')}"


def _json(value: Sequence[Any] | Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"

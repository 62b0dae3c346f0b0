# SPDX-License-Identifier: Apache-2.0
"""The model that a server container loads, by its command, and the size of its weights in 16 bits.

The size is that of the built-in models (also of their Instruct and Chat versions), else the one in the name, as in
`my-org/llama-70b-tuned`. Nothing is known of a model in another format: one whose name or command names a
quantisation, and one that is published in fewer bits. Of a mixture of experts such as 8x7B only the built-in size
counts.
"""

from __future__ import annotations

import re
from functools import lru_cache

from msgspec import Struct

from dovetail.advice.lint.field import Field
from dovetail.advice.lint.peers import sharing_ranks
from dovetail.advice.lint.pods import Template, count, env_of, words_of
from dovetail.core.model import GPU

SERVER_IMAGE = re.compile(
    r"(docker\.io/)?(vllm/vllm-openai|lmsysorg/sglang)|ghcr\.io/huggingface/text-generation-inference|nvcr\.io/nim/.*"
)
SEVERAL_PODS = re.compile(
    r"\bray\b|multi-node|--nnodes[= ](?!1\b)|--node[-_]rank|--dist-init-addr|distributed-executor"
)
"""A launcher that may reach other pods."""
SERVER_COMMAND = re.compile(r"\bvllm serve\b|vllm\.entrypoints|sglang\.launch_server|text-generation-launcher")
_MODEL = re.compile(r"(?:--model(?:[-_](?:id|path))?[= ]|\bserve )[\"']?([A-Za-z0-9/][\w./:-]*)")
_OTHER_FORMAT = re.compile(
    r"(?i)quant|[-_]q[2-8]\b|awq|gptq|fp8|fp4|gguf|bnb|bitsandbytes|w\d+a\d+|int-?[48]\b|[48]-?bit|offload|gpt-oss|deepseek-[vr]\d"
    r"|kimi|minimax|devstral|ministral|mistral-large-3"
)
_SIZE = re.compile(r"(?i)(?<![a-z0-9.])(\d{1,3}(?:\.\d{1,2})?)b(?![a-z0-9])")
_TUNED = re.compile(r"(?i)-(instruct|chat|it|hf)\b.*")
_VARIABLE = re.compile(r"\$\(([\w.-]+)\)")
_BYTES = 2
_SIXTEEN_BITS = ("bf16", "fp16")


class ServedModel(Struct, frozen=True):
    """`weight_bytes` is the size of the weights in 16 bits."""

    name: str
    weight_bytes: int


def served(pod: Template, container: Field) -> ServedModel | None:
    """The model of a server that alone loads all of it; None if it is unknown, or not in 16 bits."""
    image = container.at("image").text.partition("@")[0]
    path, slash, last = image.rpartition("/")
    words = words_of(container)
    if not (SERVER_IMAGE.fullmatch(path + slash + last.partition(":")[0]) or SERVER_COMMAND.search(words)):
        return None
    variables = {name: entry.at("value").text for name, entry in env_of(container)}
    words = _VARIABLE.sub(lambda one: variables.get(one[1], one[0]), f"{words} --model {variables.get('MODEL_ID', '')}")
    found = _MODEL.search(words)
    several = SEVERAL_PODS.search(words) or sharing_ranks(pod) > 1
    # TGI reads QUANTIZE, and other images other names.
    settings = " ".join(f"{name} {value}" for name, value in variables.items() if value)
    other = _OTHER_FORMAT.search(f"{words} {settings}")
    if found is None or several or other or not count(container.at("resources", "limits", GPU)):
        return None
    weight_bytes = _weight_bytes(found[1])
    return ServedModel(found[1], weight_bytes) if weight_bytes else None


@lru_cache(maxsize=256)
def _weight_bytes(name: str) -> int:
    """0: unknown, or published in another format."""
    # Imported here: most manifests serve no model.
    from dovetail.advice.catalog import find
    from dovetail.advice.config import read

    base = _TUNED.sub("", name)
    entry = find(name) or find(base) or find(base.rpartition("/")[2])
    if entry is not None:
        model = read(entry.config)
        return _BYTES * model.parameters if model.weights in _SIXTEEN_BITS else 0
    size = _SIZE.search(name.rpartition("/")[2])
    return int(_BYTES * float(size[1]) * 10**9) if size is not None else 0

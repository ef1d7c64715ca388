"""Caches of keys and values in pages: what a token takes in one, and how much of it attention can read at most.

Which pages a request has, and how long it is, stands in tensors whose contents no trace has. Shapes give bounds.
"""

from __future__ import annotations

import re
from math import prod
from typing import NamedTuple

from .operators import ITEM_BYTES, NotRecorded, ProfiledOperator


class Cached(NamedTuple):
    """Keys and values of one layer in bytes: those of a token, and all that the pages hold which may be read."""

    token: int
    most: int


class _Pages(NamedTuple):
    """Where keys in pages stand, and values after them; and the pages, of each request or of all in one list."""

    keys: int
    pages: int


# Source: vllm-project/flash-attention, csrc/flash_attn/flash_api_torch_lib.cpp and hopper/flash_api_torch_lib.cpp;
# SGLang, sgl-kernel/csrc/flash_extension.cc; vLLM, csrc/torch_bindings.cpp; ROCm/aiter, aiter/ops/mha.py.
_FLASH_3 = _Pages(keys=1, pages=14)
_PAGED = {
    "_vllm_fa2_C::varlen_fwd": _Pages(keys=1, pages=8),
    "_vllm_fa3_C::fwd": _FLASH_3,
    "sgl_kernel::fwd": _FLASH_3,
    "flash_attn_3::fwd": _FLASH_3,
    "flash_attn_3::_flash_attn_forward": _FLASH_3,
    "_C::paged_attention_v1": _Pages(keys=2, pages=6),
    "_C::paged_attention_v2": _Pages(keys=5, pages=9),
    "_rocm_C::paged_attention": _Pages(keys=5, pages=9),
    "aiter::mha_batch_prefill": _Pages(keys=1, pages=5),
}
_WRITES = re.compile(r"::(?:reshape_and_cache(?:_flash)?|concat_and_cache_mla|store_cache|store_kv_cache)$")


def read_in_pages(operator: ProfiledOperator) -> Cached | None:
    """What a call of attention reads of a cache in pages; None if it is no such attention, or its shapes are not known.

    No page need be read twice, whoever shares it.
    """
    places = _PAGED.get(operator.name)
    if places is None or not operator.has_tensor(places.pages):
        return None
    try:
        keys, values = (operator.tensor(places.keys + place, "keys or values in pages") for place in range(2))
        pages = operator.shape(places.pages, "pages")
    except NotRecorded:
        return None
    # Keys are [pages, tokens of a page, heads, head], without tokens if a page has one. In paged_attention they have 5
    # dimensions, and values are [pages, heads, head, tokens].
    of_page = {3: (1,), 4: keys.shape[1:2], 5: values.shape[3:4]}.get(len(keys.shape), ())
    tokens = prod(of_page) if of_page else 0
    if not tokens or not keys.shape[0]:
        return None
    page = (keys.size_bytes + values.size_bytes) // keys.shape[0]
    return Cached(page // tokens, min(prod(pages), keys.shape[0]) * page)


def cache_written(operator: ProfiledOperator) -> Cached | None:
    """The cache into which a call puts keys and values of new tokens; None if it does not, or shapes do not tell.

    Each new token has a slot. What else is as long as these are the keys and values, the rest is the cache.
    """
    if _WRITES.search(operator.name) is None:
        return None
    try:
        tensors = operator.tensors_alone()
    except NotRecorded:
        return None
    slots = next((tensor for tensor in tensors if len(tensor.shape) == 1 and tensor.dtype in ("int32", "int64")), None)
    matrices = [tensor for tensor in tensors if len(tensor.shape) > 1]
    if slots is None:
        return None
    new, cache = (
        [each for each in matrices if (each.shape[0] == slots.shape[0]) is is_new] for is_new in (True, False)
    )
    if not new or not cache:
        return None
    elements = sum(prod(tensor.shape[1:]) for tensor in new)
    return Cached(elements * ITEM_BYTES[cache[0].dtype], sum(tensor.size_bytes for tensor in cache))

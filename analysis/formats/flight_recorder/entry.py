"""Recognise dumps of the flight recorder by the first bytes of the file."""

from __future__ import annotations

from pathlib import Path

from ..others import begins_like_kineto

_JSON_KEYS = (b'"collective_seq_id"', b'"comm_lib_version"', b'"nccl_comm_state"', b'"pg_status"', b'"p2p_seq_id"')
_PICKLED_KEYS = (b"pg_config", b"version", b"entries", b"nccl_version", b"pg_status")


def looks_like_dump(path: Path) -> bool:
    """Whether a plain file begins like a dump, as pickle or JSON; False if it cannot be read."""
    from ...recording.compression import first_bytes  # slow to import: it loads the unpacker

    return begins_like_dump(first_bytes(path))


def begins_like_dump(begin: bytes) -> bool:
    """Whether these first bytes are those of a dump."""
    from ...recording.plain_content import is_pickle

    if is_pickle(begin):
        return any(key in begin for key in _PICKLED_KEYS)
    is_json = begin.lstrip()[:1] == b"{"
    return is_json and any(key in begin for key in _JSON_KEYS) and not begins_like_kineto(begin)

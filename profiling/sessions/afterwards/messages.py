"""Messages between the ranks of a capture, on a store that other processes can write to.

What is read is bounded and never waited for, and counts only if it is sealed with the run's secret. Our launcher draws
one for each run; under another launcher, users can set it. Without one, the seal shows damage only, because there is
nothing else that all ranks know and others do not: the id of a torchrun job stands on command lines and in the store.
"""

import hashlib
import hmac
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

if TYPE_CHECKING:
    from ...base.torch_private import Store

_SEAL_BYTES = hashlib.sha256().digest_size


class Messages:
    """Messages of one capture by name. `key` distinguishes it from others of its run."""

    def __init__(self, store: "Store", key: str, secret: bytes) -> None:
        self._store: Any = dist.distributed_c10d.PrefixStore(key, store)
        self._key = key
        self._secret = secret
        self._nothing = secrets.token_hex()
        self.forged: set[str] = set()
        """Names under which something stood that did not verify."""

    def post(self, name: str, body: bytes) -> None:
        """Post a message under this name."""
        self._store.set(name, self._seal(name, body) + body)

    def read(self, name: str, most_bytes: int) -> bytes | None:
        """The message of this name; None if there is none, or it does not verify."""
        message = self._current(name)
        if message is None:
            return None
        seal, body = message[:_SEAL_BYTES], message[_SEAL_BYTES:]
        if len(body) > most_bytes or not hmac.compare_digest(seal, self._seal(name, body)):
            self.forged.add(name)
            return None
        return body

    def put_piece(self, name: str, piece: bytes) -> None:
        """Store a piece that a message will name with its digest."""
        self._store.set(name, piece)

    def take_piece(self, name: str) -> bytes | None:
        """Remove and return the piece of this name; None if there is none."""
        piece = self._current(name)
        if piece is not None:
            self.remove(name)
        return piece

    def remove(self, name: str) -> None:
        """Remove the entry of this name."""
        with suppress(RuntimeError, NotImplementedError):  # not every store can
            self._store.delete_key(name)

    def _current(self, name: str) -> bytes | None:
        """The entry of this name, without waiting.

        `get` would wait where there is nothing, also after `check`, because others can delete it in between; `add`
        would have the server close the connection where there is no number. This neither waits nor changes anything.
        """
        current: bytes = self._store.compare_set(name, self._nothing, self._nothing)
        return None if current == self._nothing.encode() else current

    def _seal(self, name: str, body: bytes) -> bytes:
        topic = f"{self._key}\0{name}\0".encode()
        return hmac.digest(self._secret, topic + body, "sha256")

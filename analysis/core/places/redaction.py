"""URLs as they are shown: without whatever in them may be a secret, however that is written."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

HIDDEN = "***"
_OF_THE_WEB = {"http", "https"}
_OF_AZURE = {"abfs", "abfss", "az", "adl"}
# A server with its port, a bucket or its ARN. With another colon it may be a user with a password.
_SERVER = re.compile(r"(\[[0-9a-f:.]*\]|arn:[\w:-]*|[^:/]*)(:\d*)?(/|$)", re.ASCII | re.IGNORECASE)
_CONTAINER = re.compile(r"[\w$-]+@[\w.-]+(/[^@]*)?", re.ASCII)
_PLAIN = re.compile(r"[\w./-]*", re.ASCII)
_MARK = re.compile(r"[?#;&]|%(?:3f|23|3b|26)", re.IGNORECASE)
_MARK_OF_KEYS = re.compile(r"\?(?!/)|[#;&]|%(?:3f|23|3b|26)", re.IGNORECASE)  # `what?/` may be a folder of a bucket
_AT = re.compile(r"@|%40")
_NAMED = re.compile(r"((?<![a-z])(?:auth|cred|key|pass|pwd|secret|sig|token)\w*(?:=|%3d))[^/]*", re.IGNORECASE)
_PIECES = re.compile(r"[^:/@?&=;#,\s]{3,}")
_URL_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]*://[^\s'\"<>]*[^\s'\"<>:;,.)]")  # a sentence goes on behind it
_URL_AT_END = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]*:/.*", re.DOTALL)


def without_secrets(url: str) -> str:
    """The URL without what may be a secret, even if it is written as no URL should be.

    What stands before its last @, where users and passwords are, is left out, but for the container of Azure. So is all
    behind a question mark or another mark behind which signatures and tokens stand, and the value of what is called so.
    Where a mark may be part of a password, only the scheme is left.
    """
    scheme, slashes, rest = url.partition("://")
    if not slashes:  # as pathlib writes it
        scheme, slashes, rest = url.partition(":/")
    kind = scheme.lower()
    head = (_MARK if is_web(url) else _MARK_OF_KEYS).split(rest, maxsplit=1)[0]
    if _AT.search(rest, len(head)) or ("::" in scheme and not _PLAIN.fullmatch(rest)):
        head = HIDDEN
    elif not (kind in _OF_AZURE and _CONTAINER.fullmatch(head)):
        head = _without_user(head, kind)
    return f"{scheme}{slashes}" + _NAMED.sub(rf"\1{HIDDEN}", head)


def is_web(url: str) -> bool:
    """Whether it names a file of a web server."""
    return url.partition("://")[0].lower() in _OF_THE_WEB


def query_of(url: str) -> str:
    """The query of a URL with its question mark, and a fragment; of a bucket, `?` without `=` belongs to the path."""
    if is_web(url):
        match = re.search("[?#]", url)
        return url[match.start() :] if match else ""
    _, mark, query = url.partition("?")
    return mark + query if "=" in query else ""


def _without_user(head: str, kind: str) -> str:
    *_, last = (None, *_AT.finditer(head))
    if last is None:
        return head if _SERVER.match(head) else f"{HIDDEN}{head[head.find('/') :] if '/' in head else ''}"
    before, after = head[: last.start()], head[last.end() :]
    if (
        kind == "hf"
    ):  # behind it is a revision or the kind of a repository, which may be somebody's idea of a place for a token
        return HIDDEN + after[after.find("/") :] if "/" in after else HIDDEN
    is_in_path = "/" in before and _SERVER.match(before)
    return f"{HIDDEN}@{after}" if is_in_path else after


def hide_secrets(text: str, urls: Iterable[str]) -> str:
    """A text in which URLs are as they are shown, and pieces of these `urls` that are secret are nowhere.

    `urls` may be any words, such as an option with its value; what is no URL has no secrets.
    """
    shown = {match[0]: without_secrets(match[0]) for word in urls if (match := _URL_AT_END.search(word))}
    text = _URL_IN_TEXT.sub(lambda match: without_secrets(match[0]), _replaced(text, shown))
    hidden = {piece for url in shown for piece in _PIECES.findall(url) if piece not in shown[url]}
    return _replaced(text, dict.fromkeys(hidden | set(map(unquote, hidden)), HIDDEN))


def _replaced(text: str, others: dict[str, str]) -> str:
    """The text with other words for these; the longest first, as another may be a part of it."""
    for word in sorted(others, key=len, reverse=True):
        text = text.replace(word, others[word])
    return text

"""URLs as they are shown: without whatever in them may be a secret, however that is written."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from typing import NamedTuple
from urllib.parse import unquote

HIDDEN = "***"
_OF_THE_WEB = {"http", "https"}
_OF_AZURE = {"abfs", "abfss", "az", "adl"}
# A server with its port, a bucket or its ARN. With another colon it may be a user with a password.
_SERVER = re.compile(r"(\[[0-9a-f:.]*\]|arn:[\w:-]*|[^:/]*)(:\d*)?(/|$)", re.ASCII | re.IGNORECASE)
_CONTAINER = re.compile(r"[\w$-]+@[\w.-]+(/[^@]*)?", re.ASCII)
_PLAIN = re.compile(r"[\w./-]*", re.ASCII)
_MARK = re.compile(r"[?#;&]|%(?:3f|23|3b|26)", re.IGNORECASE)
_PLAIN_MARK = re.compile("[?#;&]")
_MARK_OF_KEYS = re.compile(r"\?(?!/)|[#;&]|%(?:3f|23|3b|26)", re.IGNORECASE)  # `what?/` may be a folder of a bucket
_AT = re.compile(r"@|%40")
# `token=`, `api_key=` or `sessionToken=`, but not `tokens=`, `monkey=` or `author=`.
_NAMED = re.compile(
    r"((?<![a-z])(?:access|account|api|auth|client|id|private|refresh|secret|security|session|shared)?"
    r"(?:auth|authori[sz]ation|cred(?:ential)?s?|key|pass(?:code|phrase|wd|word)?|pwd|secrets?|sig(?:nature)?|token)"
    r"(?:[_-]\w*|id|\d+)?(?:=|%3d))([^/]*)",
    re.IGNORECASE,
)
_PIECES = re.compile(r"[^:/@?&=;#,\s]{3,}")
_URL_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]*://[^\s'\"<>]*[^\s'\"<>:;,.)]")  # a sentence goes on behind it
_URL_AT_END = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]*:/.*", re.DOTALL)
# What says of a signature how, when and for what it was made, and what to do with a file: of S3, Google, Azure, HDFS.
_PUBLIC = re.compile(
    r"x-(?:amz|goog)-(?:algorithm|date|expires|signedheaders)|s[eprstv]|sip|spr|srt|sk[estv]|expires|response-[\w-]+"
    r"|partnumber|download|alt|op|list-type|x-id",
    re.IGNORECASE,
)
# `secret==` is no name with a value, and before a `%3d` only what looks like a word is a name.
_PARAMETER = re.compile(r"([^=%]+(?==)|[A-Za-z][a-z]*(?:[_.-][a-z]+)*(?=%3[dD]))(?:=|%3[dD])(.*[^=].*)", re.DOTALL)
_CREDENTIAL = re.compile(r"x-(?:amz|goog)-credential", re.IGNORECASE)  # a key or an account, then date, region, service
_WORD_LIKE = re.compile(r"[A-Za-z]?[a-z]*|[A-Z]*|\d*", re.ASCII)
_USUAL_USERS = {"admin", "anonymous", "git", "guest", "key", "oauth2", "root", "token", "user", "username"}
_ENCODED_QUERY = re.compile(r"\?[\w.-]+=[^?#;@]*", re.ASCII)  # an @ in it is written as %40
_LONG = 8  # characters of a secret that no other word begins or ends with
_NO_TEXT = 2  # characters that are a part of every text


def without_secrets(url: str) -> str:
    """The URL without what may be a secret, even if it is written as no URL should be.

    What stands before its last @, where users and passwords are, is left out, but for the container of Azure. So is all
    behind a question mark or another mark behind which signatures and tokens stand, and the value of what is called so.
    Where a mark may be part of a password, only the scheme is left.
    """
    url_parts = _parts(url)
    head = url_parts.head
    if url_parts.is_unclear:
        head = HIDDEN
    elif not _is_container(url_parts):
        head = _without_user(head, url_parts.kind)
    return url_parts.begin + _NAMED.sub(rf"\1{HIDDEN}", head)


class _Parts(NamedTuple):
    """A URL up to `//`, up to a mark before secrets, and the rest; unclear if a password may hold that mark."""

    begin: str
    head: str
    tail: str
    is_unclear: bool

    @property
    def kind(self) -> str:
        return self.begin.partition(":")[0].lower()


def _parts(url: str) -> _Parts:
    scheme, slashes, rest = url.partition("://")
    if not slashes:  # as pathlib writes it
        scheme, slashes, rest = url.partition(":/")
    head = (_MARK if is_web(url) else _MARK_OF_KEYS).split(rest, maxsplit=1)[0]
    tail = rest[len(head) :]
    has_user_behind = _AT.search(tail) and not (_ENCODED_QUERY.fullmatch(tail) and _SERVER.match(head))
    is_unclear = bool(has_user_behind or ("::" in scheme and not _PLAIN.fullmatch(rest)))
    return _Parts(scheme + slashes, head, tail, is_unclear)


def _is_container(parts: _Parts) -> bool:
    return parts.kind in _OF_AZURE and _CONTAINER.fullmatch(parts.head) is not None


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
    if _is_cut_behind(before, kind):
        return HIDDEN + after[after.find("/") :] if "/" in after else HIDDEN
    return f"{HIDDEN}@{after}" if _is_path(before) else after


def _is_path(before: str) -> bool:
    """Whether what stands before an @ may be a server and folders."""
    return "/" in before and _SERVER.match(before) is not None


def _is_cut_behind(before: str, kind: str) -> bool:
    """Whether a secret may stand right behind an @ as well.

    Of Hugging Face, that is a revision or the kind of a repository, somebody's idea of a place for a token.
    """
    return kind == "hf" or (_is_path(before) and _NAMED.search(before) is not None)


def hide_secrets(text: str, urls: Iterable[str]) -> str:
    """A text in which URLs are as they are shown, and secrets of these `urls`, or pieces of them, are nowhere.

    Secrets are hidden as they are and percent-encoded, users with passwords in base64 as well. What has letters of a
    short secret in it stays, as other words, paths and names of files have. `urls` may be any words, such as an option
    with its value; what is no URL has no secrets.
    """
    given = [match[0] for word in urls if (match := _URL_AT_END.search(word))]
    if given:
        whole = "|".join(map(re.escape, _longest_first(given)))
        text = re.sub(rf"(?:{whole})(?![\w%+=~-]|\.\w)", lambda match: without_secrets(match[0]), text)
    text = _URL_IN_TEXT.sub(lambda match: without_secrets(match[0]), text)
    found: dict[str, _Where] = {}
    for url in given:
        shown = _PIECES.findall(without_secrets(url))
        by_where = sorted(_secrets_of(url), key=lambda one: one[1].value, reverse=True)  # what is hidden anywhere, last
        found |= {secret: where for secret, where in by_where if secret not in shown}
    for secret in _longest_first(found):
        text = _pattern(secret, found[secret]).sub(HIDDEN, text)
    return text


class _Where(Enum):
    """Where in a text a secret is hidden."""

    anywhere = auto()
    """Also if it is part of another word, or only its beginning or end is there."""
    as_word = auto()
    """Not in a path, and not in a longer word or name of a file."""
    as_value = auto()
    """Beside a mark of a URL, or in quotes."""


def _secrets_of(url: str) -> Iterator[tuple[str, _Where]]:
    for part, is_secret in _hidden_parts(_parts(url)):
        whole = unquote(part)
        for secret in filter(None, (whole, *_PIECES.findall(whole))):
            if len(secret) >= _LONG and not _WORD_LIKE.fullmatch(secret):
                yield secret, _Where.anywhere
            else:
                yield secret, _Where.as_word if is_secret and len(secret) > _NO_TEXT else _Where.as_value


def _hidden_parts(parts: _Parts) -> Iterator[tuple[str, bool]]:
    """What of a URL is not shown, and whether that is a secret even if it looks like a word."""
    source = parts.head + parts.tail if parts.is_unclear else parts.head
    is_server = _SERVER.match(source) is not None
    *_, last = (None, *([] if _is_container(parts) else _AT.finditer(source)))
    if last is not None:
        before, after = source[: last.start()], source[last.end() :]
    elif is_server:
        before, after = "", source
    else:
        before, _, after = source.partition("/")
    # It may as well be a folder, a revision, or what was asked for.
    is_user = not (_is_path(before) or parts.kind == "hf" or (parts.is_unclear and _SERVER.match(before)))
    user, _, password = before.partition(":")
    yield user, is_user and not (password and user in _USUAL_USERS)
    if password:
        yield password, is_user
        yield b64encode(unquote(before).encode()).decode().rstrip("="), True
    if last is not None and _is_cut_behind(before, parts.kind):
        yield after.partition("/")[0], False
    for named in _NAMED.finditer(source):
        yield named[2], True
    for parameter in [*_MARK.split(parts.tail)[1:], *_PLAIN_MARK.split(parts.tail)[1:]]:
        asked, *others = _AT.split(parameter) if parts.is_unclear else [parameter]
        named_value = _PARAMETER.fullmatch(asked)
        name, value = named_value.groups() if named_value else (asked, asked)
        if named_value is None and _NAMED.search(asked):  # `token=`, as the token begins with a mark
            continue
        if _CREDENTIAL.fullmatch(name):
            value = unquote(value).partition("/")[0]
        if not (_PUBLIC.fullmatch(name) or (_CREDENTIAL.fullmatch(name) and "@" in value)):
            yield value, True
        yield from ((other, False) for other in others)


def _pattern(secret: str, where: _Where) -> re.Pattern[str]:
    """What a secret looks like in a text, whichever of its characters are encoded."""
    letters = [_encoded(letter) for letter in secret]
    word = "".join(letters)
    if where is _Where.anywhere:
        begin, end = "".join(letters[:_LONG]), "".join(letters[-_LONG:])
        return re.compile(rf"(?:{word}|{begin})[\w+~-]*|{end}")
    end = r"(?![\w-]|\.\w|:/)"
    found = [
        rf"(?:(?<=[@:?&=;#])|(?<=%[0-9A-Fa-f]{{2}})){word}{end}",
        rf"(?<![\w-])(?<!\w\.){word}(?=@|%40)",
        rf"(?<=//){word}(?=:[^\s/])",
        rf"(?<=['\"]){word}(?=['\"])",
    ]
    if where is _Where.as_word:
        found.append(rf"(?<![\w/-])(?<!\w\.){word}(?!/){end}")
    return re.compile("|".join(found))


def _encoded(letter: str) -> str:
    escaped = "".join(f"%(?:25)*{byte:02x}" for byte in letter.encode("utf-8", "surrogateescape"))
    plain = r"\s+|\+" if letter == " " else rf"\\?{re.escape(letter)}" if letter in "\\'\"" else re.escape(letter)
    return rf"(?:{plain}|(?i:{escaped}))"


def _longest_first(words: Iterable[str]) -> list[str]:
    """The words, each before those which are a part of it."""
    return sorted(words, key=len, reverse=True)

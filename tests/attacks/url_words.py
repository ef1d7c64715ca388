"""Texts that quote URLs: what is hidden, and what stays: `python tests/attacks/url_words.py --tries 20000 --seed 0`.

Each try is a drawn URL with one or two secrets, and a sentence of words, names of files and paths, some of which have a
secret's letters in them, among drawn quotes of the URL and of its parts. No secret may be left in any encoding, and
every word, name and path has to be as it was, and so has the path that is joined to a URL.
"""

import random
import re
import sys
from base64 import b64encode
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from attacking import run_attack

from commtrace.analysis.core.places.redaction import hide_secrets

ALPHABET = "abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"
WORDS = (
    "the", "file", "is", "not", "there", "access", "denied", "to", "user", "host", "bucket", "run", "of", "step",
    "token", "tokens", "key", "monkey", "signature", "does", "match", "expired", "after", "300", "s", "us-east-1",
    "attachment",
    "AWS4-HMAC-SHA256", "container", "in", "version", "json", "no", "such", "rank", "retry", "(403)", "errno", "date:",
    "read-only", "application/json", "author", "allocations", "https", "datasets", "main",
)  # fmt: skip
PATHS = (
    "rank0.json.gz",
    "/data/{}/rank1.json",
    "{}.json",
    "step_{}.csv",
    "/mnt/{}/run",
    "./{}-2",
    "x{}y",
    "{}s",
    "a{}",
)
PRESIGNED = (
    "https://{host}/bucket/run?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={0}%2F20260101%2Fus-east-1%2Fs3%2F"
    "aws4_request&X-Amz-Date=20260101T000000Z&X-Amz-Expires=300&X-Amz-SignedHeaders=host&X-Amz-Signature={1}"
    "&response-content-disposition=attachment&response-content-type=application/json"
)
PLACES = (
    "https://{0}:{1}@{host}/run", "https://{0}@{host}/run", "https://{0}:@{host}/run", "https://:{1}@{host}/run",
    "https://user:{1}@{host}/run", "HTTP://user:{1}@{host}/a/run", "ftp://user:{1}@{host}/run", "s3://{0}:{1}@bucket/run",
    "https://{host}/run?token={1}", "https://{host}/run?{1}", "https://{host}/run?a=1&api_key={1}&b=2",
    "https://{host}/run#access_token={1}", "https://{host}/run;jsessionid={1}", "https://{host}/token={1}/run",
    "s3://bucket/run?versionId={1}", "gs://bucket/run?access_token={1}", "webdav://user:{1}@{host}/dav/run",
    PRESIGNED, "https://{host}/run?X-Goog-Credential={0}/20260101/auto/storage/goog4_request&X-Goog-Signature={1}",
    "https://a.example.org/c/run?sv=2022-11-02&sr=c&sp=rl&se=2026-01-01T00%3A00%3A00Z&spr=https&sig={1}",
    "abfs://container@account.example.org/run?sig={1}", "az://container/run?sig={1}", "hf://datasets/org/repo/run?token={1}",
    "hdfs://user:{1}@{host}/run", "sftp://user:{1}@{host}/run",
)  # fmt: skip
HOSTS = ("example.org", "example.org:8443", "[2001:db8::1]", "[::1]:8443", "10.0.0.1:80", "h.example.org.")


class Drawn(NamedTuple):
    """A URL, its secrets as somebody would type them, and a text of plain words, and of quotes that begin with `!`."""

    url: str
    secrets: list[str]
    words: list[str]


def attack(folder: Path, tries: int, seed: int) -> tuple[Counter[str], list[str]]:
    """See `attacking.Attack`."""
    chance, counts, wrong = random.Random(seed), Counter[str](), list[str]()
    for number in range(tries):
        drawn = a_text(chance)
        counts[drawn.url.partition(":")[0].lower()] += 1
        text = " ".join(word.removeprefix("!") for word in drawn.words)
        given = chance.choice(([drawn.url], [drawn.url], ["summary", f"--ceiling={drawn.url}"]))
        shown = hide_secrets(text, given).split(" ")
        faults = [f"{len(drawn.words)} words became {len(shown)}"] * (len(shown) != len(drawn.words))
        for word, left in zip(drawn.words, shown, strict=False):
            if not word.startswith("!"):
                faults += [f"{word} became {left}"] * (left != word)
                continue
            faults += [f"{secret} is in {left}" for secret in drawn.secrets if is_in(secret, left)]
            faults += [f"{word} became {left}"] * (word.endswith("/rank0.json") and not left.endswith("/rank0.json"))
        wrong += [f"try {number}, {drawn.url}: {fault}" for fault in faults]
    return counts, wrong


def a_text(chance: random.Random) -> Drawn:
    """A drawn URL and a text about it."""
    place = chance.choice(PLACES)
    # A key, or what stands in a path, has no marks. A Google account has an @, and is no secret.
    account = "runs@project.iam.gserviceaccount.com"
    first = account if "Goog" in place and chance.random() < 0.5 else a_secret(chance, has_marks=":{1}@" in place)
    typed = [first, a_secret(chance, has_marks="/token={1}/" not in place)]
    secrets = [one for number, one in enumerate(typed) if f"{{{number}}}" in place and one != account]
    how = chance.choice(ENCODINGS)
    url = place.format(*(quote(how(chance, secret), safe="%") for secret in typed), host=chance.choice(HOSTS))
    plain = [*chance.choices(WORDS, k=chance.randint(3, 20))]
    short = [secret for secret in secrets if secret.isalpha() and len(secret) < 8]
    plain += [chance.choice(PATHS).format(chance.choice(short or ["run"])) for _ in range(2)]
    quotes = [f"!{quoted(chance, url, secrets)}" for _ in range(chance.randint(1, 4))]
    words = plain + quotes
    chance.shuffle(words)
    return Drawn(url, secrets, words)


def a_secret(chance: random.Random, *, has_marks: bool) -> str:
    """A long one, one with marks, or a short one, which is no word of a text."""
    kind = chance.choice((0, 1, 2, 3) if has_marks else (0, 2, 3))
    if kind == 0:
        return "".join(chance.choices(ALPHABET, k=chance.choice((8, 20, 40, 300))))
    if kind == 1:
        return "".join(chance.choices(ALPHABET + "+/=:@?&#%!$ \u00e9'\"", k=chance.choice((12, 24)))).strip() + "x7"
    while (word := "".join(chance.choices("acehilnorst", k=chance.randint(3, 5)))) in {*WORDS, "user"}:
        pass
    return word if kind == 2 else word + str(chance.randrange(10))


# How the URL has a secret, before what has to be encoded is.
ENCODINGS: tuple[Callable[[random.Random, str], str], ...] = (
    lambda _, secret: quote(secret, safe=""),
    lambda chance, secret: "".join(
        f"%{ord(one):02x}" if one.isascii() and chance.random() < 0.3 else quote(one, safe="") for one in secret
    ),
)


def quoted(chance: random.Random, url: str, secrets: list[str]) -> str:
    """The URL or a part of it, as an error may have it: one word."""
    rest = url.partition("://")[2]
    secret = chance.choice(secrets)
    parts = [
        url, f"'{url}'", f"URL('{url}')", f"{url}/rank0.json", f"<{url}>", f"{url}:", f"({url}),",
        f"token={quote(secret, safe='')}", f"'{quote(secret, safe='')}'", quote(secret, safe=""),
        f"{quote(secret).lower() if secret.islower() else quote(secret)}", f"({quote(secret, safe='')}).",
    ]  # fmt: skip
    if "@" in rest and "@account" not in rest:
        user = rest.rpartition("@")[0]
        coded = b64encode(unquote(user).encode()).decode()
        parts += [f"{rest.partition('/')[0]}", f"//{rest}", f"{user}@", f"Basic:{coded}" if ":" in user else user]
    if "?" in rest:
        parts += ["?" + rest.partition("?")[2], "/run?" + rest.partition("?")[2], unquote(rest).replace(" ", "+")]
    if not re.search(r"[\s'\"]", secret):
        parts += [secret, f"'{secret}'", f"({secret})", f"={secret};"]
    return chance.choice(parts)


def is_in(secret: str, text: str) -> bool:
    """Whether a text has it, encoded or not: a short one as a word."""
    texts = (text, unquote(text), unquote(text).replace("+", " "))
    if len(secret) >= 8:
        return any(secret[:8] in one or secret[-8:] in one for one in texts)
    return any(re.search(rf"(?<![\w.-]){re.escape(secret)}(?![\w-])", one) for one in texts)


if __name__ == "__main__":
    sys.exit(run_attack(attack, __doc__))

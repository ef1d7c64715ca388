"""What filesystems raise -> errors that say what to do, without anything secret."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from ...errors import AnalysisError, MissingLibrary, UnreachableFile
from .redaction import hide_secrets, without_secrets

# Libraries of clouds have errors of their own, known here by name, so that none of them needs to be installed.
_NO_CREDENTIALS = {
    "ClientAuthenticationError", "CredentialRetrievalError", "DefaultCredentialsError", "NoAuthTokenError",
    "NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "RefreshError", "SSOError",
    "TokenRetrievalError",
}  # fmt: skip
_LATE = {"ConnectTimeoutError", "FSTimeoutError", "ReadTimeoutError", "TimeoutError"}
_UNREACHABLE = {
    "ClientConnectionError", "ConnectionError", "EndpointConnectionError", "HTTPClientError", "gaierror",
}  # fmt: skip
_CHANGED = {"FileExpired", "PreconditionFailed"}
_DENIED, _MISSING, _BUSY, _FAILED = (401, 403), (404, 410), 429, 500
_CREDENTIALS = "check the credentials that its filesystem finds in your environment or configuration"
_NO_BUCKET = "bucket does not exist"
_LONGEST = 200


@contextmanager
def plain_errors(url: str) -> Iterator[None]:
    """Make whatever a filesystem raises about this URL one error that says what to do.

    What was raised may name the URL as it is, so a traceback does not show it.
    Raises FileNotFoundError, UnreachableFile, MissingLibrary.
    """
    try:
        yield
    except (AnalysisError, MemoryError):
        raise
    except ImportError as err:
        told = _one_line(err, url)
        raise MissingLibrary(f"{without_secrets(url)}: needs a package that is not installed: {told}") from None
    except Exception as raised:  # noqa: BLE001 - it is raised again, as one that names no secret
        reason = _behind(raised)
        if isinstance(reason, FileNotFoundError) and _NO_BUCKET not in str(reason).lower():
            raise not_there() from None
        raise UnreachableFile(*_reason(reason, _one_line(reason, url)), without_secrets(url)) from None


def not_there() -> FileNotFoundError:
    """The error for a file that does not exist."""
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def changed(url: str, what: str = "is another file now than when it was found") -> UnreachableFile:
    """The error for a file that is not the one that was found."""
    return UnreachableFile(errno.ESTALE, f"{what}; wait for the writer, then try again", without_secrets(url))


def _behind(err: Exception) -> Exception:
    """The error, or what caused it: of web servers, everything that fails is said to be missing."""
    cause = err.__cause__
    if not isinstance(err, FileNotFoundError) or not isinstance(cause, Exception):
        return err
    status = getattr(cause, "status", None)
    is_other = _kinds(cause) & (_LATE | _UNREACHABLE) or (status is not None and status not in _MISSING)
    return cause if is_other else err


def _kinds(err: BaseException | None) -> set[str]:
    return {kind.__name__ for kind in type(err).__mro__}


def _reason(err: Exception, told: str) -> tuple[int, str]:
    """The number of the error, and its text with what to do."""
    kinds = _kinds(err) | _kinds(err.__cause__)
    if kinds & _CHANGED:
        return changed("").args[:2]
    if isinstance(err, FileNotFoundError):
        return errno.ENXIO, f"{told}; check its name, and the endpoint that you configured"
    if kinds & _NO_CREDENTIALS:
        return errno.EACCES, f"no credentials ({told}); {_CREDENTIALS}"
    status = getattr(err, "status", None)
    if isinstance(err, PermissionError) or status in _DENIED:
        return errno.EACCES, f"access is denied ({told}); {_CREDENTIALS}"
    if kinds & _LATE:
        return errno.ETIMEDOUT, f"no answer in time ({told}); check the network, then try again"
    if kinds & _UNREACHABLE:
        return errno.EHOSTUNREACH, f"cannot be reached ({told}); check the network and your configuration"
    if "TooManyRedirects" in kinds:
        return errno.ELOOP, f"is redirected without end ({told}); check the URL"
    if isinstance(status, int) and (status == _BUSY or status >= _FAILED):
        return errno.EIO, f"the server answers with an error ({told}); try again later"
    if isinstance(err, NotImplementedError):
        return errno.EROFS, "its filesystem only reads; name another place"
    return getattr(err, "errno", None) or errno.EIO, f"{told}; try again"


def _one_line(err: Exception, url: str) -> str:
    """What the error says about the URL, without the secrets of URLs in it, or pieces of them."""
    text = " ".join((getattr(err, "strerror", None) or str(err) or type(err).__name__).split())
    text = hide_secrets(text, [url])
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."

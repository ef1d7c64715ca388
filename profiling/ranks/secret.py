"""The secret of a run: its ranks get it from their environment, and others with access to their store do not."""

import os
import secrets
from collections.abc import Mapping

VARIABLE = "COMMTRACE_SECRET"


def new_setting() -> dict[str, str]:
    """The environment variable with a new secret, for the ranks of one run."""
    return {VARIABLE: secrets.token_hex()}


def of_run(env: Mapping[str, str] = os.environ) -> bytes:
    """The secret; empty if this run has none."""
    return env.get(VARIABLE, "").encode("utf-8", "surrogateescape")

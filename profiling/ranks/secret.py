"""The secret of a run, which its ranks know from their environment, and nobody else who can reach their store."""

import os
import secrets
from collections.abc import Mapping

VARIABLE = "COMMTRACE_SECRET"


def new_setting() -> dict[str, str]:
    """The environment variable for the ranks of one run."""
    return {VARIABLE: secrets.token_hex()}


def of_run(env: Mapping[str, str] = os.environ) -> bytes:
    """The secret; empty where nobody gave this run one."""
    return env.get(VARIABLE, "").encode("utf-8", "surrogateescape")

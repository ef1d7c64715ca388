"""Whether a group of ranks is within one host, where only its own links count."""

from __future__ import annotations

from collections.abc import Collection, Mapping

MOST_OF_HOST = 8
"""GPUs that nearly all hosts have at most: where hosts have no name, larger groups are not taken to be in one."""


def why_not_one_host(members: Collection[int], hosts: Mapping[int, str | None], sharing: Collection[int]) -> str | None:
    """Why links of one host are not all that these ranks use, each with a GPU of its own; None if they are.

    `sharing` are ranks that share a GPU.
    """
    named = {hosts.get(rank) for rank in members}
    if len(members) < 2:
        return "it has a single rank"
    if not set(sharing).isdisjoint(members):
        return "its ranks share a GPU"
    if len(named) > 1:
        return "its ranks are on several hosts, or on hosts that are not known"
    if named == {None} and len(members) > MOST_OF_HOST:
        return "the hosts of its ranks are not known"
    return None

"""Recordings: how the recording of a trace file is called. Its content is defined in `analysis/formats/recordings`."""

import re

RECORDING_SUFFIX = ".ctrace"
_TRACE_ENDING = re.compile(r"(\.json)?(\.gz)?$")


def recording_name(trace: str) -> str:
    """File name of the recording of the trace file with this name; that of a recording stays as it is."""
    return trace if trace.endswith(RECORDING_SUFFIX) else _TRACE_ENDING.sub("", trace, count=1) + RECORDING_SUFFIX

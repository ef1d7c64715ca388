"""Read gemm.json of `commtrace gemm`: the peaks that a device was measured to reach."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ...contract.reading import OtherVersion, typed
from ...contract.single import GEMM_FILE, GEMM_TOOL, GemmFile
from ..core.given_peaks import BY_MEASUREMENT, GivenPeak, GivenPeaks, given_peaks
from ..core.small_files import NotJson, read_json
from ..errors import NotMeasuredPeaks, UnreadableFile

_EXPECTED = "expected gemm.json of `commtrace gemm`, or a figure such as bf16=989"


def read_peaks(path: Path) -> GivenPeaks:
    """The largest value of each name in the file at `path`, or in gemm.json of that folder.

    Raises UnreadableFile, NotMeasuredPeaks.
    """
    file = path / GEMM_FILE if path.is_dir() else path
    try:
        record = typed(read_json(file), GemmFile)
    except OSError as err:
        raise UnreadableFile(f"{file}: cannot be read: {err.strerror}; {_EXPECTED}") from err
    except (NotJson, OtherVersion) as err:
        raise NotMeasuredPeaks(f"{file}: {err}; {_EXPECTED}") from err
    except msgspec.ValidationError as err:
        raise NotMeasuredPeaks(f"{file}: {_EXPECTED}, found other JSON: {err}") from err
    if record.tool != GEMM_TOOL:
        raise NotMeasuredPeaks(f"{file}: {_EXPECTED}, found one of {record.tool}")
    found: dict[str, GivenPeak] = {}
    for entry in record.results:
        value = entry.tb_per_s if entry.tflop_per_s is None else entry.tflop_per_s
        if value is None:
            continue
        try:
            named = given_peaks({entry.name: value})
        except ValueError as err:
            raise NotMeasuredPeaks(f"{file}: {err}; {_EXPECTED}") from err
        for name, peak in named.items():
            if name not in found or peak.value > found[name].value:
                found[name] = GivenPeak(peak.value, BY_MEASUREMENT, entry.device_name)
    if not found:
        raise NotMeasuredPeaks(f"{file}: holds no measurement; measure again")
    return found

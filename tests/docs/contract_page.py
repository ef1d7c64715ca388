"""docs/run-directory.md from the records of the contract: `python tests/docs/contract_page.py` writes it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, get_args

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "run-directory.md"

_INTRO = """<!-- Generated from commtrace/contract. Do not edit: run `python tests/docs/contract_page.py`. -->

# Run directories

What a capture leaves on disk, and the only thing that `profiling` and `analysis` share.

```text
traces/<run>/
  run.json                                  rank 0: what ran
  <host>_<rank>.<cycle>.pt.trace.json.gz    a trace per rank and cycle of the profiler, exactly as torch wrote it
  <host>_<rank>.<cycle>.pt.trace.ctrace     its recording, beside it or in its place, where `--keep` asks for that
  <host>_<rank>.meta.json                   each rank: its device, process groups, clock, the time of every step
  <host>_<rank>.nccl.log                    each rank: what NCCL logged, with `--nccl-debug` or `NCCL_DEBUG`
  summary.txt, report.html, scalars.json    rank 0 of a capture with `--analyse`: what the run shows
  training.json                             rank 0 of `train --epochs`: loss and accuracy after every epoch
  events.out.tfevents.*                     the same for TensorBoard
  flight_recorder_rank_<rank>               with `--flight-recorder`: calls of a rank, for `commtrace hang`
  memory_snapshot_rank_<rank>.pickle        with `--memory` on GPUs: torch's allocator, for `commtrace memory`
  comms.json, layers.json, capacity.json, gemm.json    what the commands of these names measured
traces/<sweep>/
  sweep.json                                every cell, and how it ended; a run directory stands beside it for each
traces/<lab>/
  lab.json                                  every experiment, and how its commands ended; their folders stand beside it
  lab.html                                  the page on all of them
```

A file appears under its name only once it is complete: it is written to a hidden file first, then renamed. The traces
alone are enough for `analysis`: without the JSON files it just has less to say. Fields not listed below are ignored.

**Version.** Every JSON file has a `schema_version`. The analysis reads {versions}; a file of another version is
refused, with an error that says what to do (in a run, `--keep-going` goes on without the file). A new field needs no
new version; a field that is removed or changes its meaning does.

**Units** are the last word of a field's name, such as `_ns` or `_bytes`. "for" says who reads a field: the
analysis, or people only, which then holds for all that is inside it. A field is null only if its type says so.
"""


def page() -> str:
    """The whole of docs/run-directory.md."""
    from contract_files import FILES, record_in

    from commtrace.contract.reading import UNDERSTOOD

    intro = _INTRO.replace("{versions}", " and ".join(f"version {number}" for number in UNDERSTOOD))
    parts: list[type] = []
    for record in FILES.values():
        _collect(record, parts, record_in)
    shown = (
        [_file_section(name, record) for name, record in FILES.items()]
        + ["## Parts\n"]
        + [_part_section(part) for part in parts]
    )
    return "\n".join([intro, *shown])


def _collect(kind: type, parts: list[type], record_in: Any) -> None:
    from contract_files import hints

    for hint in hints(kind).values():
        inner = record_in(hint)
        if inner is not None and inner not in parts:
            parts.append(inner)
            _collect(inner, parts, record_in)


def _file_section(name: str, record: type) -> str:
    lines = [f"## {name}".replace("<", "\\<"), "", _doc(record), "", *_fields(record)]
    if name == "run.json":
        lines += [_options(), ""]
    return "\n".join(lines)


def _part_section(kind: type) -> str:
    return "\n".join([f"### {kind.__name__}", "", _doc(kind), "", *_fields(kind)])


def _doc(kind: type) -> str:
    return " ".join((kind.__doc__ or "").split())


def _fields(kind: type) -> list[str]:
    from contract_files import hints

    from commtrace.contract.record import docs

    types = hints(kind)
    lines = ["| field | type | unit | meaning | for |", "|---|---|---|---|---|"]
    for name, doc in docs(kind).items():
        meaning = f"{doc.meaning}; left out if there is none" if doc.may_lack else doc.meaning
        kind_of = _type(types[name]).removesuffix(" or null") if doc.may_lack or doc.always else _type(types[name])
        reader = "analysis" if doc.read else "people"
        unit = doc.unit or _unit(name)
        lines.append(f"| `{name}` | {kind_of} | {unit} | {meaning.replace('<', '&lt;')} | {reader} |")
    return [*lines, ""]


def _unit(name: str) -> str:
    last = name.rpartition("_")[2]
    return {"ns": "ns", "us": "us", "s": "s", "bytes": "bytes"}.get(last, "")


def _type(hint: Any) -> str:
    from contract_files import choices, entry, is_literal, is_record

    if is_literal(hint):
        return " or ".join(f"`{value}`" for value in get_args(hint))
    parts = choices(hint)
    if type(None) in get_args(hint) or len(parts) > 1:
        return " or ".join([*map(_type, parts), *(["null"] if type(None) in get_args(hint) else [])])
    if entry(hint) is not None:
        return f"list of {_type(entry(hint))}"
    if is_record(hint):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    return {int: "integer", float: "number", str: "text", bool: "true or false"}.get(hint, "object")


def _options() -> str:
    from contract_files import hints

    from commtrace.contract.run import SweptOptions, TrainedOptions

    names = dict.fromkeys([*hints(SweptOptions), *hints(TrainedOptions)])
    listed = ", ".join(f"`{name}`" for name in names)
    return (
        f"Of `config` the analysis reads {listed}, and shows all options where it compares two runs. They are the "
        "options of the command line, with `_` for `-`."
    )


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests/support")]
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")

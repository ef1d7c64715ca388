"""capacity.json, layers.json and gemm.json: what one machine can do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from .limits import FromZero
from .machine import Device, Machine, Settings, Versions
from .record import SCHEMA_VERSION, Doc, Needed, People, Record

CAPACITY_FILE = "capacity.json"
LAYERS_FILE = "layers.json"
GEMM_FILE = "gemm.json"
GEMM_TOOL = "commtrace gemm"


@dataclass(frozen=True, kw_only=True)
class MeasurementFile(Record):
    """What was asked for, and on which machine: the head of capacity.json, layers.json and gemm.json."""

    schema_version: Annotated[int, People("version of this layout")] = SCHEMA_VERSION
    tool: Annotated[str, People("the command that wrote it")]
    created_utc: Annotated[str, People("when the measurement began, ISO 8601", unit="UTC")]
    command: Annotated[Sequence[str], People("the command line")]
    config: Annotated[Mapping[str, Any], People("options of the command by name")]
    device: Annotated[Device, People("the device, or the first of several")]
    versions: Annotated[Versions, People("versions that were used")]
    machine: Annotated[Machine, People("the machine that it ran on")]
    settings: Annotated[Settings, People("environment variables that change how communication behaves")]


@dataclass(frozen=True)
class LayerCounts:
    """A stack of layers: convolutions, then linear layers."""

    conv: Annotated[int, Needed("number of convolutions")]
    linear: Annotated[int, Needed("number of linear layers")]


@dataclass(frozen=True, kw_only=True)
class CapacityEntry:
    """What was found for a number of devices."""

    devices: Annotated[int, Needed("number of devices")]
    fits: Annotated[bool, Needed("whether the stack fits")]
    shares: Annotated[Sequence[LayerCounts], Needed("layers of each device; empty if they do not fit")]
    conv: Annotated[int | None, Doc("number of convolutions on all devices")]
    linear: Annotated[int | None, Doc("number of linear layers on all devices")]
    notes: Annotated[Sequence[str], Doc("what is known about larger stacks")]
    step_mean_ns: Annotated[float | None, Doc("mean time of a step")]
    step_spread_ns: Annotated[float | None, Doc("sample standard deviation of a step's time")]
    step_min_ns: Annotated[int | None, Doc("time of the shortest step")]
    step_max_ns: Annotated[int | None, Doc("time of the longest step")]
    times_ns: Annotated[Sequence[int], People("time of each step")]
    peak_bytes: Annotated[Sequence[int | None], Doc("peak memory of each device; null if not known")]


@dataclass(frozen=True)
class Try:
    """One try: stages that were run together, a process for each."""

    shares: Annotated[Sequence[LayerCounts], People("layers of each device")]
    fits: Annotated[bool, People("whether they fit")]
    dur_s: Annotated[float, People("how long the try took")]
    reason: Annotated[str | None, People("why they do not fit")] = None
    failed: Annotated[int | None, People("the device, counted from 0, that ran out of memory")] = None
    times_ns: Annotated[Sequence[int], People("time of each step, until the last stage has ended it")] = ()
    peak_bytes: Annotated[Sequence[int | None], People("peak memory of each process; null if not known")] = ()
    baseline_bytes: Annotated[
        Sequence[int | None], People("memory of each process before it makes a layer; null if not known")
    ] = ()


@dataclass(frozen=True, kw_only=True)
class CapacityFile(MeasurementFile):
    """Replaced as a whole after every try."""

    layers: Annotated[str, People("the layers that the stack consists of, as torch prints them")]
    peak_is_of: Annotated[str, People("whose memory `peak_bytes` is")]
    assumes: Annotated[str, People("what the search assumes")]
    complete: Annotated[bool, Needed("whether the search was completed")] = False
    reason: Annotated[str | None, Doc("why it was not")] = None
    capacities: Annotated[Sequence[CapacityEntry], Needed("the stacks that were found")] = ()
    tries: Annotated[Sequence[Try], People("every try, in order")] = ()


@dataclass(frozen=True, kw_only=True)
class LayerEntry:
    """One layer. Sizes are of float32, as torch's allocator counts them; what was not measured is null or empty."""

    layer: Annotated[str, Needed("name of the layer in the model")]
    kind: Annotated[str, Needed("the layer, as torch prints it")]
    input_shape: Annotated[Sequence[int], Needed("dimensions of the input")]
    input_bytes: Annotated[int, People("size of the input")]
    parameter_bytes: Annotated[FromZero, Needed("size of the parameters")]
    formula_activation_bytes: Annotated[
        int | None, Doc("`activation_bytes` by formula; null if there is none for this kind")
    ]
    output_shape: Annotated[Sequence[int] | None, People("dimensions of the output")]
    saved_bytes: Annotated[int | None, Doc("what autograd keeps for the backward pass, including the input")]
    activation_bytes: Annotated[
        int | None, Doc("what the forward pass leaves behind: the output, and what the backward pass needs")
    ]
    peak_bytes: Annotated[int | None, Doc("largest amount of memory at any moment of both passes")]
    forward_times_ns: Annotated[Sequence[int], People("time of each forward pass")]
    backward_times_ns: Annotated[Sequence[int], People("time of each backward pass")]
    reason: Annotated[str | None, Doc("why something was not measured")]
    forward_mean_ns: Annotated[float | None, Doc("mean time of the forward pass")]
    forward_spread_ns: Annotated[float | None, Doc("sample standard deviation of that time")]
    backward_mean_ns: Annotated[float | None, Doc("mean time of the backward pass")]
    backward_spread_ns: Annotated[float | None, Doc("sample standard deviation of that time")]
    power_w: Annotated[float | None, Doc("mean power of the whole GPU while the layer runs", unit="W")]
    power_source: Annotated[
        str | None, People("`energy` if from the GPU's energy counter, `readings` if from readings of its power")
    ]
    power_reason: Annotated[str | None, Doc("why `power_w` is null")]


@dataclass(frozen=True, kw_only=True)
class TimeRatio:
    """Time of the second model / time of the first, which ran in turns. Null where there are too few pairs."""

    passes: Annotated[str, Needed("`forward`, `backward`, or `both` together")]
    pairs: Annotated[int, Needed("number of pairs: a pass of each model, one right after the other")]
    ratio: Annotated[float, Needed("median of the pairs' ratios")]
    low: Annotated[float | None, Doc("lower end of an interval that holds the true median with 95 % or more")]
    high: Annotated[float | None, Doc("upper end of that interval")]


@dataclass(frozen=True, kw_only=True)
class LayersFile(MeasurementFile):
    """Replaced as a whole after every layer."""

    memory_is_of: Annotated[str, People("whose allocations the sizes count")]
    complete: Annotated[bool, Needed("whether every layer was measured")] = False
    reason: Annotated[str | None, Doc("why it is not complete")] = None
    layers: Annotated[Sequence[LayerEntry], Needed("the layers, in order; with --against the two models")] = ()
    ratios: Annotated[Sequence[TimeRatio], Doc("with --against: how long its passes take beside --model's")] = ()


@dataclass(frozen=True, kw_only=True)
class GemmEntry:
    """One measurement on one device: products of square matrices, or copies within its memory."""

    device: Annotated[str, People("the device, as torch spells it")]
    device_name: Annotated[str | None, Doc("name of the GPU, or of the CPU")]
    name: Annotated[str, Needed("dtype of the matrices as torch spells it, `tf32`, or `memory` for copies")]
    rows: Annotated[int | None, People("rows and columns of each matrix; null for copies")] = None
    copied_bytes: Annotated[int | None, People("size of what is copied; null for products")] = None
    tflop_per_s: Annotated[
        float | None, Doc("operations of the median product over its time; null for copies", unit="1e12 operations/s")
    ] = None
    tb_per_s: Annotated[
        float | None, Doc("bytes read and written over the time of the median copy", unit="1e12 bytes/s")
    ] = None
    times_ns: Annotated[Sequence[int], People("time of each product or copy")] = ()
    reason: Annotated[str | None, People("why it could not be measured")] = None


@dataclass(frozen=True, kw_only=True)
class GemmFile(MeasurementFile):
    """Replaced as a whole after every measurement."""

    tool: Annotated[str, Needed("`commtrace gemm`")]
    complete: Annotated[bool, Needed("whether everything was measured")] = False
    reason: Annotated[str | None, People("why it is not complete")] = None
    results: Annotated[Sequence[GemmEntry], Needed("the measurements, in order")] = ()

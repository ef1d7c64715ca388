"""capacity.json and layers.json: what one machine can do. Nothing of them is read by the analysis."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from .fields import People, Record
from .machine import Device, Machine, Settings, Versions

SINGLE_SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class MeasurementFile(Record):
    """What was asked for, and of what: the head of capacity.json and of layers.json."""

    schema_version: Annotated[int, People("version of this layout")] = SINGLE_SCHEMA_VERSION
    tool: Annotated[str, People("the command that wrote it")]
    created_utc: Annotated[str, People("when it began, ISO 8601", unit="UTC")]
    command: Annotated[Sequence[str], People("the command line")]
    config: Annotated[Mapping[str, Any], People("options of the command, each under its own name")]
    device: Annotated[Device, People("the (first) device")]
    versions: Annotated[Versions, People("versions it ran with")]
    machine: Annotated[Machine, People("the machine it ran on")]
    settings: Annotated[Settings, People("environment variables that change how communication behaves")]


@dataclass(frozen=True)
class LayerCounts:
    """So many layers of each kind, convolutions first."""

    conv: Annotated[int, People("convolutions")]
    linear: Annotated[int, People("linear layers")]


@dataclass(frozen=True, kw_only=True)
class CapacityEntry:
    """The stack of one device, or of several."""

    devices: Annotated[int, People("number of devices")]
    fits: Annotated[bool, People("whether it does")]
    shares: Annotated[Sequence[LayerCounts], People("layers of each device; empty when they do not fit")]
    conv: Annotated[int | None, People("convolutions of all devices")]
    linear: Annotated[int | None, People("linear layers of all devices")]
    notes: Annotated[Sequence[str], People("what is known of larger ones")]
    step_mean_ns: Annotated[float | None, People("mean time of a step")]
    step_spread_ns: Annotated[float | None, People("its sample standard deviation")]
    step_min_ns: Annotated[int | None, People("shortest step")]
    step_max_ns: Annotated[int | None, People("longest step")]
    times_ns: Annotated[Sequence[int], People("time of each step")]
    peak_bytes: Annotated[Sequence[int | None], People("most memory of each device")]


@dataclass(frozen=True)
class Try:
    """What became of stages that were run together. `times_ns`: of each timed step, from its start to its last end.

    `peak_bytes` and `baseline_bytes` are those of each process; where they are not known, None. `failed` is the place
    of the stage that was out of memory.
    """

    shares: Annotated[Sequence[LayerCounts], People("layers of each device")]
    fits: Annotated[bool, People("whether they do")]
    dur_s: Annotated[float, People("how long the try took")]
    reason: Annotated[str | None, People("why they do not fit")] = None
    failed: Annotated[int | None, People("the device, from 0, that was out of memory")] = None
    times_ns: Annotated[Sequence[int], People("time of each step")] = ()
    peak_bytes: Annotated[Sequence[int | None], People("most memory of each process; null where not known")] = ()
    baseline_bytes: Annotated[
        Sequence[int | None], People("memory of each process before it makes a layer; null where not known")
    ] = ()


@dataclass(frozen=True, kw_only=True)
class CapacityFile(MeasurementFile):
    """Replaced whole after every try."""

    layers: Annotated[str, People("the layers that the stack is made of, as torch writes them")]
    peak_is_of: Annotated[str, People("what `peak_bytes` counts")]
    assumes: Annotated[str, People("what the search takes for granted")]
    complete: Annotated[bool, People("whether the search came to its end")] = False
    reason: Annotated[str | None, People("why not")] = None
    capacities: Annotated[Sequence[CapacityEntry], People("what was found")] = ()
    tries: Annotated[Sequence[Try], People("every try, in order")] = ()


@dataclass(frozen=True, kw_only=True)
class LayerEntry:
    """One layer. Bytes are of float32 and torch's allocator; what was not measured is null or empty."""

    layer: Annotated[str, People("its name in the model")]
    kind: Annotated[str, People("as torch writes it")]
    input_shape: Annotated[Sequence[int], People("dimensions of its input")]
    input_bytes: Annotated[int, People("its input")]
    parameter_bytes: Annotated[int, People("its parameters")]
    formula_activation_bytes: Annotated[int | None, People("`activation_bytes` by formula, where there is one")]
    output_shape: Annotated[Sequence[int] | None, People("dimensions of its output")]
    saved_bytes: Annotated[int | None, People("what autograd keeps for backward, the input included")]
    activation_bytes: Annotated[int | None, People("what is there after forward and was not before")]
    peak_bytes: Annotated[int | None, People("the most that forward and backward had at once")]
    forward_times_ns: Annotated[Sequence[int], People("time of each forward")]
    backward_times_ns: Annotated[Sequence[int], People("time of each backward")]
    reason: Annotated[str | None, People("why something was not measured")]
    forward_mean_ns: Annotated[float | None, People("mean of the forwards")]
    forward_spread_ns: Annotated[float | None, People("their sample standard deviation")]
    backward_mean_ns: Annotated[float | None, People("mean of the backwards")]
    backward_spread_ns: Annotated[float | None, People("their sample standard deviation")]
    power_w: Annotated[float | None, People("mean power of the whole GPU while it runs", unit="W")]
    power_source: Annotated[str | None, People("`energy` for the GPU's counter of it, `readings` for those of power")]
    power_reason: Annotated[str | None, People("why `power_w` is null")]


@dataclass(frozen=True, kw_only=True)
class LayersFile(MeasurementFile):
    """Replaced whole after every layer."""

    memory_is_of: Annotated[str, People("whose allocations the bytes are")]
    complete: Annotated[bool, People("whether every layer was measured")] = False
    reason: Annotated[str | None, People("why not")] = None
    layers: Annotated[Sequence[LayerEntry], People("the layers, in order")] = ()

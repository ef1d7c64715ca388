"""The parallel modes: their names, what timings must know of them, and what <host>_<rank>.meta.json says about each.

Of a rank's file each has one field, null except for the model's own. The analysis knows their names from here only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from .machine import Device
from .record import Needed, People

Mode = Literal["single", "dp", "ddp", "fsdp", "pipeline"]
"""How a model is spread over ranks, as `--parallel` names it."""

ONE_WORKER: Mode = "single"
"""The mode of one worker; others with one worker do the same, and something besides."""


@dataclass(frozen=True)
class ModeFacts:
    """What an epoch's time means under a mode."""

    shares_batch: bool = False
    """All workers work on the same batch; else each takes its own, so that N of them share an epoch."""
    drives_workers: bool = False
    """Its workers are the devices of one process, not ranks."""
    reduces_whole: bool = False
    """Gradients are reduced whole in every step, which is what bandwidth by hand assumes."""


MODES: Mapping[str, ModeFacts] = {
    ONE_WORKER: ModeFacts(),
    "dp": ModeFacts(drives_workers=True, reduces_whole=True),
    "ddp": ModeFacts(reduces_whole=True),
    "fsdp": ModeFacts(),
    "pipeline": ModeFacts(shares_batch=True),
}
"""By name, in the order of tables."""


@dataclass(frozen=True)
class DpFacts:
    """The devices of nn.DataParallel."""

    devices: Annotated[
        Sequence[Device],
        Needed(
            "the devices that share each batch; the analysis reads how many",
            reads=Annotated[list[Any], Meta(min_length=1)],
        ),
    ]
    output_device: Annotated[int, People("CUDA ordinal of the device that gathers the outputs")]


@dataclass(frozen=True)
class FsdpGroup:
    """Parameters that FSDP2 gathers and reduces as one array."""

    parameters: Annotated[Sequence[str | None], People("their names in the model")]
    dtypes: Annotated[Sequence[str], People("their dtypes")]
    ranks: Annotated[int, People("ranks that hold a shard")]
    unsharded_bytes: Annotated[
        int, People("size of the array of one all_gather or reduce_scatter, in the parameters' dtypes")
    ]
    sharded_bytes: Annotated[int, People("size of one rank's part of that array")]
    padding_bytes: Annotated[int, People("padding of dimension 0 of each parameter, included in both sizes")]
    reshard_after_forward: Annotated[bool, People("whether they are freed between forward and backward")]


@dataclass(frozen=True)
class FsdpFacts:
    """The parameters that FSDP2 shards."""

    groups: Annotated[
        Sequence[FsdpGroup] | None, People("groups of parameters; null if this version of torch keeps them elsewhere")
    ]
    groups_reason: Annotated[str | None, People("why `groups` is null", may_lack=True)] = None


@dataclass(frozen=True)
class TensorShape:
    """A tensor that a stage receives or passes on for one microbatch."""

    shape: Annotated[Sequence[int], People("dimensions")]
    dtype: Annotated[str, People("dtype")]
    bytes: Annotated[int, People("size")]


@dataclass(frozen=True)
class StageFacts:
    """A stage of a pipeline."""

    stage: Annotated[int, People("number of the stage, from 0")]
    blocks: Annotated[Sequence[str], People("names of the model's blocks in this stage")]
    parameters: Annotated[int, People("number of parameters of this stage", unit="elements")]
    forward_flops_per_microbatch: Annotated[int, People("cost of the forward pass", unit="floating-point operations")]
    input: Annotated[TensorShape, People("what the stage receives")]
    output: Annotated[TensorShape, People("what the stage passes on")]


@dataclass(frozen=True)
class PipelineFacts(StageFacts):
    """This rank's stage of a pipeline; the first of them, if it has several."""

    stages: Annotated[int, People("number of stages")]
    schedule: Annotated[str, People("`gpipe`, `1f1b` or `interleaved`")]
    microbatches: Annotated[int, People("number of microbatches that each batch is split into")]
    batch_size: Annotated[int, People("samples in a batch, which passes through all stages")]
    further_stages: Annotated[
        Sequence[StageFacts], People("the rank's other stages, where the schedule is interleaved", may_lack=True)
    ] = ()

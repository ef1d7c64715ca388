"""What <host>_<rank>.meta.json says of a parallel mode: one field for each, null but for the model's own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from .fields import Doc, People
from .machine import Device


@dataclass(frozen=True)
class DpFacts:
    """What nn.DataParallel drives."""

    devices: Annotated[Sequence[Device], Doc("the devices that share each batch; the analysis counts them")]
    output_device: Annotated[int, People("CUDA ordinal of the one that gathers outputs")]


@dataclass(frozen=True)
class FsdpGroup:
    """Parameters that FSDP2 gathers and reduces as one array."""

    parameters: Annotated[Sequence[str | None], People("their names in the model")]
    dtypes: Annotated[Sequence[str], People("their dtypes")]
    ranks: Annotated[int, People("ranks that hold a shard")]
    unsharded_bytes: Annotated[int, People("the array of one all_gather or reduce_scatter, in the parameters' dtypes")]
    sharded_bytes: Annotated[int, People("one rank's part of that array")]
    padding_bytes: Annotated[int, People("what fills up dimension 0 of each parameter; is in both sizes")]
    reshard_after_forward: Annotated[bool, People("whether they are freed between forward and backward")]


@dataclass(frozen=True)
class FsdpFacts:
    """What FSDP2 shards."""

    groups: Annotated[Sequence[FsdpGroup] | None, People("null where this torch keeps them elsewhere")]
    groups_reason: Annotated[str | None, People("why they are null", may_lack=True)] = None


@dataclass(frozen=True)
class TensorShape:
    """A tensor that a stage receives or hands on, of one microbatch."""

    shape: Annotated[Sequence[int], People("its dimensions")]
    dtype: Annotated[str, People("its dtype")]
    bytes: Annotated[int, People("its size")]


@dataclass(frozen=True)
class PipelineFacts:
    """This rank's stage of a pipeline."""

    stage: Annotated[int, People("its number, from 0")]
    stages: Annotated[int, People("how many there are")]
    schedule: Annotated[str, People("`gpipe` or `1f1b`")]
    microbatches: Annotated[int, People("parts of each batch")]
    batch_size: Annotated[int, People("samples of a batch, which all stages work on")]
    blocks: Annotated[Sequence[str], People("names of the blocks of the model in this stage")]
    parameters: Annotated[int, People("number of parameters of this stage", unit="elements")]
    forward_flops_per_microbatch: Annotated[int, People("of the forward pass", unit="floating-point operations")]
    input: Annotated[TensorShape, People("what one microbatch brings in")]
    output: Annotated[TensorShape, People("what one microbatch hands on")]

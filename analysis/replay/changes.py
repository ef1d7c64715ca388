"""The changes that `predict` can make, one entry for each; `prediction/options` plays them."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import BadScenario


@dataclass(frozen=True)
class Option:
    """A change, by its name in a scenario; its option has hyphens.

    It takes what `metavar` says, of this type, and may be given several times, or one of `choices`; neither makes it a
    flag. What only says more about another change stands `beside` it, and changes nothing by itself.
    """

    name: str
    help: str
    metavar: str = ""
    type: type = str
    choices: tuple[str, ...] = ()
    default: str | None = None
    beside: str = ""

    @property
    def is_flag(self) -> bool:
        """Whether it takes no value."""
        return not self.metavar and not self.choices

    @property
    def is_several(self) -> bool:
        """Whether each of its values makes a scenario of its own."""
        return bool(self.metavar) and not self.beside

    def asked(self, value: str = "") -> str:
        """How the command line has it: `--no-sync all`."""
        return f"--{self.name.replace('_', '-')} {value}".rstrip()

    def check(self, value: object) -> None:
        """Raise BadScenario for a value that it can have in no run."""
        known = (True,) if self.is_flag else self.choices
        if known and value not in known:
            raise BadScenario(f"{self.name} is {value!r}, but can be only {' or '.join(map(str, known)).lower()}")


WITHOUT_STRAGGLER = Option(
    "without_straggler", "Make these ranks (5 or 0-3), a host, or all ranks as fast as the median rank.", "WHO"
)
LINKS = Option(
    "links",
    "Make links this many times faster: of all process groups, of one, or, with GROUP `between`, of those over several "
    "hosts.",
    "[GROUP=]FACTOR",
)
LATENCY = Option("latency", "Divide the fitted latency of collectives by this.", "[GROUP=]FACTOR")
LINKS_AS_OTHERS = Option(
    "links_as_others",
    "Make the links of these ranks (4-7), a host, or a process group as fast as those of others like them; `slow` are "
    "all that are slower.",
    "WHO",
)
NO_JITTER = Option("no_jitter", "Replace compute by its mean and transfer by its median.")
BALANCED_EXPERTS = Option(
    "balanced_experts",
    "Let the experts of all ranks of a group be equally busy: in each pass, the mean of what they take.",
)
OVERLAP = Option(
    "overlap", "Let compute never wait for communication; the gain is an upper bound.", choices=("perfect",)
)
FUSE = Option("fuse", "Merge collectives that could be issued as one.")
BUCKET_MB = Option(
    "bucket_mb",
    "Put DDP's gradients into buckets of this size (bucket_cap_mb); needs record_shapes=True.",
    "MIB",
    float,
)
WORLD_SIZE = Option("world_size", "Total number of ranks; data-parallel groups, or GROUP, grow to fit.", "[GROUP=]N")
BATCH = Option(
    "batch",
    "With --world-size: every rank keeps its batch size (kept), or all share the global batch (shared).",
    choices=("kept", "shared"),
    default="kept",
    beside=WORLD_SIZE.name,
)
NEW_LINKS = Option(
    "new_links",
    "With --world-size: bus bandwidth, and latency, between hosts where none was measured; or a file of "
    "`commtrace comms` or nccl-tests.",
    "GB/s[,us]",
    beside=WORLD_SIZE.name,
)
NO_SYNC = Option(
    "no_sync",
    "Let calls inside this operator (aten::item), calls of this name (cudaDeviceSynchronize), or all calls, not wait "
    "for the device; without a GPU, the CPU not wait for communication before this operator.",
    "OPERATOR|CALL|all",
)
NO_DATA_WAIT = Option("no_data_wait", "Let the data loader always have its next batch, within 0.1 ms.")
CUDA_GRAPHS = Option(
    "cuda_graphs",
    "Launch every kernel in time, as CUDA graphs do; the gain is a bound. "
    "Blocking calls, loaders and allocations stay.",
)
NO_PAUSES = Option(
    "no_pauses",
    "Take away what CPUs do without any call for 1 ms or more; the gain is a bound. "
    "Loaders, garbage and compiling stay.",
)
NO_ALLOCATION = Option("no_allocation", "Take away cudaMalloc, cudaFree and the like.")
NO_COPIES = Option("no_copies", "Take away copies and fills of one kind (HtoD, DtoH, ...), or all.", "KIND|all")
PINNED_COPIES = Option("pinned_copies", "Copy to the device from pinned memory: the CPU does not wait.")
NO_GC = Option(
    "no_gc", "Take away Python's garbage collections, if they were recorded: --with-stack, torch 2.9 or later."
)
NO_LONG_CALLS = Option(
    "no_long_calls", "Let calls and operators that take 100 times as long as usual take their median."
)
NO_COMPILATION = Option("no_compilation", "Take away what compiles, if it was recorded.")
NO_RESHARD = Option("no_reshard", "Let FSDP gather parameters once in a step (reshard_after_forward=False).")
SEPARATE_GATHERS = Option("separate_gathers", "Give FSDP's all_gathers a communicator of their own.")

OPTIONS = {each.name: each for each in list(globals().values()) if isinstance(each, Option)}
"""All of them, in the order in which help lists them."""

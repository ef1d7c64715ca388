"""All private parts of torch that are used: what a new torch may move is here and nowhere else.

`tests/house/test_torch_private.py` finds private names of torch anywhere else. Each function says what it is for. If
torch lacks it, the function raises AttributeError or ImportError, unless it says otherwise.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch._C._autograd import _disable_profiler, _profiler_enabled
from torch._C._profiler import _ExperimentalConfig
from torch._compile import _disable_dynamo
from torch.autograd.profiler import _run_on_profiler_stop
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store as Store

_P = ParamSpec("_P")
_R = TypeVar("_R")
SPAWN_MODULE = "torch.multiprocessing.spawn"
SPAWN_WRAPPER = "_wrap"
"""What every process that torch.multiprocessing spawns runs: `_wrap(function, index, args, error_file)`."""
DEFAULT_GROUP_SETTER = "_update_default_pg"
"""What `distributed_c10d` calls with None when the default process group is destroyed, however a script names that."""
PROFILER_START = "_prepare_trace"
"""The method of `torch.autograd.profiler.profile` that every profiler of torch begins with."""

ENGINE = "_execution_engine"
"""The attribute of `torch.autograd.Variable` in which whoever begins a backward pass looks up autograd's engine."""
BUFFER_SYNC = "_sync_buffers"
"""The method by which DDP issues a broadcast of its buffers, before a forward pass."""
FUTURE = torch._C.Future  # noqa: SLF001
"""What `Work.get_future` returns; `torch.futures.Future` is derived from it."""


def profiler_is_on() -> bool:
    """Whether a profiler of torch runs in this process, ours or another one."""
    return bool(_profiler_enabled())


def not_compiled(function: Callable[_P, _R], *, nor_what_it_calls: bool = True) -> Callable[_P, _R]:
    """Have torch.compile leave a function alone, as `torch.compiler.disable` does, which imports dynamo at once."""
    alone: Callable[_P, _R] = _disable_dynamo(function, recursive=nor_what_it_calls)
    return alone


def in_backward() -> bool:
    """Whether this thread runs a backward pass, as a hook in one does; False where torch cannot tell."""
    return bool(getattr(torch._C, "_current_graph_task_id", lambda: -1)() != -1)  # noqa: SLF001


def collectives_issued() -> int:
    """Collectives that this process has issued in all of its groups, as each backend counts them; 0 if none does."""
    if not (dist.is_available() and dist.is_initialized()):
        return 0
    with suppress(AttributeError, RuntimeError):  # some backends do not count
        groups: Any = list(dist.distributed_c10d._world.pg_map)  # noqa: SLF001
        return sum(int(group._get_sequence_number_for_group()) for group in groups)  # noqa: SLF001
    return 0


def busy_cycles(cycles: int) -> None:
    """Keep the current CUDA stream busy for this many cycles of the GPU's clock."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]  # noqa: SLF001  (no public counterpart)


def drop_profiler() -> None:
    """End the profiler of this process without a trace: a copy in a forked child, or one that cannot be stopped."""
    _disable_profiler()
    _run_on_profiler_stop()  # type: ignore[no-untyped-call]  # what stop() of torch does next


def kineto_has_stopped() -> bool:
    """Whether Kineto has stopped recording the device before it was told to; False where torch cannot tell."""
    return bool(getattr(torch.autograd, "_is_kineto_stopped", lambda: False)())


def recording(*, sync_events: bool, garbage: bool) -> Any:
    """The `experimental_config` of a profiler that records these as well; None for neither.

    They are CUDA's synchronisations, and Python's garbage collections, for which torch 2.9 and stacks are needed.
    """
    if garbage:
        with suppress(TypeError):  # before torch 2.9
            return _ExperimentalConfig(enable_cuda_sync_events=sync_events, record_python_gc_info=True)
    return _ExperimentalConfig(enable_cuda_sync_events=True) if sync_events else None


def process_group_configs() -> Sequence[Any]:
    """Every process group of this rank with the ranks in it, as torch.profiler itself records them."""
    configs: Sequence[Any] = dist.distributed_c10d._get_all_pg_configs()  # noqa: SLF001  (no public counterpart)
    return configs


def store_of_default_group() -> Any:
    """The store of the default process group, which must exist."""
    return dist.distributed_c10d._get_default_store()  # noqa: SLF001  (no public accessor)


def abort_every_process_group() -> None:
    """Make communication of all process groups fail, as far as the backend can."""
    dist.distributed_c10d._abort_process_group()  # noqa: SLF001  (no public counterpart)


def record_allocations(most_entries: int | None) -> None:
    """Record the history of CUDA's allocator, with stacks of Python, the newest `most_entries`; None ends that.

    Raises RuntimeError without CUDA. Annotations of all threads are recorded where torch can (2.6 and later).
    """
    record = torch.cuda.memory._record_memory_history  # noqa: SLF001  (no public counterpart)
    if most_entries is None:
        record(None)
        return
    options: dict[str, Any] = {"context": "all", "stacks": "python", "max_entries": most_entries}
    try:
        record("all", **options, global_record_annotations=True)
    except TypeError:  # an older torch
        record("all", **options)


def allocator_snapshot() -> Any:
    """What CUDA's allocator holds, and its history: what `_dump_snapshot` writes as a pickle."""
    return torch.cuda.memory._snapshot()  # noqa: SLF001  (no public counterpart)


class TorchRecorder(NamedTuple):
    """A flight recorder of this process."""

    dump: Callable[[], bytes]
    """What it holds, with stacks, as a pickle; the first time takes seconds."""
    state: Callable[[], bytes]
    """How many calls of each process group were issued and done, as JSON."""


def flight_recorders() -> list[TorchRecorder]:
    """The flight recorders of this torch: NCCL has one of its own, and since torch 2.9 other backends share one.

    Each knows nothing of the calls of the other.
    """
    c10d = torch._C._distributed_c10d  # noqa: SLF001  (no public counterpart)
    found = [(getattr(c10d, name, None), getattr(c10d, f"{name}_json", None)) for name in _RECORDERS]
    return [_recorder(dump, state) for dump, state in found if dump is not None and state is not None]


_RECORDERS = ("_dump_nccl_trace", "_dump_fr_trace")


def _recorder(dump: Callable[[], bytes], state: Callable[[bool, bool], bytes]) -> TorchRecorder:
    return TorchRecorder(lambda: bytes(dump()), lambda: bytes(state(False, False)))


def ddp_logging_data(model: DistributedDataParallel) -> dict[str, Any]:
    """DDP's own logging data: sizes of buckets, which nothing public reports, and times."""
    return dict(model._get_ddp_logging_data())  # type: ignore[no-untyped-call]  # noqa: SLF001


def fsdp_groups(modules: Sequence[nn.Module]) -> list[Any]:
    """The groups of parameters that FSDP2 gathers and reduces as one, each once. Raises AttributeError."""
    states = [_fsdp_state(module) for module in modules]
    found = [state._fsdp_param_group for state in states]  # noqa: SLF001  (no public way to the groups)
    return list({id(group): group for group in found if group is not None}.values())  # several modules may share one


def _fsdp_state(module: Any) -> Any:
    return module._get_fsdp_state()  # noqa: SLF001


def fsdp_whole_bytes(group: Any) -> int:
    """Size of a group's parameters in bytes, without padding. Raises AttributeError."""
    return sum(p._orig_size.numel() * p.sharded_param.element_size() for p in group.fsdp_params)  # noqa: SLF001


def fsdp_reshards(group: Any) -> bool:
    """Whether the group's parameters are freed after the forward pass. Raises AttributeError."""
    return bool(group._reshard_after_forward)  # noqa: SLF001


def is_set_up(module: nn.Module) -> bool:
    """Whether nn.Module's own constructor has run.

    As below, no code of the module runs: a lazy one would be initialised.
    """
    return "_modules" in vars(module)


def own_modules(module: nn.Module) -> Mapping[str, nn.Module | None]:
    """The modules that a module holds itself."""
    held: Mapping[str, nn.Module | None] = vars(module)["_modules"]
    return held


def own_parameters(module: nn.Module) -> Mapping[str, nn.Parameter | None]:
    """The parameters that a module holds itself."""
    held: Mapping[str, nn.Parameter | None] = vars(module).get("_parameters", {})
    return held

"""Every prefix and name that is searched for in traces, as written by profilers, torch and its backends."""

from __future__ import annotations

import re

GRADIENT = "torch::autograd::AccumulateGrad"
"""The operator in which the gradient of a parameter becomes ready; its input is that gradient."""
PROFILER_STEP = "ProfilerStep#"
"""torch.profiler, around a step: its number follows."""
NEXT_STEP = "next step: "
"""Our own, before the name of the activity with which a device began a step that was left out."""
ATEN = "aten::"
"""How the names of torch's own operators begin."""
LOADING = "enumerate("
"""torch, around getting a batch from whatever loads data."""
DATA_LOADER = "enumerate(DataLoader)"
"""The same from a DataLoader: the kind of iterator follows."""
MODULE = "nn.Module: "
"""torch, with_stack or with_modules, around the call of a module: its class and number follow."""
C10D = "c10d::"
"""An operator of torch that hands a collective to its backend."""
FUNCTIONAL = ("_c10d_functional::", "_c10d_functional_autograd::", "c10d_functional::")
"""Operators of torch that hand a collective over, or wait for it, and give a tensor instead of a handle."""
EVALUATE = "autograd::engine::evaluate_function: "
"""torch's autograd engine, around a node of the backward pass, whose name follows, and the hooks of users."""
RECORD = "record_param_comms"
"""torch's record of a collective's arguments."""
DETAILS = (GRADIENT, RECORD)
"""Operators that are kept with the annotations where details are read."""
BARRIERS = ("c10d::barrier", "c10d::monitored_barrier_")
"""Operators in which a CPU waits for those of other ranks."""
PYTHON_GC = "Python GC"
"""torch 2.9 and later, around a run of Python's garbage collector, with `record_python_gc_info` and `with_stack`."""
C10D_FRAME = "torch/distributed/distributed_c10d.py("
"""How the names of torch.distributed's functions begin, where stacks are recorded: line and function follow."""
FRAMES_KEPT = re.compile(
    rf"{PYTHON_GC}\Z|{re.escape(C10D_FRAME)}\d+\): "
    r"(?:barrier|monitored_barrier|_store_based_barrier|(?:all_)?gather_object|(?:send|recv|broadcast|scatter)_object_list)\Z"
)
"""Matches names of those calls of Python functions that are read: garbage collection, and what torch.distributed does
that returns when other ranks have answered."""
FUNCTION = re.compile(r"(?P<path>[^<>]+\.py)\((?P<line>\d+)\): (?P<function>.+)\Z", re.DOTALL)
"""Matches names of calls of Python functions: the file, below a folder of sys.path; the line where the function
begins, or the one at which it stood when the capture began; and its name."""
LONG_CALL_US = 500
"""Calls of functions that take less are not read: there are millions, and a longer one is around most of them."""
COMPILING = re.compile(r"\(dynamo_timed\)\Z|(?i:nvrtc)|[Cc]ompil(?:e(?![dr])|ing|ation)")
"""Matches names of ranges in which torch.compile, NVRTC or others compile. In `Torch-Compiled Region` compiled code
runs."""
NCCL, GLOO = "nccl", "gloo"
"""Backends, as process groups name them."""
NCCL_MARK, GLOO_MARK = "nccl:", "gloo:"
"""torch, around what a backend does: the collective follows."""
OF_BACKENDS = (NCCL_MARK, "xccl:", "hccl:", "ccl:")
"""The same of all backends of GPUs and other accelerators."""
COALESCED = "nccl:coalesced"
"""torch, around several calls that are launched as one."""
KERNEL_PREFIXES = ("nccl", "rccl")
"""How the names of NCCL's and RCCL's kernels begin, in lower case."""
REDUCE_KERNELS = ("ncclKernel_Reduce_", "ncclDevKernel_Reduce_")
"""How the names of NCCL's kernels for reduce begin, which "reduce" alone does not tell from those of all_reduce."""
STEERING = re.compile(rf"ProfilerStep#[0-9]{{1,18}}\Z|{'|'.join((*OF_BACKENDS, GLOO_MARK))}|enumerate\(DataLoader\)#")
"""Annotations of steps, collectives and batches; those of the user say only what a CPU was doing."""
TORCH_RANGES = ("Torch-Compiled Region", "Optimizer.", LOADING)
"""How names of operators begin that are ranges around many others, as torch or its compiler mark them."""
COPY_BETWEEN_GPUS = "Memcpy PtoP"
"""Kineto's name of a copy from one GPU to another."""
COPIES = ("Memcpy", "Memset")
"""How Kineto's names of copies and fills begin."""
COPY_KINDS = ("HtoD", "DtoH", "DtoD", "PtoP", "HtoH", "Memset")
"""Parts of those names that tell which they are."""
COPYING_OPERATORS = ("aten::copy_", "aten::clone", "aten::contiguous", "aten::_to_copy", "aten::to")
"""Operators that do nothing but copy, which on a CPU is a copy of memory."""
FROM_PAGEABLE = "(Pageable ->"
"""Part of the name of a copy from memory that the device cannot read by itself."""
TO_PAGEABLE = "-> Pageable)"
"""End of the name of a copy to such memory."""
COPY = re.compile(r"Memcpy (?P<direction>\w+) \((?P<source>.+) -> (?P<target>.+)\)")
"""Matches a whole name of a copy: HtoD, Pinned, Device."""
FILL = "Memset"
"""How Kineto's names of fills begin."""
COPYING_CALL = "Memcpy"
"""Part of the names of calls of the runtime or driver that copy."""
LAUNCHING_CALL = "Launch"
"""Part of the names of those that launch kernels or graphs."""
BLOCKING_CALL = r"(?:cuda|hip|cu)(?:\w+Synchronize|Memcpy(?!\w*Async)\w*)(?:_|$)"
"""Matches names of calls of the runtime or driver that return when the device has done something."""
ALLOCATING_CALL = r"(?:cuda|hip)(?:Malloc|Free|Host)|(?:cu|hip)Mem(?!cpy|set)"
"""Matches names of those that allocate or free memory."""
PERHAPS_BLOCKING_CALL = r"(?:cuda|hip)MemcpyAsync\Z|cuMemcpy|cuModule|cuLibrary"
"""Matches names of those that may wait: a copy from pageable memory, and loading code that is needed first."""
BLOCKING = re.compile("|".join((BLOCKING_CALL, ALLOCATING_CALL, PERHAPS_BLOCKING_CALL)))
"""All of these: calls in which a CPU waits for its device, or for memory."""
BEGINS_CAPTURE, ENDS_CAPTURE = (f"(?:cuda|hip|cu)Stream{what}Capture" for what in ("Begin", "End"))
"""Regular expressions for the calls between which a stream's work becomes a CUDA graph and does not run."""
ADDS_TO_GRAPH = "(?:cuda|hip|cu)(?!Graph).*(?:Launch(?!Host)|(?P<copy>Memcpy)|(?P<fill>Memset))"
"""A regular expression for calls that then add to the graph what will run on a device."""
REPLAYS_GRAPH = "GraphLaunch"
"""In the name of a call that launches all that a CUDA graph holds."""


def operation(mark: str) -> str:
    """The operation in torch's annotation: `all_reduce` for `nccl:all_reduce`."""
    return mark.partition(":")[2]

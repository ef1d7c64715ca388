"""The words of the tables and sentences, each explained once: `commtrace explain` and docs/glossary.md print this."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Term:
    """A word, and what it means here."""

    meaning: str
    """The first sentence is the definition; the rest is what people ask next."""
    section: str
    """The page and heading in docs/metrics that define it, as in a link."""
    synonyms: tuple[str, ...] = ()
    """Other words for which `explain` finds it."""

    @property
    def definition(self) -> str:
        """The first sentence of the meaning."""
        return self.meaning.partition(". ")[0].rstrip(".") + "."


GLOSSARY: dict[str, Term] = {
    "activation": Term(
        "Memory that a forward pass allocates and a backward pass still needs. It is what recomputation (activation "
        "checkpointing) and smaller batches save. `commtrace memory` tells it by when it is allocated and released.",
        "memory.md#what-blocks-are-for",
        ("activations", "activations_bytes"),
    ),
    "algbw": Term(
        "Algorithm bandwidth: bytes of a collective divided by its transfer time, in GB/s (1e9 bytes per second). "
        "Waiting for late ranks is taken out. How many bytes a collective has is defined as in nccl-tests.",
        "bandwidth.md#algbw-and-busbw",
        ("algorithm bandwidth", "bandwidth"),
    ),
    "allocated": Term(
        "Device memory that tensors hold, of which the peak decides whether a model fits. What the allocator got from "
        "the device is reserved: the rest of that is cache, and fragments too small for what is asked for.",
        "memory.md#the-peak",
        ("reserved", "peak memory", "out of memory", "peak_allocated_bytes", "peak_reserved_bytes", "cached_bytes"),
    ),
    "allocator-bound": Term(
        "A verdict: devices are idle mostly because CPUs allocate or free device memory (cudaMalloc, cudaFree).",
        "verdicts.md#of-the-run",
    ),
    "arrival": Term(
        "The moment at which a rank starts a collective, on the common clock of the ranks. The last arrival separates "
        "wait from transfer.",
        "wait-and-transfer.md#wait-transfer-and-arrival",
        ("arrived", "arrived_ns"),
    ),
    "bubble": Term(
        "Time in which a rank of a pipeline has nothing to compute, as its schedule has nothing for it. It is inherent "
        "(also if all stages were equally long), imbalance (they are not), jitter, the order of messages, or transfer.",
        "pipelines.md#why-a-rank-has-nothing-to-compute",
        ("pipeline bubble", "bubble_frac", "1F1B", "GPipe", "microbatch"),
    ),
    "busbw": Term(
        "Bus bandwidth: algbw times a factor of the collective and the number of ranks (2 (n - 1) / n for all_reduce), "
        "in GB/s. It is comparable between collectives and numbers of ranks, and with the speed of the links.",
        "bandwidth.md#algbw-and-busbw",
        ("bus bandwidth", "bus factor"),
    ),
    "caused": Term(
        "Waiting of other ranks that one rank is to blame for: they waited for it, and its lateness began with it; or "
        "they waited for ranks that it had made late. `caused_wait_frac` is its share of all waiting.",
        "ranks-and-hosts.md#who-waits-and-for-whom",
        ("caused wait", "culprit"),
    ),
    "ceiling": Term(
        "The bus bandwidth that the links reach without any training, measured by `commtrace comms` or nccl-tests. "
        "`of_ceiling_frac` compares a run with it.",
        "ceilings.md#bandwidth-against-a-ceiling",
    ),
    "certain": Term(
        "A match is certain if no other pairing of calls fits as well. A match that is not certain is shown, but not "
        "split into wait and transfer.",
        "matching.md#certain-complete-partial",
    ),
    "chance": Term(
        "The probability that a rank is last so often by accident, if every rank is equally often last. It is given "
        "where a rank is late by less than the clocks are uncertain, and is then below one in a million.",
        "lateness.md#late-ranks",
    ),
    "collective": Term(
        "One communication of a process group, in which each of its ranks makes one call: all_reduce, all_gather, "
        "reduce_scatter, all_to_all, broadcast and others. A send with its receive counts as one too.",
        "matching.md#methods",
        ("call",),
    ),
    "complete": Term(
        "A collective is complete if the traces show the call of every rank of its process group.",
        "matching.md#certain-complete-partial",
    ),
    "compute": Term(
        "Time in which a device runs kernels that are neither communication nor copies. Compute alone is what hides "
        "nothing; in the rest of it, compute and communication run together.",
        "breakdown.md#kinds-of-activities",
        ("compute alone", "compute and communication"),
    ),
    "compute-bound": Term(
        "A verdict: compute takes nearly all of a step, and no change to communication, launches or data would gain 5 "
        "%.",
        "verdicts.md#of-the-run",
    ),
    "contention": Term(
        "Kernels run longer while their device communicates, as both use its multiprocessors and memory. So "
        "communication that is hidden is not free.",
        "contention.md#beside-and-alone",
        ("slowdown",),
    ),
    "copy-bound": Term(
        "A verdict: copies and fills that nothing hides cost most.",
        "verdicts.md#of-the-run",
    ),
    "critical path": Term(
        "The chain of work, over all ranks, that sets the length of a run. It is followed back from the end: from each "
        "activity to the one that it waited for last. Work that is not on it could be shorter without any gain.",
        "critical-path.md#the-critical-path",
        ("path",),
    ),
    "cycle": Term(
        "One period of profiling: the steps that a profiler records before it writes its trace. A long run has many.",
        "cycles.md#a-row-for-each-cycle",
    ),
    "dispatch": Term(
        "The all_to_all that takes tokens to the ranks of their experts. Its combine brings them back. Waiting in the "
        "dispatch is for ranks that were late before it, waiting in the combine for experts that take longer.",
        "experts.md#passes-through-experts",
        ("combine", "experts", "expert parallelism", "imbalance_factor", "MoE"),
    ),
    "event-bound": Term(
        "A verdict: steps that are far longer than others, as by an evaluation, a checkpoint or a first launch, cost "
        "more than anything in a usual step.",
        "verdicts.md#of-the-run",
    ),
    "exposed": Term(
        "Time in which a device communicates and does not compute. This is what communication costs; the rest of it is "
        "hidden. Exposed communication is exposed wait, exposed transfer, and exposed time that could not be split. "
        "Exposed copies are copies and fills during which the device neither computes nor communicates.",
        "breakdown.md#window-and-breakdown",
        ("exposed communication", "exposed copies", "exposed_comm_ns"),
    ),
    "gap": Term(
        "A time in which a device is idle between two activities.",
        "idle.md#gaps",
    ),
    "hang": Term(
        "A collective that ranks began and that never ran, because another rank never came to it or called something "
        "else.",
        "hangs.md#when-a-collective-hangs",
    ),
    "hidden": Term(
        "Communication behind which the device computes at the same time: it costs what it slows compute by, which "
        "hidden_net_ns leaves out. Also called overlap.",
        "contention.md#what-is-hidden-net-of-its-cost",
        ("overlap", "overlap_ns", "hidden communication", "hidden_net_ns"),
    ),
    "host-bound": Term(
        "A verdict: devices are idle because CPUs do something else than launching for 1 ms or more at a time, in "
        "Python or in an operator.",
        "verdicts.md#of-the-run",
    ),
    "idle": Term(
        "Time in which a device runs nothing: no compute, no communication, no copy. `commtrace idle` divides it by "
        "what the CPU did meanwhile: it waited for a batch, for its device or for another thread, allocated, launched, "
        "or was in an operator or outside of any. The verdict of a run is idle if devices are idle most, and none of "
        "these explains it.",
        "idle.md#why-a-device-is-idle",
        (
            "CPU waits for a batch",
            "CPU in blocking calls",
            "CPU allocates or frees",
            "CPU launches the next",
            "CPU in operators",
            "CPU outside of operators",
            "launched, not begun",
            "cause not known",
        ),
    ),
    "inconclusive": Term(
        "A verdict: too much communication could not be split into wait and transfer to say which costs more. The "
        "first screen says what is missing.",
        "verdicts.md#of-the-run",
    ),
    "input-bound": Term(
        "A verdict: devices are idle mostly because the next batch of the data loader is not there.",
        "verdicts.md#of-the-run",
    ),
    "jitter": Term(
        "Differences between repetitions of the same work, over ranks and steps. Without jitter, compute takes its "
        "mean and transfer its median.",
        "replay.md#attribution",
    ),
    "late": Term(
        "How much later a rank arrives at a collective than the others. In `participation`, `late_ns` is counted from "
        "the first arrival; in `lateness`, from the rank before it, or from the median of the others.",
        "lateness.md#late-ranks",
        ("lateness", "late_ns", "straggler", "late rank"),
    ),
    "latency": Term(
        "What a collective costs even if it moves next to no data. It comes from a line through the transfer times of "
        "several sizes.",
        "latency.md#latency-and-bandwidth",
    ),
    "latency-bound": Term(
        "A verdict on a collective and size: most of its transfer is what it costs to move next to nothing. Fewer and "
        "larger calls help, faster links do not.",
        "verdicts.md#of-a-collective-and-size",
    ),
    "launch": Term(
        "The CPU's call that hands a kernel, copy or fill to the device.",
        "launches.md#launches",
        ("issue",),
    ),
    "launch-bound": Term(
        "A verdict: devices are idle because CPUs launch work later than the devices could begin it.",
        "verdicts.md#of-the-run",
    ),
    "leak": Term(
        "Memory that each step leaves behind. A place of allocation grows if it holds more at the end of every traced "
        "step; what is made once, replaced, or becomes full does not.",
        "memory.md#where-it-was-allocated-and-what-grows",
        ("grows", "grows_bytes", "memory leak"),
    ),
    "link-bound": Term(
        "A verdict: links that are slower than others like them cost most.",
        "verdicts.md#of-the-run",
    ),
    "loop": Term(
        "What a training program does again and again, longer than a step: a rollout and its updates, steps without a "
        "sync and one with it. Where it repeats after some steps, its period, whole periods count, and the first "
        "sentence is about the steps in it that take longer.",
        "steps.md#loops-longer-than-a-step",
        ("period", "rollout", "DiLoCo"),
    ),
    "mixed": Term(
        "A verdict: two kinds of losses have nearly the same gain, so none of them limits the run alone.",
        "verdicts.md#of-the-run",
    ),
    "NA": Term(
        "A value that cannot be known from these traces; the note or the page says why. It is never 0 and never a "
        "guess.",
        "na.md#reasons",
        ("-", "not available", "null"),
    ),
    "offset": Term(
        "How far the clock of a rank is ahead of the reference clock, in ns. Subtracting it puts all ranks on one "
        "clock.",
        "clocks.md#where-offsets-come-from",
        ("clock",),
    ),
    "origin": Term(
        "Where lateness began: the rank and reason at the start of a chain in which one rank made the next one late.",
        "lateness.md#where-lateness-began",
        ("origin_rank", "root cause"),
    ),
    "partial": Term(
        "A collective is partial if the traces do not show the calls of all its ranks; a table's row is `partial` if "
        "it rests on a damaged file, of which a part is missing, or on one that contradicts itself.",
        "damaged-files.md#partial-ranks",
    ),
    "process group": Term(
        "The ranks that communicate with each other in torch, with a name: a `ProcessGroup`. Two groups may have the "
        "same name, and are told apart by their ranks.",
        "matching.md#methods",
        ("group", "communicator"),
    ),
    "queue": Term(
        "Launches that a stream has not begun yet. An empty queue makes the device idle as soon as a launch is late; a "
        "full one makes the CPU wait.",
        "launches.md#queues",
    ),
    "rank": Term(
        "A process of the training, by its global rank, from 0.",
        "ranks-and-hosts.md#who-waits-and-for-whom",
        ("global rank",),
    ),
    "recompute": Term(
        "A forward operator that runs once more within the backward pass, as with activation checkpointing. `regions` "
        "tells it apart as a phase.",
        "regions.md#what-a-region-is",
        ("recomputation", "activation checkpointing"),
    ),
    "region": Term(
        "A part of the model or of the training loop: a range of a CPU thread with a name, by record_function, NVTX, "
        "nn.Module or a compiler. What was launched in it belongs to it, whenever it ran.",
        "regions.md#what-a-region-is",
        ("nn.Module", "module"),
    ),
    "release": Term(
        "What a collective waited for last before it began: its launch, the collective before it on its stream, or the "
        "kernel that made its input.",
        "releases.md#what-released-a-collective",
        ("released_by", "releases"),
    ),
    "remedy": Term(
        "A change that would make steps shorter, with what a step would gain by it alone. Gains of several remedies "
        "do not add up.",
        "remedies.md#what-to-try",
        ("gain", "remedies", "what to try"),
    ),
    "replay": Term(
        "The run computed again from what waits for what: each activity starts when all that it waits for is done. The "
        "closer it comes to the measured steps, the more a prediction is worth.",
        "replay.md#the-replay",
        ("prediction", "scenario"),
    ),
    "skew": Term(
        "How far apart ranks are: `arrival_skew_ns` is the time from the first to the last arrival at a collective, "
        "`end_skew_ns` from the first to the last end.",
        "wait-and-transfer.md#wait-transfer-and-arrival",
        ("arrival_skew_ns", "end_skew_ns"),
    ),
    "skew-bound": Term(
        "A verdict: waiting for ranks that come late costs most. A faster network does not help: see who is late, and "
        "why.",
        "verdicts.md#of-the-run",
    ),
    "slack": Term(
        "How long the input of a collective was ready before the collective began: by so much it could begin earlier.",
        "releases.md#call-by-call",
    ),
    "split": Term(
        "A call is split if its time is known to be so much wait and so much transfer. That needs the calls of the "
        "other ranks, matched with certainty, and clocks that can be compared.",
        "wait-and-transfer.md#wait-transfer-and-arrival",
        ("split_calls", "split_frac"),
    ),
    "stage": Term(
        "A part of a model in pipeline parallelism, with the ranks that run it. Stages hand activations and gradients "
        "on by sends and receives.",
        "ranks-and-hosts.md#who-waits-and-for-whom",
    ),
    "step": Term(
        "One iteration of the training loop, as torch's profiler numbers it. Its window begins and ends with what the "
        "device does for it.",
        "breakdown.md#steps",
    ),
    "sync-bound": Term(
        "A verdict: devices are idle mostly because CPUs wait for them (`.item()`, `.cpu()`, a synchronisation), and "
        "launch nothing meanwhile.",
        "verdicts.md#of-the-run",
    ),
    "temporary": Term(
        "Memory that is released in the phase in which it was allocated: forward, backward or optimizer.",
        "memory.md#what-blocks-are-for",
        ("temporaries", "temporaries_bytes"),
    ),
    "transfer": Term(
        "Time of a call after its last rank has arrived: its duration minus the wait. Then data moves.",
        "wait-and-transfer.md#wait-transfer-and-arrival",
        ("transfer_ns", "exposed transfer", "moves data", "move data"),
    ),
    "transfer-bound": Term(
        "A verdict: moving data that nothing hides costs most.",
        "verdicts.md#of-the-run",
    ),
    "typical step": Term(
        "The mean over the devices and the counted steps. Steps at the edges of a capture and unusually long ones do "
        "not count.",
        "steps.md#which-steps-count",
    ),
    "uncertainty": Term(
        "How wrong the offset of a clock may be, in ns. Differences below it say nothing about who was late.",
        "clocks.md#uncertainty",
        ("uncertainty_ns",),
    ),
    "unsplit": Term(
        "Communication whose wait and transfer are not known, because a trace is missing, a match is not certain, or "
        "clocks cannot be compared.",
        "wait-and-transfer.md#exposed-wait-and-transfer",
        ("exposed_unsplit_ns", "not split", "exposed, not split"),
    ),
    "verdict": Term(
        "What limits the run, or one kind of collective, in a word and a sentence with its numbers.",
        "verdicts.md#of-the-run",
        ("verdicts",),
    ),
    "wait": Term(
        "Time of a call before its last rank has arrived. The kernel runs all the while, so its duration alone says "
        "little about the links.",
        "wait-and-transfer.md#wait-transfer-and-arrival",
        ("wait_ns", "waiting", "exposed wait"),
    ),
    "window": Term(
        "The time that a row covers: of a device, from its first start to its last end; or one step of it.",
        "breakdown.md#window-and-breakdown",
        ("window_ns",),
    ),
}
"""Term -> its meaning, in alphabetical order."""


def look_up(word: str) -> list[str]:
    """The terms that a word stands for: by name, without regard to case or hyphens, else by a synonym; or none."""
    wanted = _normal(word)
    by_name = [name for name in GLOSSARY if _normal(name) == wanted]
    return by_name or [name for name, term in GLOSSARY.items() if wanted in map(_normal, term.synonyms)]


def _normal(word: str) -> str:
    """The word in the spelling that is compared."""
    return " ".join(word.lower().replace("-", " ").replace("_", " ").split()) or word

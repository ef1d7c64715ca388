"""Which commands a lab runs, at a size that the machine can take. Knows no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...contract.lab import LabExperiment, LabTask
from ...contract.modes import MODES, ONE_WORKER
from ..base.commands.choices import CIFAR10_SAMPLES, CIFAR_IMAGE_SIZE
from ..modes import DEFAULT_MODE

# Rough speeds, for the plan's times only. ResNet-18 on CIFAR-10: 32 images in 1.2 s on two cores of a server, and the
# 50,000 of an epoch in about 10 s on a GPU of the reports; a command needs 7 s to start, a pass of VGG-16 4 s and core.
_IMAGES_PER_S_AND_CORE, _IMAGES_PER_S_AND_GPU = 13.0, 5000.0
_START_S, _CPU_STEP_S, _CPU_VGG_PASS_S = 7.0, 0.1, 4.0
_MANY_CORES, _SOME_CORES = 16, 8
_LITTLE_BYTES = 4e9
_GROWTH = 4  # from one batch size to the next
_CPU_TRAINING = (8, 1024)  # pixels and images of an epoch: enough for ResNet-18 to learn from
_REDUCING = tuple(name for name, mode in MODES.items() if mode.reduces_whole)  # the modes of the reports
_UNTIMED_STEPS = 4  # of a cell: before the profiler, and traced


@dataclass(frozen=True)
class Here:
    """The machine: usable GPUs and cores, free memory, and its name for people."""

    gpus: int
    cores: int
    free_bytes: int
    name: str

    @property
    def device(self) -> str:
        """The device to measure on, as --device takes it."""
        return "cuda" if self.gpus else "cpu"


@dataclass(frozen=True)
class Sizes:
    """How large the experiments are. `steps` in an epoch, 0: all of it; `vgg_batch` is for single layers too."""

    image_size: int
    samples: int
    steps: int
    smallest_batch: int
    batches: tuple[int, ...]
    workers: tuple[int, ...]
    modes: tuple[str, ...]
    largest_message: str
    small_batch: int
    large_batch: int
    epochs: int
    vgg_batch: int
    layer_scale: float
    iters: int
    cpu_limit: str = ""
    """Memory of a process that stands for a device, as --memory-limit takes it."""


def sizes(here: Here, *, quick: bool) -> Sizes:
    """Sizes that take minutes; on GPUs those of the reports, unless `quick`."""
    if here.gpus:
        workers = tuple(2**power for power in range(here.gpus.bit_length()))
        return Sizes(
            image_size=CIFAR_IMAGE_SIZE,
            samples=CIFAR10_SAMPLES,
            steps=20 if quick else 0,
            smallest_batch=32,
            batches=(128,) if quick else (32, 128, 512),
            workers=workers,
            modes=_REDUCING,
            largest_message="64M" if quick else "1G",
            small_batch=128,
            large_batch=2048,
            epochs=2 if quick else 5,
            vgg_batch=32 if quick else 128,
            layer_scale=1.0,
            iters=10,
        )
    little = quick or here.free_bytes < _LITTLE_BYTES
    return Sizes(
        image_size=8 if little else 32 if here.cores >= _MANY_CORES else 16,
        samples=128 if little else 512,
        steps=2 if quick else 4,
        smallest_batch=8,
        batches=(8,) if quick else (8, 32),
        workers=(1, 2, 4) if here.cores >= _SOME_CORES else (1, 2),
        modes=(DEFAULT_MODE,),
        largest_message="1M" if quick else "64M",
        small_batch=16,
        large_batch=64,
        epochs=2 if quick else 5,
        vgg_batch=2 if quick else 8,
        layer_scale=0.125 if quick else 0.25,
        iters=6 if quick else 10,
        cpu_limit="512MiB" if quick else "1GiB",
    )


def plan(here: Here, *, quick: bool = False, data_root: str | None = None) -> list[LabExperiment]:
    """The experiments in order; on synthetic images, or on CIFAR-10 from `data_root`."""
    return _Planner(here, sizes(here, quick=quick), data_root).experiments()


class _Planner:
    """What all experiments share."""

    def __init__(self, here: Here, size: Sizes, data_root: str | None) -> None:
        self._here, self._size, self._data_root = here, size, data_root
        self._pixels = CIFAR_IMAGE_SIZE if data_root else size.image_size
        self._samples = CIFAR10_SAMPLES if data_root else size.samples
        self._device = ["--device", here.device]
        self._most = str(size.workers[-1])

    def experiments(self) -> list[LabExperiment]:
        """All of them, in the order of the reports."""
        speedup, all_reduce = self._speedup(), self._all_reduce()
        lonely = None if len(self._size.workers) > 1 else "this machine has one GPU, and it needs two"
        return [
            LabExperiment("batch-size", [self._batch_size()]),
            LabExperiment("speedup", [] if lonely else [speedup], lonely),
            LabExperiment("communication", [] if lonely else [speedup], lonely),
            LabExperiment("all-reduce", [] if lonely else [all_reduce], lonely),
            LabExperiment("large-batch", self._large_batch()),
            LabExperiment("layers", self._layers()),
            LabExperiment("swap", self._swap()),
            LabExperiment("capacity", [self._capacity()]),
        ]

    def _data(self, pixels: int, samples: int) -> list[str]:
        if self._data_root:
            return ["--data", "cifar10", "--data-root", self._data_root]
        return ["--image-size", str(pixels), "--dataset-samples", str(samples)]

    def _batch_size(self) -> LabTask:
        first = self._size.smallest_batch
        grid = ["--batch-size", str(first), "--batch-size-until-oom"]
        batches = [first * _GROWTH**power for power in range(9) if first * _GROWTH**power <= self._samples]
        if self._data_root and not self._here.gpus:  # 50,000 images at once would fill the memory of the machine
            batches = batches[:3]
            grid = ["--batch-size", ",".join(map(str, batches))]
        options = ["sweep", "--parallel", ONE_WORKER, "--workers", "1", *grid, *self._cell()]
        return self._sweep("batch-size", options, [(1, batch) for batch in batches])

    def _speedup(self) -> LabTask:
        size = self._size
        grid = ["--workers", ",".join(map(str, size.workers)), "--batch-size", ",".join(map(str, size.batches))]
        cells = [(workers, batch) for workers in size.workers for batch in size.batches] * len(size.modes)
        return self._sweep("speedup", ["sweep", "--parallel", ",".join(size.modes), *grid, *self._cell()], cells)

    def _cell(self) -> list[str]:
        return ["--steps-per-epoch", str(self._size.steps), *self._data(self._pixels, self._samples), *self._device]

    def _sweep(self, folder: str, arguments: list[str], cells: Sequence[tuple[int, int]]) -> LabTask:
        """A sweep of cells: workers and batch per worker."""
        steps = [
            2 * min(self._size.steps or self._samples, max(1, self._samples // workers // batch)) + _UNTIMED_STEPS
            for workers, batch in cells
        ]
        images = sum(each * workers * batch for each, (workers, batch) in zip(steps, cells, strict=True))
        return LabTask(folder, arguments, self._seconds(len(cells), sum(steps), images, self._pixels))

    def _all_reduce(self) -> LabTask:
        message = ["--min-bytes", "4K", "--max-bytes", self._size.largest_message, "--factor", "4"]
        return LabTask(
            "all-reduce", ["comms", "all_reduce", "--workers", self._most, *message, *self._device], 2 * _START_S
        )

    def _large_batch(self) -> list[LabTask]:
        """The baseline first: the small batch at its own rate. All see the same images, as often."""
        size, workers, on_cpu = self._size, self._size.workers[-1], not self._here.gpus
        small, large = size.small_batch * workers, size.large_batch * workers
        pixels, samples = _CPU_TRAINING if on_cpu and not self._data_root else (self._pixels, self._samples)
        seen = min(samples, _CPU_TRAINING[1]) if on_cpu else samples
        rate = "0.1" if self._data_root else "0.02"
        common = ["train", "--workers", self._most, "--epochs", str(size.epochs), *self._data(pixels, samples)]
        common += ["--optimizer-lr", rate, "--wait", "1", "--warmup", "1", "--active", "1"]
        common += ["--steps", "3", *self._device]
        runs = {
            "small-batch": (small, []),
            "large-batch": (large, []),
            "large-batch-scaled-rate": (
                large,
                ["--lr-scaling", "linear", "--lr-reference-batch", str(small), "--warmup-epochs", "1"],
            ),
            "growing-batch": (small, ["--batch-size-schedule", f"{max(1, size.epochs // 2)}:{size.large_batch}"]),
        }
        return [
            LabTask(
                name,
                [*common, "--batch-size", str(batch // workers), *self._bounded(seen, samples, batch), *more],
                self._seconds(1, size.epochs * seen / batch, 1.1 * size.epochs * seen, pixels),
            )
            for name, (batch, more) in runs.items()
        ]

    def _bounded(self, seen: int, samples: int, batch: int) -> list[str]:
        """Fewer steps than an epoch has, if not all images are to be seen."""
        return ["--steps-per-epoch", str(max(1, seen // batch))] if seen < samples else []

    def _layers(self) -> list[LabTask]:
        size = self._size
        single = ["layers", "--layer", "all", "--batch-size", "256" if self._here.gpus else str(size.vgg_batch)]
        few = [] if self._here.gpus else ["--warmup", "1", "--iters", "3"]
        scale = [] if self._here.gpus else ["--scale", str(size.layer_scale)]
        of_model = ["layers", "--model", "vgg16", "--batch-size", str(size.vgg_batch)]
        return [
            LabTask("layers-single", [*single, *scale, *few, *self._device], 1.5 * _START_S),
            LabTask("layers-vgg16", [*of_model, *few, *self._device], self._vgg_s(8)),
        ]

    def _swap(self) -> list[LabTask]:
        """On the GPU and on the CPU, as a report has it."""
        devices = ["cuda", "cpu"] if self._here.gpus else ["cpu"]
        return [
            LabTask(
                f"swap-{device}",
                [
                    *("layers", "--model", "vgg16", "--against", "vgg16-swapped", "--device", device),
                    *("--batch-size", str(self._size.vgg_batch if device == self._here.device else 8)),
                    *("--warmup", "2", "--iters", str(self._size.iters)),
                ],
                self._vgg_s(2 * (self._size.iters + 4), device),
            )
            for device in devices
        ]

    def _capacity(self) -> LabTask:
        """On GPUs the stack of a report, on one and on two; on a CPU as few layers as show that the search works."""
        if self._here.gpus:
            of_devices = ["--devices", str(min(self._here.gpus, 2))]
            return LabTask("capacity", ["capacity", *of_devices, "--warmup", "2", "--iters", "3", *self._device], 240)
        size = self._size
        stack = ["--memory-limit", size.cpu_limit, "--fixed", "2", "--batch-size", "4", "--max-tries", "8"]
        return LabTask("capacity", ["capacity", *stack, "--warmup", "1", "--iters", "2", *self._device], 9 * _START_S)

    def _seconds(self, commands: int, steps: float, images: float, pixels: int) -> float:
        rate = self._here.gpus * _IMAGES_PER_S_AND_GPU or self._here.cores * _IMAGES_PER_S_AND_CORE
        work = images * (pixels / CIFAR_IMAGE_SIZE) ** 2 / rate
        return round(commands * _START_S + work + (0 if self._here.gpus else steps * _CPU_STEP_S), 1)

    def _vgg_s(self, passes: int, device: str | None = None) -> float:
        on_cpu = (device or self._here.device) == "cpu"
        return round(_START_S + (passes * _CPU_VGG_PASS_S / self._here.cores if on_cpu else 20), 1)

"""One rank of `train`: a plain training loop under the session of `capture()`."""

import weakref
from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn

from ...common.wording import counted
from ...contract.rank import EpochPhase
from ..base.console.messages import tell
from ..base.console.notices import say
from ..base.flight_recorder import record_calls
from ..machine import memory
from ..ranks import nccl_log
from ..ranks import process_group as parallel
from ..ranks.process_group import Identity
from ..sessions.session import Session, SessionOptions
from ..sessions.side_files import Subject, model_size
from ..sessions.step_clock import overhead
from ..workloads.data import DATA, Batch, DataSpec
from ..workloads.held_out import TEST_DATA
from ..workloads.models import MODELS
from ..workloads.torchvision_import import torchvision
from .config import TrainConfig
from .epochs import ScheduledBatches, TrainRun, train_in_epochs
from .learning.optimizers import optimizer_of
from .learning.scoring import ScoredLoss
from .learning.trainee import Trainee, TrainOn, train_step
from .progress import TrainReporter
from .timed_epochs import Epoch, timed_epoch

# Reading the loss makes the host wait for the GPU, so there it is read between a few unprofiled steps only.
_CUDA_LOSS_EVERY = 10


def train_rank(config: TrainConfig, command: Sequence[str]) -> Path:
    """Train as one rank, and return the run directory. Raises ProfilingError."""
    who = parallel.identity()
    where = parallel.rank_device(config.device, who.local_rank)
    config.mode.check_world(who.world_size)
    if config.flight_recorder:
        record_calls()
    if where.type == "cuda":
        nccl_log.redirect(config.out, config.detail.nccl_debug)
    group = parallel.joined(parallel.default_backend(where), where) if config.mode.distributed else nullcontext()
    with group:
        if config.memory_limit_bytes is not None:
            torchvision("models")  # what a library takes when it is loaded does not count
            devices = config.mode.devices(config)  # several are numbered from the first
            memory.limit(config.memory_limit_bytes, *(range(devices) if devices > 1 else [where.index]))
        try:
            return _train(config, who, where, command)
        finally:
            nccl_log.tidy()


def _train(config: TrainConfig, who: Identity, where: torch.device, command: Sequence[str]) -> Path:
    torch.manual_seed(config.seed)  # the same weights on every rank
    devices, whole = config.mode.devices(config), MODELS[config.model]()
    size = model_size(whole)
    if config.channels_last:
        # Convolutions have their outputs follow their weights; images are copied into this order by the first one.
        whole.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # its stubs lack the keyword
    model = config.mode.build(whole, where, config)
    del whole
    batch_size = None if config.mode.shares_batch else config.batch_size * devices
    subject = Subject(weakref.ref(model), config.model, batch_size, config.as_json(), command, size)
    options = SessionOptions(config.detail, config.keeping, show=tell, flight_recorder=config.flight_recorder)
    session = Session(config.run_dir(who.world_size * devices), config.schedule, where, subject, options)
    reporter = TrainReporter(rank=who.rank, steps=config.steps)
    with closing(_batches(config, who, where, devices)) as batches:
        try:
            with session, reporter:  # the progress line ends before the session reports
                reporter.say(_headline(config, who.world_size, devices, where))
                reporter.say(f"traces go to {session.run_dir}")
                _loop(TrainRun(config, batches, session, reporter), model, where)
        except RuntimeError as err:
            # Peers that were stopped first break our communication; the signal is the cause.
            if session.interrupted_by is not None:
                raise SystemExit(128 + session.interrupted_by) from err
            raise
        reporter.overhead(overhead(session.step_times()))
        outcome = session.outcome()
        if outcome.why is not None:
            say(str(outcome.sentence()))
    return session.run_dir


def _loop(run: TrainRun, model: nn.Module, where: torch.device) -> None:
    config, batches, session = run.config, run.batches, run.session
    optimizer = optimizer_of(model.parameters(), config.optimizer)
    trainee = Trainee(config.mode, model, ScoredLoss(), optimizer, where, config.amp)

    def train_on(batch: Batch) -> Tensor | None:
        return train_step(trainee, batch)

    if config.training.epochs:
        held_out = TEST_DATA[config.data](batches.spec).bounded(config.training.test_samples)
        train_in_epochs(run, trainee, train_on, held_out)
    else:
        _epochs(run, train_on, where)
    for step in range(config.steps):
        loss = train_on(next(batches.current))
        session.step()
        phase = config.schedule.phase(step)
        readable = where.type == "cpu" or (phase == "idle" and step % _CUDA_LOSS_EVERY == 0)
        shown = loss.item() if loss is not None and readable else None
        run.reporter.step(session.last_step_time(), phase, step, shown)


def _epochs(run: TrainRun, train_on: TrainOn, where: torch.device) -> None:
    """Run the epochs before the session's first step; no profiler is on in them."""
    config, batches, reporter = run.config, run.batches.current, run.reporter
    phases: list[EpochPhase] = ["warmup"] * config.warmup_epochs
    phases += ["timed"] * config.timed_epochs
    steps = min(batches.epoch_steps, config.steps_per_epoch or batches.epoch_steps)
    facts = {"dataset_samples": batches.dataset_samples, "full_epoch_steps": batches.epoch_steps}
    times = []
    reporter.plan(len(phases) * steps)
    for epoch, phase in enumerate(phases):
        reporter.begin_epoch(f"epoch {epoch} ({phase})", steps)
        time, loss = timed_epoch(Epoch(epoch, phase, steps), batches, reporter.counted(train_on), where)
        reporter.epoch(time, batches.epoch_steps, None if loss is None else loss.item())
        times.append(time)
    run.session.note(**facts, epochs=times)


def _batches(config: TrainConfig, who: Identity, where: torch.device, devices: int) -> ScheduledBatches:
    """The batches of this rank: its share, or the whole batch in modes whose ranks share it."""
    rank, world_size = (0, 1) if config.mode.shares_batch else (who.rank, who.world_size)
    spec = DataSpec(
        config.batch_size,
        config.image_size,
        config.data_root,
        config.seed,
        rank,
        world_size,
        pinned=where.type == "cuda",
        dataset_samples=config.dataset_samples,
        distinct=config.training.epochs > 0,
    )
    return ScheduledBatches(spec, devices, DATA[config.data])


def _headline(config: TrainConfig, ranks: int, devices: int, where: torch.device) -> str:
    backend = parallel.backend()
    placed = f"{ranks * devices} x {where.type}" + (f" ({backend})" if backend else "")
    share = config.mode.batch_share(config, ranks)
    schedule = config.schedule
    return (
        f"{config.model}, {config.parallel} on {placed}, {config.data} data, batch {config.batch_size} {share}; "
        f"{counted(config.steps, 'step')}, {schedule.active * schedule.repeat} of them traced"
    )

"""A world in one line."""

from __future__ import annotations

from functools import partial

from .world import Hardware, Injection, Layout, Window, World


def told(world: World) -> str:
    """What is special about a world."""
    parts = [
        f"World {world.seed}: {_program(world)} on {world.hosts}x{world.gpus}",
        f"{world.steps} steps",
        f"torch {world.layout.torch}",
        *_clocks(world),
        *_layout(world.layout),
        *_window(world.window),
        *_losses(world),
        *_hardware(world.hardware),
        *(_injection(each) for each in world.injections),
    ]
    if world.hang is not None:
        parts.append(f"rank {world.hang.rank} hangs in step {world.hang.step}")
    return "; ".join(parts)


def _program(world: World) -> str:
    program = world.program
    if isinstance(program, partial):
        options = ", ".join(f"{key}={value}" for key, value in program.keywords.items())
        return f"{program.func.__name__}({options})"
    return getattr(program, "__name__", str(program))


def _clocks(world: World) -> list[str]:
    clocks = world.clocks
    far, drift = max(map(abs, clocks.offset_us), default=0.0), max(map(abs, clocks.ppm), default=0.0)
    error = max(clocks.gpu_error_us, default=0.0)
    return [
        *([f"clocks off by {_time(far)}"] if far else []),
        *([f"drift {drift:.0f} ppm"] if drift else []),
        *([f"GPU times off by {error:.0f} us"] if error > 2 else []),
    ]


def _layout(layout: Layout) -> list[str]:
    found = [
        ("sync on compute stream", layout.sync_on_compute),
        ("args on records only", not layout.args_on_kernel),
        ("no groups in header", layout.header == "plain"),
        ("no distributedInfo", layout.header == "none"),
        ("group names shared", layout.shared_names),
        ("hosts not named", not layout.host_in_header and layout.names != "torch"),
        (f"steps {layout.steps}", layout.steps != "numbered"),
        ("CUDA graphs", layout.graph),
    ]
    return [text for text, is_so in found if is_so]


def _window(window: Window) -> list[str]:
    if window.spans:
        return ["windows by time"]
    return [
        f"steps {', '.join(f'{first}-{last}' for first, last in window.cycles)}",
        *(["steps shifted by rank"] if any(shift != (0, 0) for shift in window.shifts) else []),
        *([f"{window.hole_frac:.0%} of the earlier kernels missing"] if window.hole_frac else []),
    ]


def _losses(world: World) -> list[str]:
    losses = world.losses
    return [
        *([f"{losses.kernel_frac:.1%} of kernels lost"] if losses.kernel_frac else []),
        *([f"parts of ranks {sorted({r for r, _, _ in losses.ranges})} lost"] if losses.ranges else []),
        *([f"ranks {list(losses.ranks)} missing"] if losses.ranks else []),
    ]


def _hardware(hardware: Hardware) -> list[str]:
    return [
        *([f"ends scatter by {hardware.end_noise_us:.0f} us"] if hardware.end_noise_us > 5 else []),
        *(f"rank {rank} ends {_time(us)} late" for rank, us in hardware.late_end_us),
        *([f"queue of {hardware.queue}"] if hardware.queue < 200 else []),
    ]


def _injection(injection: Injection) -> str:
    who = f"{'one by one ' if injection.in_turn else ''}ranks {list(injection.ranks)}"
    return f"{injection.kind} {_time(injection.us)} on {who} in steps {list(injection.steps)}"


def _time(us: float) -> str:
    if abs(us) < 1000:
        return f"{us:.0f} us"
    return f"{us / 1000:.1f} ms" if abs(us) < 1e6 else f"{us / 1e6:.1f} s"

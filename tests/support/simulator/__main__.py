"""Write the traces of a world and say what is true: `PYTHONPATH=tests/support python -m simulator SEED|NAME OUT`."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import PRESETS, Simulated, draw, simulate


def main() -> None:
    """Write and print."""
    parser = argparse.ArgumentParser(prog="simulator", description=__doc__)
    parser.add_argument("world", help=f"seed of a random world, or one of: {', '.join(PRESETS)}")
    parser.add_argument("out", type=Path, help="folder for the traces")
    args = parser.parse_args()
    made = simulate(PRESETS[args.world] if args.world in PRESETS else draw(int(args.world)))
    paths = made.write(args.out)
    print(made.world)
    print(f"{len(paths)} files in {args.out}")
    print(summary(made))


def summary(made: Simulated) -> str:
    """What is true, in a few lines."""
    truth = made.truth
    calls, collectives = truth.calls, truth.collectives
    shown = collectives[collectives["shown_ranks"].map(len) > 0]
    by_op = shown.groupby("op").agg(count=("collective", "size"), T_us=("T_us", "median"))
    late = calls[calls["label"].notna()].groupby(["label", "late_from"])["late_us"].agg(["size", "max"])
    lines = [
        f"{len(calls)} calls, {len(shown)} collectives, {calls['has_args'].mean():.0%} of the calls with arguments",
        by_op.round(1).to_string(),
        truth.clocks.to_string(index=False),
        *([late.round(0).to_string()] if len(late) else []),
        *([f"{truth.hang}"] if truth.hang is not None else []),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()

"""Messages between CPUs: who waits for whom in sends and receives that overlap, against a slow oracle."""

import random

import pandas as pd
import pytest
from builders import MAIN_THREAD, US, Trace, analysed


class Rank:
    """A rank that sends and receives, and what it did in every microsecond."""

    def __init__(self, number: int):
        self.now = 0
        self.trace = Trace(number, 2, groups={"0": [0, 1]}, backend="gloo", device_names=(), host="node")
        self.waiting: set[int] = set()
        self.moving: set[int] = set()
        self.open: set[int] = set()
        self.unchecked: list[int] = []  # sends, by when they were issued

    def message(self, op: str, gloo: str, start: int, end: int) -> None:
        values = ["", "", str(1 - self.trace.rank), "0"]
        types = ["TensorList", "", "Scalar", "Scalar"]
        self.trace.c10d(op, start * US, 2 * US, dims=[[[9]], [], [], []], types=types, values=values)
        of_gloo = (start + 1) * US, (end - start - 1) * US
        self.trace.gloo(gloo, *of_gloo, dims=[[9]], types=["float"], thread=MAIN_THREAD)
        self.open.update(range(start, end))

    def check(self) -> None:
        for start in self.unchecked:
            self.now += 3
            self.message("send", "send", start, self.now)
        self.unchecked.clear()


@pytest.mark.slow_cases("2", "3")
@pytest.mark.parametrize("seed", range(12))
def test_waiting_in_one_message_is_no_transfer_in_another(tmp_path, seed):
    rng = random.Random(seed)
    ranks = [Rank(0), Rank(1)]
    for _ in range(rng.randint(1, 20)):
        sender, receiver = rng.sample(ranks, 2)
        sender.now += rng.randint(5, 400)
        receiver.now += rng.randint(5, 400)
        sent, came = sender.now, receiver.now
        begin = max(sent, came)
        end = begin + rng.randint(10, 60)
        receiver.message("recv_", "recv", came, end)
        receiver.waiting.update(range(came, begin))
        sender.waiting.update(range(sent, begin))
        for rank in (sender, receiver):
            rank.moving.update(range(begin, end))
        receiver.now = end
        sender.unchecked.append(sent)
        if rng.random() < 0.4:  # it blocks until its receiver has the message
            sender.now = max(sender.now, end)
            sender.check()
        else:
            sender.now += 4
    for rank in ranks:
        rank.now = max(ranks[0].now, ranks[1].now)
        rank.check()
        rank.trace.step(1, 0, (rank.now + 10) * US)
    found = analysed(tmp_path, *(rank.trace for rank in ranks))
    assert found.collectives["certain"].all()
    columns = ["exposed_comm_ns", "exposed_transfer_ns", "exposed_wait_ns", "exposed_unsplit_ns"]
    for rank, row in zip(ranks, found.breakdown[columns].to_numpy().tolist(), strict=True):
        waiting = rank.waiting - rank.moving
        parts = [rank.open, rank.moving, waiting, rank.open - rank.moving - rank.waiting]
        assert row == [len(part) * US for part in parts]
    not_known = found.verdicts["not_known"].iloc[0]
    assert pd.isna(not_known) or "because messages that are under way together end where" in not_known

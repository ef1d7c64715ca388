"""Operators on CPUs that are blocked in a collective: that time is not compute."""

import random

import pytest
from builders import GLOO_THREAD, MS, US, Trace, analysed

from commtrace.analysis.core.schema import records

OTHER_GLOO_THREAD, OTHER_THREAD = GLOO_THREAD + 1, 77


def gloo_trace() -> Trace:
    return Trace(0, 2, groups={"0": [0, 1]}, backend="gloo", device_names=(), host="node")


def times_of(folder, trace: Trace) -> dict[str, int]:
    (row,) = records(analysed(folder, trace).breakdown)
    return {key: row[f"{key}_ns"] for key in ("compute", "comm", "overlap", "exposed_comm", "idle")}


def test_an_autograd_function_waits_for_its_own_collective(tmp_path):
    trace = gloo_trace().op("_AlltoAllSingle", 0, 10 * MS).op("aten::empty", 100 * US, 100 * US)
    trace.c10d("alltoall_base_", 1 * MS, 100 * US).gloo("all_to_all", 1050 * US, 7950 * US)
    assert times_of(tmp_path, trace) == {
        "compute": 2 * MS, "comm": 7950 * US, "overlap": 0, "exposed_comm": 7950 * US, "idle": 50 * US,
    }  # fmt: skip


def test_a_kernel_of_a_tensor_that_is_not_there_yet_waits_within(tmp_path):
    trace = gloo_trace().op("_c10d_functional::all_reduce", 0, 100 * US).op("aten::linear", 1 * MS, 20 * MS)
    trace.op("aten::addmm", 1 * MS, 20 * MS).op("_c10d_functional::wait_tensor", 2 * MS, 16 * MS)
    trace.op("aten::mm", 18 * MS, 3 * MS).gloo("all_reduce", 100 * US, 17_800 * US)
    analysis = analysed(tmp_path, trace)
    (row,) = records(analysis.breakdown)
    assert (row["compute_ns"], row["overlap_ns"]) == (4 * MS, 1 * MS)
    pieces = analysis.run.activities.query("kind == 'compute'")
    assert pieces["name"].tolist() == ["aten::linear"] * 2
    assert pieces["dur_ns"].tolist() == [1 * MS, 3 * MS]


@pytest.mark.parametrize(
    ("name", "late", "compute"),
    [
        ("_Combine", 20 * US, 1 * MS + 20 * US),  # its code waited
        ("autograd::engine::evaluate_function: CombineBackward", 20 * US, 1 * MS + 20 * US),  # so did a hook
        ("_Combine", 2 * MS, 10 * MS),  # its code went on for long: nothing says that it waited
        ("aten::mm", 20 * US, 10 * MS),  # a kernel ends when others' collective does
    ],
)
def test_what_another_operator_issued_is_waited_for_where_code_goes_on_at_its_end(tmp_path, name, late, compute):
    trace = gloo_trace().op("_Dispatch", 0, 200 * US).c10d("allreduce_", 100 * US, 100 * US)
    trace.op(name, 1 * MS, 10 * MS).op("aten::empty", 1 * MS, 1 * MS)
    trace.gloo("all_reduce", 200 * US, 10_800 * US - late)
    assert times_of(tmp_path, trace)["compute"] == compute + 100 * US


def test_what_goes_on_beside_a_collective_is_compute(tmp_path):
    trace = gloo_trace().op("_Layer", 0, 10 * MS).c10d("allreduce_", 0, 100 * US)
    trace.op("aten::mm", 1 * MS, 8 * MS).gloo("all_reduce", 100 * US, 5 * MS)
    assert times_of(tmp_path, trace)["compute"] == 10 * MS - 100 * US


def test_handing_over_is_no_compute_wherever_it_happens_but_a_copy_for_it_is(tmp_path):
    trace = gloo_trace().op("torch::autograd::AccumulateGrad", 0, 10 * MS)
    trace.c10d("_reduce_scatter_base_", 1 * MS, 8 * MS).op("aten::clone", 2 * MS, 1 * MS)
    trace.gloo("all_reduce", 4 * MS, 30 * MS)
    assert times_of(tmp_path, trace)["compute"] == 3 * MS


class Thread:
    """A thread that runs drawn operators, and notes for every microsecond whether it computes."""

    def __init__(self, rng: random.Random, trace: Trace):
        self.rng, self.trace, self.now = rng, trace, 0
        self.computed: set[int] = set()
        self.waiting = 0  # calls that are to end only when somebody waits for them
        self.open: list[tuple[str, int, int]] = []  # operations of gloo, when they began, on which thread

    def busy(self, most: int) -> None:
        until = self.now + self.rng.randint(1, most)
        self.computed.update(range(self.now, until))
        self.now = until

    def kernel(self) -> None:
        begin = self.now
        self.busy(40)
        if self.rng.random() < 0.3:
            self.trace.op("aten::inner", begin * US, (self.now - begin) * US)
        self.trace.op("aten::mm", begin * US, (self.now - begin) * US)

    def hand_over(self) -> None:
        begin = self.now
        self.now += self.rng.randint(1, 20)
        if self.rng.random() < 0.5:
            copied = self.now
            self.busy(20)
            self.trace.op("aten::clone", copied * US, (self.now - copied) * US)
        self.now += self.rng.randint(1, 300)
        self.trace.c10d("allreduce_", begin * US, (self.now - begin) * US)
        thread = self.rng.choice([GLOO_THREAD, OTHER_GLOO_THREAD])
        self.open.append(("all_reduce", self.now + self.rng.randint(-1, 5), thread))

    def wait(self, place: int) -> None:
        name, begin, thread = self.open.pop(place)
        self.now = max(self.now, begin) + self.rng.randint(1, 3000)
        self.trace.gloo(name, begin * US, (self.now - begin) * US, thread=thread)

    def operator(self, depth: int) -> None:
        issued, begin = False, self.now
        name = self.rng.choice(["_Function", "autograd::engine::evaluate_function: FunctionBackward", "lib::layer"])
        self.busy(30)
        for _ in range(self.rng.randint(1, 4)):
            what = self.rng.choice(["kernel", "operator", "blocking", "issue", "wait", "functional"])
            if what == "operator" and depth:
                self.operator(depth - 1)
            elif what == "blocking":
                self.hand_over()
                issued = True
                self.wait(len(self.open) - 1)
            elif what == "issue":
                self.hand_over()
                issued = True
                self.kernel()
            elif what == "wait" and self.open and (issued or name != "lib::layer"):
                self.kernel()
                self.wait(self.rng.randrange(len(self.open)))
            elif what == "functional":
                begun = self.now
                self.now += 20
                self.trace.op("_c10d_functional::all_reduce", begun * US, 20 * US)
                self.kernel()
                begun, self.now = self.now, self.now + self.rng.randint(1, 3000)
                self.trace.op("_c10d_functional::wait_tensor", begun * US, (self.now - begun) * US)
            else:
                self.kernel()
            self.busy(30)
        self.trace.op(name, begin * US, (self.now - begin) * US)


@pytest.mark.parametrize("seed", range(12))
def test_drawn_nesting_and_overlaps(tmp_path, seed):
    rng = random.Random(seed)
    trace = gloo_trace()
    one = Thread(rng, trace)
    for _ in range(12):
        one.operator(depth=rng.randint(0, 3))
        one.now += rng.randint(1, 50)
    while one.open:  # outside of any operator
        one.wait(0)
    computed = set(one.computed)
    at = 0
    while at < one.now:  # kernels of another thread, in which collectives end by chance
        dur = rng.randint(1, 500)
        trace.op("aten::add", at * US, dur * US, thread=OTHER_THREAD)
        computed.update(range(at, at + dur))
        at += dur + rng.randint(1, 4000)
    assert times_of(tmp_path, trace)["compute"] == len(computed) * US

import signal
import sys
import time

import pytest
from capturing import SCRIPTS, fresh_python

from commtrace.profiling.base.interrupts import Interrupts


@pytest.fixture
def interrupts():
    found = Interrupts(lambda: None, lambda signum: None, grace_s=60)
    found.start()
    yield found
    found.stop()


def test_sigterm_ends_the_program_with_its_customary_code(interrupts) -> None:
    with pytest.raises(SystemExit) as stopped:
        signal.raise_signal(signal.SIGTERM)
    assert stopped.value.code == 143
    assert interrupts.received is signal.SIGTERM


def test_sigint_is_a_keyboard_interrupt(interrupts) -> None:
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_signals_wait_for_the_outermost_shield(interrupts) -> None:
    reached = []
    with pytest.raises(SystemExit), interrupts.shield():  # noqa: PT012
        with interrupts.shield():
            signal.raise_signal(signal.SIGTERM)
            reached.append("inner")
        reached.append("outer")
    assert reached == ["inner", "outer"]


def test_an_error_in_a_shield_is_not_replaced(interrupts) -> None:
    with pytest.raises(ValueError, match="mine"), interrupts.shield():  # noqa: PT012
        signal.raise_signal(signal.SIGTERM)
        raise ValueError("mine")


def test_a_held_signal_is_raised_by_the_next_shield(interrupts) -> None:
    with interrupts.held():
        signal.raise_signal(signal.SIGTERM)
    with pytest.raises(SystemExit), interrupts.shield():
        pass


def test_a_signal_waits_from_the_first_moment_of_what_leaves() -> None:
    """Where it is handled late, because the program was blocked until its peer went."""
    reached = []

    def leave() -> None:
        signal.raise_signal(signal.SIGINT)
        reached.append("before the shield")
        with found.shield():
            reached.append("in the shield")

    found = Interrupts(lambda: None, lambda signum: None, grace_s=60, leaving=leave.__code__)
    found.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            leave()
        assert reached == ["before the shield", "in the shield"]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        found.stop()


class _Finalized:
    def __init__(self, signum: signal.Signals) -> None:
        self._signum = signum

    def __del__(self) -> None:
        signal.raise_signal(self._signum)


@pytest.mark.parametrize(
    ("signum", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)], ids=["SIGINT", "SIGTERM"]
)
def test_what_a_finalizer_drops_is_raised_again(interrupts, capsys, signum, error) -> None:
    reached = []
    with pytest.raises(error):  # noqa: PT012
        _Finalized(signum)
        reached.append("after the finalizer")
        time.sleep(30)
        reached.append("not raised")
    assert reached == ["after the finalizer"]
    assert interrupts.received is signum
    assert capsys.readouterr().err == ""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_others_drop_is_shown_as_ever(interrupts, monkeypatch) -> None:
    class Broken:
        def __del__(self) -> None:
            raise ValueError("theirs")

    shown = []
    monkeypatch.setattr(interrupts, "_previous_hook", shown.append)
    Broken()
    assert [str(one.exc_value) for one in shown] == ["theirs"]


def test_handlers_are_put_back() -> None:
    hook = sys.unraisablehook
    before = [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    found = Interrupts(lambda: None, lambda signum: None, grace_s=60)
    found.start()
    found.stop()
    assert [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before
    assert signal.set_wakeup_fd(-1) == -1
    assert sys.unraisablehook is hook


def test_a_handler_of_the_program_is_left_alone() -> None:
    seen = []
    before = signal.signal(signal.SIGTERM, lambda *args: seen.append("theirs"))
    found = Interrupts(lambda: None, lambda signum: None, grace_s=60)
    try:
        found.start()
        signal.raise_signal(signal.SIGTERM)
        found.stop()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == ["theirs"]
    assert found.received is None


def test_a_handler_that_the_program_sets_later_stays() -> None:
    before = signal.getsignal(signal.SIGTERM)
    found = Interrupts(lambda: None, lambda signum: None, grace_s=60)
    found.start()
    try:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        found.stop()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
def test_a_handler_that_the_program_sets_later_has_all_the_time_it_takes() -> None:
    """It saves a checkpoint, and we have no part in it."""
    calls: list[object] = []
    before = signal.getsignal(signal.SIGTERM)
    found = Interrupts(lambda: calls.append("freed"), calls.append, grace_s=0.1)
    found.start()
    try:
        signal.signal(signal.SIGTERM, lambda *args: calls.append("theirs"))
        signal.raise_signal(signal.SIGTERM)
        time.sleep(1)
    finally:
        found.stop()
        signal.signal(signal.SIGTERM, before)
    assert calls == ["theirs"]


def test_once_a_caught_keyboard_interrupt_is_forgotten_the_next_counts_as_the_first(interrupts) -> None:
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    interrupts.forget_caught()
    assert interrupts.received is None
    with pytest.raises(KeyboardInterrupt), interrupts.shield():
        signal.raise_signal(signal.SIGINT)
    assert interrupts.received is signal.SIGINT


def test_a_signal_that_waits_in_a_shield_is_not_forgotten(interrupts) -> None:
    with pytest.raises(KeyboardInterrupt), interrupts.shield():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        interrupts.forget_caught()


@pytest.mark.slow
def test_who_catches_a_keyboard_interrupt_has_time() -> None:
    calls: list[object] = []
    found = Interrupts(lambda: calls.append("freed"), calls.append, grace_s=0.1)
    found.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        time.sleep(1)
    finally:
        found.stop()
    assert calls == []


@pytest.mark.slow
def test_after_a_keyboard_interrupt_only_time_in_one_shield_counts() -> None:
    calls: list[object] = []
    found = Interrupts(lambda: calls.append("freed"), lambda signum: calls.append(signum.name), grace_s=0.5)
    found.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        for _ in range(3):
            with found.shield():
                time.sleep(0.25)
            time.sleep(0.15)
        assert calls == []
        with found.shield():
            time.sleep(1.5)
    finally:
        found.stop()
    assert calls == ["freed", "SIGINT"]


@pytest.mark.slow
def test_a_blocked_process_is_freed_and_then_left() -> None:
    done = fresh_python(SCRIPTS / "blocked.py")
    assert done.returncode == 7, done.stderr
    assert done.stdout == "freed SIGTERM\n"

"""Find where the training steps of a script end.

See docs/design/0039-a-step-of-training.md. A step ends with an optimizer's step after a backward pass: a second one
after the same pass updates another group of parameters, as DeepSpeed's ZeRO does. Where several optimizers each follow
a backward pass of their own, a step is a round of all of them. Frameworks whose own steps we know end them.
"""

import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Literal, Protocol

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ...base.patches import Patches
from ...base.torch_private import in_backward, not_compiled
from ...sessions.step_clock import captures_graph
from .backwards import Backwards

# An optimizer has left the rounds when another one has made so many steps in a row: the training goes on without it.
_RETIRED_AFTER = 100


class StepListener(Protocol):
    """Whom `Steps` tells. Neither is called inside a backward pass, nor while a CUDA graph is captured."""

    def step_ended(self, optimizer: Optimizer | None) -> None:
        """A step has ended; `optimizer` is the last one that stepped."""

    def steps_were_parts(self, because: str) -> None:
        """A step has ended, and what was taken for steps before it were parts: steps are counted anew from here."""


class Steps:
    """Count the steps of this process from `attach` on.

    With `every`, each so many optimizer steps after a backward pass end a step, whichever optimizer makes them. Once
    `by_hand` is called, and with `only_by_hand` from the beginning, nothing else ends one. `in_graph` says whether an
    optimizer has stepped inside a CUDA graph, where steps cannot be counted.
    """

    def __init__(self, listener: StepListener, every: int | None = None, *, only_by_hand: bool = False) -> None:
        self.in_graph = False
        self._listener = listener
        self._every = every
        self._only_by_hand = only_by_hand
        self._parts = 0
        self._hook_calls = 0
        self._backwards: Backwards
        self._counted_backwards = 0
        self._stepping: list[int] = []  # optimizers whose step() runs now: some call that of another one
        self._stepping_since = 0
        self._last: weakref.ref[Optimizer] | None = None
        self._rounds = _Rounds()
        self._held = 0  # calls of frameworks that end a step when they return
        self._is_held_back = False  # a step that ends when a framework's call, or the backward pass, is over

    @property
    def last(self) -> Optimizer | None:
        """The optimizer that stepped last; None if none has, or it is gone."""
        return self._last() if self._last is not None else None

    def attach(self, patches: Patches) -> None:
        """Begin to count."""
        self._backwards = Backwards(patches)
        patches.on_detach(register_optimizer_step_pre_hook(self._before_step).remove)
        patches.on_detach(register_optimizer_step_post_hook(self._after_step).remove)
        patches.wrap(torch.amp.GradScaler, "step", self._scaler_step)
        patches.wrap(torch.cuda.CUDAGraph, "replay", self._replay)

    def before_backward(self, call: Callable[[], None]) -> None:
        """Call this where a backward pass is about to begin; it must not raise. For use after `attach`."""
        self._backwards.before = call

    def by_hand(self) -> None:
        """End a step, as the script or its user says."""
        if not self._only_by_hand:
            self._only_by_hand = True
            if self._last is not None and not captures_graph():
                self._listener.steps_were_parts("the script ends steps itself, by commtrace.step()")
                return
        if self._every is not None:
            self._parts += 1
            if self._parts % self._every:
                return
        self._end()

    def framework_call(
        self, original: Callable[..., Any], owner: Any, *args: Any, steps_of: str | None = None, **kwargs: Any
    ) -> Any:
        """Call a framework's method that ends a step if an optimizer has stepped inside it.

        `steps_of` is the attribute of its object that counts its steps, which knows better.
        """
        before = None if steps_of is None else getattr(owner, steps_of, None)
        self._held += 1
        try:
            result = original(owner, *args, **kwargs)
        except BaseException:
            self._is_held_back = False
            raise
        finally:
            self._held -= 1
        if self._held == 0 and not self._only_by_hand:
            held_back, self._is_held_back = self._is_held_back, False
            if held_back if before is None else getattr(owner, steps_of or "", before) != before:
                self._end_part()
        return result

    # With an optimizer that a script compiles, these would be compiled too: anew in each step, as it changes a number.

    @not_compiled
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG002  (given by torch)
        if self._stepping_since != self._backwards.begun:  # whatever is left there has raised an error
            self._stepping_since = self._backwards.begun
            self._stepping.clear()
        self._stepping.append(id(optimizer))

    @not_compiled
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG002  (given by torch)
        self._hook_calls += 1
        with suppress(ValueError):
            del self._stepping[self._stepping.index(id(optimizer)) :]
        if not self._stepping:
            self._stepped(optimizer)

    @partial(not_compiled, nor_what_it_calls=False)
    def _scaler_step(self, original: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Count a step that GradScaler skips after an overflow: only its last part is missing."""
        before = self._hook_calls
        result = original(scaler, optimizer, *args, **kwargs)
        if self._hook_calls == before and isinstance(optimizer, Optimizer):
            self._stepped(optimizer)
        return result

    def _replay(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Take the replay of a CUDA graph for a backward pass, which it may hold."""
        self._backwards.begun += 1
        return original(*args, **kwargs)

    def _stepped(self, optimizer: Optimizer) -> None:
        if captures_graph():
            self.in_graph = True
            return
        self._last = weakref.ref(optimizer)
        if self._only_by_hand:
            return
        if self._held:
            self._is_held_back = True
        elif in_backward():
            self._is_held_back = True
            self._backwards.after_each(self._backward_over)
        elif self._follows_backward():
            self._end_part(optimizer)

    def _backward_over(self) -> None:
        """End the step of optimizers that stepped in hooks of the backward pass."""
        if self._is_held_back and not self._held and not captures_graph():
            self._is_held_back = False
            if self._follows_backward():
                self._end_part()

    def _follows_backward(self) -> bool:
        """Whether a backward pass has begun since the last time; True where none ever has that we could see."""
        begun, before = self._backwards.begun, self._counted_backwards
        self._counted_backwards = begun
        return begun == 0 or begun != before

    def _end_part(self, optimizer: Optimizer | None = None) -> None:
        """End a step, or a part of one; `optimizer` where it may be one of several that take turns."""
        self._counted_backwards = self._backwards.begun
        if self._every is not None:
            self._parts += 1
            if self._parts % self._every == 0:
                self._end()
        elif optimizer is None:
            self._end()
        else:
            ended = self._rounds.ended_by(optimizer)
            if ended == "first round":
                self._listener.steps_were_parts("several optimizers take turns: a step is a round of them")
            elif ended == "round":
                self._end()

    def _end(self) -> None:
        if captures_graph():
            self.in_graph = True
        else:
            self._listener.step_ended(self.last)


class _Rounds:
    """Rounds of optimizers that take turns. One is over when the optimizer that came last of all takes over.

    So a discriminator that steps twice before the generator does is in one round with it, and 80 steps of a policy are
    in one round with the 80 of its value function that follow.
    """

    def __init__(self) -> None:
        self._known: list[weakref.ref[Optimizer]] = []
        self._in_a_row = 0
        self._before: weakref.ref[Optimizer] | None = None

    def ended_by(self, optimizer: Optimizer) -> Literal["nothing", "round", "first round"]:
        """What this step ends; "first round" where another optimizer turns out to be in it."""
        before = self._before() if self._before is not None else None
        self._in_a_row = self._in_a_row + 1 if before is optimizer else 1
        self._before = weakref.ref(optimizer)
        known = [each for each in (ref() for ref in self._known) if each is not None]
        if self._in_a_row > _RETIRED_AFTER:
            known = [optimizer]
        is_new = all(each is not optimizer for each in known)
        if is_new:
            known.append(optimizer)
        self._known = [weakref.ref(each) for each in known]
        if is_new and len(known) > 1:
            return "first round"
        takes_over = len(known) == 1 or self._in_a_row == 1
        return "round" if known[-1] is optimizer and takes_over else "nothing"

"""What a test asserts of times on a machine that others may use, too."""

import pytest


def expect(holds: bool, noise: float, allowed: float, said: object) -> None:
    """Fail with what is `said` unless it `holds`; skip instead if the noise, in the unit of `allowed`, is above that.

    So what is wrong fails wherever the machine is quiet enough to show it, and what is right fails nowhere.
    """
    if not holds and noise > allowed:
        pytest.skip(f"this machine is too busy: noise of {noise:.3g} where {allowed:.3g} is allowed; {said}")
    assert holds, said

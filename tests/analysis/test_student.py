"""Student's t against tables and quadrature."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commtrace.analysis.core.student import student_p_value, student_quantile


@pytest.mark.parametrize(("freedom", "t"), [(1, 63.657), (2, 9.925), (3, 5.841), (4, 4.604), (8, 3.355), (30, 2.750)])
def test_students_t_is_that_of_the_tables(freedom, t):
    assert student_quantile(freedom, 0.01) == pytest.approx(t, abs=6e-4)
    assert student_p_value(t, freedom) == pytest.approx(0.01, rel=1e-3)


@given(st.integers(1, 60), st.floats(-30, 30))
def test_students_p_value_is_the_integral_of_its_density(freedom, t):
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    x = np.linspace(0, abs(t), 40_001)
    density = scale * (1 + x**2 / freedom) ** (-(freedom + 1) / 2)
    assert student_p_value(t, freedom) == pytest.approx(
        1 - float(((density[1:] + density[:-1]) * np.diff(x)).sum()), abs=1e-6
    )

"""Real traces of others, and what was calculated of them elsewhere, in a folder beside the checkout if there is one.

Tests that need them are in this folder, and only here is a test skipped for what is outside the repository.
"""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared"
TRACES, EXPECTED = SHARED / "traces", SHARED / "expected"
FILES = sorted(TRACES.rglob("*.json.gz"))

needs_shared = pytest.mark.skipif(not (FILES and EXPECTED.is_dir()), reason="no shared traces beside the checkout")

"""Inputs from which the fuzzer begins, or that it found: none goes wrong. `make fuzz` looks for more."""

import guided
import pytest


@pytest.mark.parametrize("reader", guided.READERS)
def test_every_input_is_read_or_refused(tmp_path, reader):
    were_read = guided.replay(reader, tmp_path)
    # What the fuzzer found is named so; the others are whole files.
    whole = {name: was_read for name, was_read in were_read.items() if not name.startswith("found-")}
    assert whole
    assert all(whole.values()), whole


def test_what_goes_wrong_is_not_hidden(tmp_path, monkeypatch):
    def broken(path, *_):
        raise ZeroDivisionError(path)

    monkeypatch.setattr("commtrace.analysis.formats.kineto.reader.read_kineto", broken)
    with pytest.raises(ZeroDivisionError):
        guided.replay("kineto", tmp_path)

"""Damaged data, configs, caches, sessions and engine layers are read or refused; `tests.fuzz.readers` runs longer."""

from tests.fuzz import readers


def test_damaged_files_are_read_or_refused(tmp_path):
    cases = 700
    counts, wrong = readers.run(cases, 7, tmp_path)
    assert not wrong, "\n".join(wrong)
    assert sum(counts.values()) == cases
    for reader in readers.readers(readers.opened(tmp_path)):
        assert counts[f"{reader.name}, refused"] > 10, f"the damage to {reader.name} does not reach its reader"


def test_whatever_else_a_reader_raises_is_found(tmp_path, monkeypatch):
    calls = iter(range(100))

    def careless(path):
        if next(calls):  # the sound file is read first
            raise KeyError("layers")

    monkeypatch.setattr(readers, "readers", lambda _: (readers.Reader("config", "c", (b"{}",), careless),))
    _, wrong = readers.run(3, 1, tmp_path)
    assert len(wrong) == 3 and all("KeyError" in one for one in wrong)

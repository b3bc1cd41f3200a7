"""No damaged file gives a traceback, a hang, or something that contradicts itself."""

import random

import pytest

from benchmarks import damage
from experiments import formats, records

TRIES = 60


@pytest.mark.parametrize("name", ["schedule", "note", "config", "checkpoint", "divided"])
def test_a_damaged_file_is_refused_in_a_sentence_or_read(name, tmp_path):
    outcomes = damage.damage(name, TRIES, seed=1, place=tmp_path)
    assert not [how for how in outcomes if how.startswith("broken")], outcomes
    assert outcomes["refused"] > TRIES // 5


def test_one_flipped_bit_of_a_schedule_never_changes_it(tmp_path):
    """Checksums find it, wherever in the archive it is, or it is in what nobody reads."""
    path = damage.READERS["schedule"].write(tmp_path)
    content = path.read_bytes()
    before = damage.schedule.load(path)
    draw, changed = random.Random(2), 0
    for _ in range(100):
        damaged = bytearray(content)
        damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        try:
            after = damage.schedule.load(path)
        except ValueError:
            changed += 1
        else:
            for name, value in vars(before).items():
                assert str(getattr(after, name)) == str(value)
    assert changed > 50


def test_a_record_that_goes_back_is_refused(tmp_path):
    run = damage.sweep(tmp_path, "a")
    lines = (run / records.METRICS).read_text().splitlines(keepends=True)
    (run / records.METRICS).write_text("".join([*lines[:2], lines[0], *lines[2:]]))
    assert len(records.read_metrics(run)) == len(lines) + 1
    with pytest.raises(formats.Damaged, match="goes back"):
        records.read_metrics(run, whole=True)

"""Every override that a sentence of README or docs names is read, and fits the others of it."""

import re
import shlex

import pytest

from experiments import config_files, registry
from tests.launcher import ROOT

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize(
    ("entry", "text", "value"),
    [
        ("target_loss", "None", None), ("target_loss", "1", 1.0), ("baseline", "None", None),
        ("stop_at_target", "true", True), ("stop_at_target", "False", False),
        ("mini_batches", "3", 3), ("seconds", "1e-3", 1e-3), ("seed", "4294967295", 2**32 - 1),
        ("communication", "0", 0.0),
    ],
)  # fmt: skip
def test_a_value_of_any_type_is_read(entry, text, value):
    read = config_files.read(str(ROOT / "configs" / "nonblocking.py"), {entry: text}).config
    registry.check_arm(read)
    assert read[entry] == value and isinstance(read[entry], bool) == isinstance(value, bool)


SPAN = re.compile(r"`(--config\.[^`]+)`")  # flags that a sentence, or the table of methods, gives
# Of files that a reader has, or a rule that the page has made; or there is no value.
MADE_BEFORE = (
    "majority", "replay(", "=...", "PATH", "/data/", "profile.json", "nccl.txt", "steps.csv",
)  # fmt: skip
NEEDED = {
    "--config.wait.seconds": ["--config.wait=deadline(seconds=0.3)"],
    "--config.mini_batches": ["--config.wait=k_sync(k=2)"],
    "--config.sharding": ["--config.runtime=mesh", "--config.delay=none",
                          "--config.communication=0.0",
                          "--config.devices_per_worker=2", "--config.workers=4"],
    "--config.delay=none": ["--config.runtime=mesh"],
}


def test_flags_of_a_sentence_fit(call):
    """A run of eight workers; by a rule that the method can do with where it names none."""
    spans = sorted({span for path in DOCUMENTS for span in SPAN.findall(path.read_text())})
    usable = [s for s in spans if "=" in s and not any(word in s for word in MADE_BEFORE)]
    assert len(usable) > 20
    for span in usable:
        flags = ["--config=config.py:workers=8", "--workdir=out", "--print_commands"]
        beside = next((NEEDED[start] for start in NEEDED if span.startswith(start)), ())
        if "--config.wait" not in span:
            flags.append("--config.wait=barrier")
        code, _, err = call(*flags, *beside, *shlex.split(span))
        assert code == 0, err

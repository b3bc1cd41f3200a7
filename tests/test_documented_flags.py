"""Every override that README or docs name is read, and fits the others of its sentence."""

import re
import shlex

from experiments import config_files, optimizers, prepare, registry
from experiments.registry import Kind
from tests.launcher import ROOT

CONFIG = str(ROOT / "configs" / "nonblocking.py")
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WORD = re.compile(r"'(--config\.[a-z_.]+=)([^'\n]*)'")  # a flag that is quoted as a whole
OVERRIDE = re.compile(r"--config\.([a-z_.]+)=('[^']*'|\"[^\"]*\"|[^\s`'\"\\),;]+)")
KINDS = {
    "wait": prepare.RULE, "delay": prepare.DELAY, "graph": prepare.GRAPH, "split": prepare.SPLIT,
    "algorithm": prepare.METHOD, "communication": prepare.NETWORK,
    "optimizer": optimizers.TRANSFORM,
}  # fmt: skip
BESIDE = {"wait.seconds": {"wait": "deadline(seconds=0.3)"}}  # an entry of a part that has it


def overridden(**values):
    read = config_files.read(CONFIG, values).config
    registry.check_arm(read)
    return read


def test_a_value_of_any_type_is_read():
    for entry, text, value in (
        ("target_loss", "None", None), ("target_loss", "1", 1.0), ("baseline", "None", None),
        ("stop_at_target", "true", True), ("stop_at_target", "False", False),
        ("mini_batches", "3", 3), ("seconds", "1e-3", 1e-3), ("seed", "4294967295", 2**32 - 1),
        ("communication", "0", 0.0),
    ):  # fmt: skip
        read = overridden(**{entry: text})[entry]
        assert read == value and isinstance(read, bool) == isinstance(value, bool), entry


def test_overrides_of_documents_are_read():
    known, found = config_files.read(CONFIG).config, set()
    for path in DOCUMENTS:
        page = WORD.sub(r"\1'\2'", path.read_text().replace("\\\n", " "))
        for entry, text in OVERRIDE.findall(page):
            text = text[1:-1] if text[0] in "'\"" else text
            found.add((entry, text))
            if entry.partition(".")[0] not in known or text == "VALUE" or "..." in text:
                continue
            read = overridden(**BESIDE.get(entry, {}), **{entry: text})
            kind, value = KINDS.get(entry), read[entry] if "." not in entry else None
            if isinstance(kind, Kind) and hasattr(value, "items") and ":" not in value.name:
                own = value.name.startswith("my_") or path.stem in ("extend", "method", "rule")
                assert own or value.name in {"none", "chain"} | set(kind.factories)
    network = "network(latency=1e-4, bandwidth=1.25e9)"
    assert {("communication", network), ("wait.seconds", "0.4")} <= found and len(found) > 20


SPAN = re.compile(r"`(--config\.[^`]+)`")  # flags that a sentence, or the table of methods, gives
# Of files that a reader has, or a rule that the page has made; or there is no value.
MADE_BEFORE = ("majority", "replay(", "=...", "PATH", "/data/", "profile.json")
NEEDED = {
    "--config.wait.seconds": [f"--config.wait={BESIDE['wait.seconds']['wait']}"],
    "--config.mini_batches": ["--config.wait=k_sync(k=2)"],
    "--config.delay=none": ["--config.runtime=mesh"],
}


def test_flags_of_a_sentence_fit(call):
    """A run of eight workers; by a rule that the method can do with where it names none."""
    spans = sorted({span for path in DOCUMENTS for span in SPAN.findall(path.read_text())})
    usable = [s for s in spans if "=" in s and not any(word in s for word in MADE_BEFORE)]
    for span in {span.partition("=")[0]: span for span in usable}.values():
        flags = ["--config=config.py:workers=8", "--workdir=out", "--print_commands"]
        beside = next((NEEDED[start] for start in NEEDED if span.startswith(start)), ())
        if "--config.wait" not in span:
            flags.append("--config.wait=barrier")
        code, _, err = call(*flags, *beside, *shlex.split(span))
        assert code == 0, err

"""Every override that README, docs or an error names is read by configs of every runtime."""

import re
import shlex

import pytest

from experiments import config_files, optimizers, prepare, registry, runtime_builders
from experiments.registry import Kind
from tests import launcher
from tests.launcher import ROOT

# One of each runtime, at the size of tests; all have the same entries.
CONFIGS = [
    str(ROOT / "configs" / name)
    for name in ("nonblocking.py", "mg_wfbp.py", "slow_and_stale.py:real", "language_model.py:tiny")
]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WORD = re.compile(r"'(--config\.[a-z_.]+=)([^'\n]*)'")  # a flag that is quoted as a whole
OVERRIDE = re.compile(r"--config\.([a-z_.]+)=('[^']*'|\"[^\"]*\"|[^\s`'\"\\),;]+)")
NETWORK = "network(latency=1e-4, bandwidth=1.25e9)"
# What an error says an entry must be -> ways to write it, and what then stands in the config.
WORDS = {
    "a text": {},  # names of an arm, a runtime and a draw
    "a part, as in name(parameter=value)": {},  # see FORMS
    "a positive whole number": {"3": 3},
    "a positive whole number, or one per worker": {"3": 3, "[1, 2, 3]": [1, 2, 3]},
    "a whole number, 0 or more": {"0": 0, "4294967295": 2**32 - 1},
    "below 2**32, as devices draw from 32 bits of it": {"7": 7},
    "below 2**31, as devices count": {"7": 7},
    "a positive number": {"2": 2.0, "1e-3": 1e-3},
    "a number of seconds, 1e-06 or more": {"1e-6": 1e-6, "3": 3.0},
    "a number, 0 or more, or a part": {
        "0": 0.0, "1e-3": 1e-3, NETWORK: "network",
        "link(latency=1e-4, bandwidth=1.25e9)": "link",
    },
    "a positive number or None": {"None": None, "0.3": 0.3, "1": 1.0},
    "true or false": {"true": True, "false": False, "True": True},
    "an arm's name or None": {"None": None, "all_reduce/blocking": "all_reduce/blocking"},
}  # fmt: skip
# Parts as documents write them, and others of each kind.
FORMS = {
    "wait": ("barrier", "deadline(seconds=0.3)", "my_rules:mine(seconds=1)"),
    "delay": ("exponential(scale=0.1)", "none", "trace(path='a b.csv')"),
    "split": ("dirichlet(alpha=0.3)",),
    "graph": ("torus", "erdos_renyi(probability=0.5, seed=1)"),
    "algorithm": ("all_reduce", "dpsgd(order=adapt_then_combine)"),
    "task": ("synthetic_logistic(samples=256, dimension=8)",),
    "optimizer": ("[clip_by_global_norm(max_norm=1.0), lion(learning_rate=0.01)]",),
    "communication": (NETWORK, "link(latency=1e-4, bandwidth=1e9)"),
}
KINDS = {
    "wait": prepare.RULE, "delay": prepare.DELAY, "graph": prepare.GRAPH, "split": prepare.SPLIT,
    "algorithm": prepare.METHOD, "communication": prepare.NETWORK,
    "optimizer": optimizers.TRANSFORM,
}  # fmt: skip
BESIDE = {"wait.seconds": {"wait": "deadline(seconds=0.3)"}}  # an entry of a part that has it


def overridden(config, **values):
    read = config_files.read(config, values).config
    registry.check_arm(read)
    return read


def test_the_words_of_an_error_and_all_forms_of_parts_are_read():
    for words, _, names in registry._ENTRIES:
        assert words in WORDS, f"add a way to write {words!r}"
        for name in names:
            for text, value in WORDS[words].items():
                read = overridden(CONFIGS[0], **{name: text})[name]
                if hasattr(read, "items"):
                    assert read.name == value
                else:
                    read = list(read) if isinstance(read, tuple) else read
                    assert read == value and type(read) in (type(value), float, int), (name, text)
    for name, forms in FORMS.items():
        for text in forms:
            read = overridden(CONFIGS[0], **{name: text})[name]
            assert read.name == ("chain" if text.startswith("[") else text.partition("(")[0])


def documented():
    """Yield (document, entry, text) of every --config.ENTRY=VALUE that is written down."""
    for path in DOCUMENTS:
        page = WORD.sub(r"\1'\2'", path.read_text())
        for entry, text in OVERRIDE.findall(page):
            yield path.name, entry, text[1:-1] if text[0] in "'\"" else text


def test_overrides_of_documents_are_read():
    known, found = config_files.read(CONFIGS[0]).config, set()
    for document, entry, text in documented():
        found.add((entry, text))
        if entry.partition(".")[0] not in known or text == "VALUE" or "..." in text:
            continue
        read = overridden(CONFIGS[0], **BESIDE.get(entry, {}), **{entry: text})
        kind, value = KINDS.get(entry), read[entry] if "." not in entry else None
        if isinstance(kind, Kind) and hasattr(value, "items") and ":" not in value.name:
            own = value.name.startswith("my_") or document in ("extend.md", "method.md", "rule.md")
            assert own or value.name in {"none", "chain"} | set(kind.factories)
    assert {("communication", NETWORK), ("wait.seconds", "0.4")} <= found and len(found) > 20


SPAN = re.compile(r"`(--config\.[^`]+)`")  # flags that a sentence, or the table of methods, gives
# Of files that a reader has, or a rule that the page has made; or there is no value.
MADE_BEFORE = ("majority", "replay(", "=...", "PATH", "/data/", "profile.json")
NEEDED = {
    "--config.wait.seconds": [f"--config.wait={BESIDE['wait.seconds']['wait']}"],
    "--config.mini_batches": ["--config.wait=k_sync(k=2)"],
    "--config.delay=none": ["--config.runtime=mesh"],
}


@pytest.mark.slow
def test_flags_of_a_sentence_are_launched(tmp_path, monkeypatch, capsys):
    """Two updates of eight workers; by a rule that the method can do with where it names none."""
    launcher.directory(tmp_path, monkeypatch)
    call = launcher.caller(monkeypatch, capsys)
    spans = sorted({span for path in DOCUMENTS for span in SPAN.findall(path.read_text())})
    usable = [s for s in spans if "=" in s and not any(word in s for word in MADE_BEFORE)]
    for number, span in enumerate({span.partition("=")[0]: span for span in usable}.values()):
        flags = ["--config=config.py:workers=8", f"--workdir=out{number}", "--config.updates=2"]
        beside = next((NEEDED[start] for start in NEEDED if span.startswith(start)), ())
        if "--config.wait" not in span:
            flags.append("--config.wait=barrier")
        code, _, err = call(*flags, *beside, *shlex.split(span))
        assert code == 0, err


def test_sensible_values_prepare_in_every_runtime():
    for config in CONFIGS:
        network, others = NETWORK, {"target_loss": "None", "baseline": "x"}
        if runtime_builders.RUNTIMES[config_files.read(config).config.runtime].cluster:
            with pytest.raises(ValueError, match="the links between processes are real"):
                prepare.prepare(overridden(config, communication=network, **others))
            network = "0.1"
        prepare.prepare(overridden(config, communication=network, **others))
    counts = {"wait": "k_async(k=2)", "mini_batches": "[1, 2, 3, 4, 5, 6, 7, 8]"}
    prepare.prepare(overridden(CONFIGS[0], **counts))
    with pytest.raises(ValueError, match="mini_batches lists 3 numbers for 8 workers"):
        prepare.prepare(overridden(CONFIGS[0], **counts | {"mini_batches": "[1, 2, 3]"}))

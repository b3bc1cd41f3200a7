"""Every override that README, docs or an error names is read by configs of every runtime."""

import re
import shlex

import pytest

from experiments import config_files, optimizers, prepare, registry, runtime_builders
from experiments.registry import Kind
from tests import launcher
from tests.launcher import ROOT

# One of each runtime, at the size of tests; all have the same entries, see configs/test_base.py.
CONFIGS = {
    name.removesuffix(":"): str(ROOT / "configs" / name.replace(":", ".py:"))
    for name in ("nonblocking:", "mg_wfbp:", "slow_and_stale:real", "language_model:tiny")
}
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WORD = re.compile(r"'(--config\.[a-z_.]+=)([^'\n]*)'")  # a flag that is quoted as a whole
OVERRIDE = re.compile(r"--config\.([a-z_.]+)=('[^']*'|\"[^\"]*\"|[^\s`'\"\\),;]+)")

# What an error says an entry must be -> ways to write it, and what then stands in the config.
WORDS = {
    "a text": {},  # names of an arm, a runtime and a draw
    "a part, as in name(parameter=value)": {},  # see FORMS
    "a positive whole number": {"3": 3},
    "a positive whole number, or one per worker": {"3": 3, "[1, 2, 3]": [1, 2, 3]},
    "a whole number, 0 or more": {"0": 0, "4294967295": 2**32 - 1},
    "below 2**32, as devices draw from 32 bits of it": {"7": 7},
    "below 2**31, as devices count": {"7": 7},
    "a positive number": {"2": 2.0, "0.5": 0.5, "1e-3": 1e-3},
    "a number of seconds, 1e-06 or more": {"1e-6": 1e-6, "3": 3.0},
    "a number, 0 or more, or a part": {
        "0": 0.0, "0.1": 0.1, "1e-3": 1e-3,
        "network(latency=1e-4, bandwidth=1.25e9)": ("network", {"bandwidth": 1.25e9}),
        "link(latency=1e-4, bandwidth=1.25e9)": ("link", {"latency": 1e-4}),
    },
    "a positive number or None": {"None": None, "0.3": 0.3, "1": 1.0},
    "true or false": {"true": True, "false": False, "True": True},
    "an arm's name or None": {"None": None, "all_reduce/blocking": "all_reduce/blocking"},
}  # fmt: skip
# Parts as documents write them, and others of each kind.
FORMS = {
    "wait": ("barrier", "deadline(seconds=0.3)", "k_async(k=2)", "my_rules:mine(seconds=1)"),
    "delay": (
        "exponential(scale=0.1)",
        "none",
        "pareto(minimum=0.02, shape=3)",
        "trace(path='a b.csv')",
    ),
    "split": ("iid", "dirichlet(alpha=0.3)"),
    "graph": ("torus", "ring", "erdos_renyi(probability=0.5, seed=1)"),
    "algorithm": ("all_reduce", "dpsgd(order=adapt_then_combine)", "matcha(budget=0.3)"),
    "task": ("digits", "synthetic_logistic(samples=256, dimension=8)"),
    "optimizer": (
        "sgd(learning_rate=0.1)",
        "[clip_by_global_norm(max_norm=1.0), lion(learning_rate=0.01)]",
    ),
}


def overridden(config, **values):
    read = config_files.read(config, values).config
    registry.check_arm(read)
    return read


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_what_an_error_asks_for_is_read(config):
    for words, _, names in registry._ENTRIES:
        assert words in WORDS, f"add a way to write {words!r}"
        for name in names:
            for text, value in WORDS[words].items():
                read = overridden(config, **{name: text})[name]
                if isinstance(value, tuple):
                    assert read.name == value[0] and value[1].items() <= dict(read).items()
                else:
                    read = list(read) if isinstance(read, tuple) else read
                    assert read == value and type(read) in (type(value), float, int), (name, text)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_parts_are_read_in_all_forms(config):
    for name, forms in FORMS.items():
        for text in forms:
            read = overridden(config, **{name: text})[name]
            assert read.name == ("chain" if text.startswith("[") else text.partition("(")[0])
    for text in ("network(latency=1e-4, bandwidth=1.25e9)", "0.1", "0"):
        # Whichever of the two the config has, a flag after it takes the other.
        for first in ("0.2", "link(latency=1e-4, bandwidth=1e9)"):
            with_both = config_files.read(config, {"communication": first}).config
            again = config_files.override(
                with_both, {"communication": config_files.value(with_both, "communication", text)}
            )
            registry.check_arm(again)


def documented():
    """(document, entry, text) of every --config.ENTRY=VALUE that is written down."""
    for path in DOCUMENTS:
        page = WORD.sub(r"\1'\2'", path.read_text())
        for entry, text in OVERRIDE.findall(page):
            if text[0] in "'\"":
                text = text[1:-1]
            yield path.name, entry, text


def test_documents_are_searched():
    found = {(entry, text) for _, entry, text in documented()}
    assert ("communication", "network(latency=1e-4, bandwidth=1.25e9)") in found
    assert ("wait.seconds", "0.4") in found and len(found) > 20
    assert ("split", "dirichlet(alpha=0.1)") in found


KINDS = {
    "wait": prepare.RULE, "delay": prepare.DELAY, "graph": prepare.GRAPH, "split": prepare.SPLIT,
    "algorithm": prepare.METHOD, "communication": prepare.NETWORK,
    "optimizer": optimizers.TRANSFORM,
}  # fmt: skip
BESIDE = {"wait.seconds": {"wait": "deadline(seconds=0.3)"}}  # an entry of a part that has it


def test_what_documents_write_is_read():
    config = CONFIGS["nonblocking"]
    known = config_files.read(config).config
    for document, entry, text in documented():
        if entry.partition(".")[0] not in known or text in ("VALUE", "...") or "..." in text:
            continue
        read = overridden(config, **BESIDE.get(entry, {}), **{entry: text})
        kind = KINDS.get(entry)
        value = read[entry] if "." not in entry else None
        if isinstance(kind, Kind) and hasattr(value, "items") and ":" not in value.name:
            own = value.name.startswith("my_") or document in ("extend.md", "method.md", "rule.md")
            assert own or value.name in {"none", "chain"} | set(kind.factories)


SPAN = re.compile(r"`(--config\.[^`]+)`")  # flags that a sentence, or the table of methods, gives
# Of files that a reader has, or a rule that the page has made; or there is no value.
MADE_BEFORE = ("majority", "replay(", "=...", "PATH", "/data/", "profile.json")
SPANS = sorted(
    {span for path in DOCUMENTS for span in SPAN.findall(path.read_text())}
    - {span for span in SPAN.findall("".join(path.read_text() for path in DOCUMENTS))
       if "=" not in span or any(word in span for word in MADE_BEFORE)}
)  # fmt: skip
NEEDED = {
    "--config.wait.seconds": [f"--config.wait={BESIDE['wait.seconds']['wait']}"],
    "--config.mini_batches": ["--config.wait=k_sync(k=2)"],
    "--config.delay=none": ["--config.runtime=mesh"],
}


@pytest.mark.slow
def test_what_a_sentence_gives_is_launched(tmp_path, monkeypatch, capsys):
    """Two updates of eight workers; by a rule that the method can do with where it names none."""
    launcher.directory(tmp_path, monkeypatch)
    call = launcher.caller(monkeypatch, capsys)
    for number, span in enumerate({span.partition("=")[0]: span for span in SPANS}.values()):
        flags = ["--config=config.py:workers=8", f"--workdir=out{number}", "--config.updates=2"]
        beside = next((NEEDED[start] for start in NEEDED if span.startswith(start)), ())
        if "--config.wait" not in span:
            flags.append("--config.wait=barrier")
        code, _, err = call(*flags, *beside, *shlex.split(span))
        assert code == 0, err


def test_mini_batches_per_worker_are_a_flag():
    config = config_files.read(
        CONFIGS["nonblocking"],
        {"mini_batches": "[1, 2, 3, 4, 5, 6, 7, 8]", "wait": "k_async(k=2)"},
    ).config
    assert list(config.mini_batches) == [1, 2, 3, 4, 5, 6, 7, 8]
    prepare.prepare(config)
    short = config_files.read(
        CONFIGS["nonblocking"], {"mini_batches": "[1, 2, 3]", "wait": "k_async(k=2)"}
    ).config
    with pytest.raises(ValueError, match="mini_batches lists 3 numbers for 8 workers"):
        prepare.prepare(short)


# What makes sense in every config, through all that is checked before a run.
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_what_makes_sense_everywhere_prepares_everywhere(config):
    network = "network(latency=1e-4, bandwidth=1.25e9)"
    others = {"target_loss": "None", "baseline": "x"}
    runtime = runtime_builders.RUNTIMES[config_files.read(config).config.runtime]
    if runtime.cluster:  # its links are real
        with pytest.raises(ValueError, match="the links between processes are real"):
            prepare.prepare(overridden(config, communication=network, **others))
        network = "0.1"
    prepare.prepare(overridden(config, communication=network, **others))

"""Sizes and numbers that fit no machine, no clock or no sense: a sentence with the bound."""

import pytest

from experiments import prepare, sweep
from tests import launcher
from tests.launcher import files
from tests.test_bad_input import OK, is_one_sentence


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "exits.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "leaves.py").write_text("import sys\ndef get_config():\n    sys.exit(0)\n")
    (tmp_path / "nameless.py").write_text(
        "from ml_collections import ConfigDict\ndef get_config():\n    return ConfigDict()\n"
    )
    return launcher.directory(tmp_path, monkeypatch)


@pytest.fixture
def call(here, monkeypatch, capsys):
    return launcher.caller(monkeypatch, capsys)


def config(*changes):
    return (*OK, *(f"--config.{change}" for change in changes))


BAD = [
    # more memory than there is
    (config("mini_batches=2147483647", "batch_size=2147483647"), "takes at least 1.84e+07 TB"),
    (config("task=synthetic_logistic(samples=99999999999999, dimension=8)"), "more memory than"),
    (config("task=synthetic_logistic(samples=256, dimension=99999999999)"), "more memory than"),
    (config("mini_batches=99999999999"), "config.mini_batches must be below 2**31"),
    (config("batch_size=100000000000000000000000"), "config.batch_size must be below 2**31"),
    # more than sense
    ((*OK, "--seeds=1000000000"), "1 arms with --seeds=1000000000 are 1000000000 runs"),
    (config("devices=99999", "workers=99999"), "an arm asks for 99999 devices"),
    (config("evaluate_every=1e-12"), "a number of seconds, 1e-06 or more, got 1e-12"),
    # what float64 seconds cannot add
    (config("delay=deterministic(value=1e-300)"), "usually takes 1e-300 s, which a clock"),
    (config("delay=jitter(mean=1.0, sigma=1e9)"), "cannot tell from nothing"),
    (config("delay=deterministic(value=1e-8)", "seconds=1e9", "updates=2147483647",
            "mini_batches=100000000", "batch_size=1"), "cannot tell from nothing"),
    (config("delay=markov(law=deterministic(value=0.02), factor=4.0, mean_normal=1e-7, "
            "mean_slow=1e-7)"), "would see more than 1000 sojourns"),
    # numbers that are none, or out of range
    ((*OK, "--checkpoint_seconds=nan"), "--checkpoint_seconds=nan"),
    (config("seed=4294967296"), "config.seed must be below 2**32"),
    ((*config("seed=4294967295"), "--seeds=2"), "config.seed must be below 2**32"),
    (config("seconds=nan"), "config.seconds must be a positive number, got nan"),
    (config("task=synthetic_logistic(samples=256, dimension=8, seed=4294967296)"), "below 2**32"),
    *((config(f"optimizer.decay={value}"), words) for value, words in (
        ("nan", "0 or more and below 1, got nan"),
        ("1", "0 or more and below 1, got 1"))),
    (config("optimizer=adam(b1=1.5, learning_rate=0.1)"), "b1 must be 0 or more and below 1"),
    (config("optimizer=adam(eps=1e999, learning_rate=0.1)"), "'eps' must be finite"),
    (config("wait=deadline(seconds=nan)"), "'seconds' must be a number, got 'nan'"),
    (config("delay=deterministic(value=-1e999)"), "'value' must be finite"),
    # workers that there are not
    (config("delay=persistent(law=exponential(scale=0.02), factors={99: 2})"), "names worker 99"),
    (config("delay=spells(law=persistent(law=exponential(scale=0.02), factors=[1, 1, 4]), "
            "mini_batches=4)"), "names worker 2, but there are 2 workers, from 0 to 1"),
    # parts that are none
    (config("wait={'name': ['barrier']}"), "wait: unknown name ['barrier']"),
    (config("algorithm={'name': {'name': 'x'}}"), "algorithm: "),
    (config("wait=deadline(seconds=" + 100_000 * "-"), "cannot read the part"),
    (config("wait=" + 100_000 * "a"), "wait: unknown name"),
    # files that end the program, or say nothing
    (("--config=exits.py", "--workdir=out"), "exits.py ends the program (sys.exit)"),
    (("--config=leaves.py", "--workdir=out"), "get_config() of leaves.py ends the program"),
    (("--config=nameless.py", "--workdir=out"), "config.name is missing"),
    # what would be lines of a script
    ((*OK, "--executor=slurm", "--slurm=partition=gpu\ntouch x"), "has a line break or another"),
    ((*OK, "--executor=slurm", "--slurm=setup=\x1b[2J"), "has a line break or another control"),
    ((*OK, "--num_processes=2", "--process_id=0", "--coordinator_address=h:0"), "no host or no"),
    ((*OK, "--num_processes=2", "--process_id=0", "--coordinator_address=h:99999"), "no host or"),
    (
        (*OK, "--num_processes=2", "--process_id=0", "--coordinator_address=192.0.2.1:7777"),
        "process 0 cannot listen there",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "words"), BAD)
def test_what_does_not_fit_is_answered_in_one_sentence(call, here, flags, words):
    before = files(here)
    code, out, err = call(*flags)
    assert code == 2 and out == "" and is_one_sentence(err, words), err
    assert len(err) < 6200 and max(map(len, err.split())) < 300
    assert files(here) == before


@pytest.mark.slow
def test_what_is_large_and_fits_runs(call):
    flags = config("optimizer.warmup_samples=1000000000000", "seed=4294967295", "updates=2")
    code, _, err = call(*flags)
    assert code == 0, err


def test_memory_is_counted_with_the_control_group(tmp_path, monkeypatch):
    whole = prepare.free_memory()
    assert whole > 2**20
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("2000000\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 500000\n")
    monkeypatch.setattr(prepare, "CGROUP", tmp_path)
    assert prepare.free_memory() == 1_500_000
    (tmp_path / "memory.max").write_text("max\n")
    assert prepare.free_memory() > 2**20
    with pytest.raises(ValueError, match=r"x takes at least 1e\+06 TB of memory, and .* are free"):
        prepare.check_memory(1e18, "x", "lower it")


def test_what_takes_long_says_so(monkeypatch, capsys):
    monkeypatch.setattr(sweep, "PATIENCE", 0.01)
    with sweep.Patience() as patience:
        patience.doing = "arm 3 of 4"
        while "arm 3 of 4, 0 s so far" not in capsys.readouterr().err:
            pass

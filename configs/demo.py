"""Demo: blocking against non-blocking SGD with one worker that is four times slower.

Eight workers on a ring; the arms use Ring All-Reduce and D-PSGD. See `configs/nonblocking.py` for
all values and for more mixers, delays and rivals. The variant `lengths` tests when small rounds
are enough:

    --config=configs/demo.py:lengths --sweep --seeds=3 --together
"""

from configs import arguments, base, nonblocking
from experiments import papers
from experiments.registry import part


def get_config(arg: str | None = None) -> base.ConfigDict:
    """Return one arm, with the arguments of `configs/nonblocking.py`."""
    c = nonblocking.get_config(arg)
    c.graph = part("ring")
    return c


def sweep() -> base.Arms:
    """Yield arms with equal samples per round, blocking and not, and one with small batches."""
    ring = {"algorithm": part("all_reduce", collective="ring")}
    gossip = {"algorithm": part("dpsgd"), "baseline": "dpsgd/blocking"}
    yield "all_reduce/blocking", ring | {"wait": part("barrier")}
    yield "all_reduce/nonblocking", ring | {"wait": part("first_finisher")}
    yield "all_reduce/small_batch", ring | {"wait": part("barrier"), "mini_batches": 1}
    yield "dpsgd/blocking", gossip | {"wait": part("neighbour_barrier")}
    yield "dpsgd/nonblocking", gossip | {"wait": part("first_finisher")}


RATES = (*nonblocking.LEARNING_RATES[1:], 1.13)
CASES = ((16, 4), (4, 4), (4, 16))  # samples of a mini-batch, mini-batches that an exchange lasts


def _rounds(arg: str | None = None) -> base.ConfigDict:
    """Return one arm; arguments: workers."""
    c = get_config(f"workers={arguments.parse(arg, workers=8)['workers']}")
    c.baseline = None
    c.evaluate_every = 0.1  # seconds on the run's clock
    c.stop_at_target = True
    return c


def _rounds_sweep() -> base.Arms:
    """Yield all-reduce, blocking and not, in rounds of 1 to 16 mini-batches, for every case."""
    for samples, exchange in CASES:
        each = nonblocking.NOMINAL * samples / 128  # seconds of a mini-batch
        delay, _ = nonblocking.delays(each)["slow4"]
        case = {"batch_size": samples, "delay": delay, "communication": exchange * each}
        for side, wait in (("blocking", "barrier"), ("nonblocking", "first_finisher")):
            for length in (1, 2, 4, 8, 16):
                name = f"{side}/samples={samples}/exchange={exchange}/M={length}"
                changes = case | {"wait": part(wait), "mini_batches": length}
                yield from base.at_rates(name, changes, RATES)


VARIANTS = {
    "lengths": base.Variant(
        "Rounds of 1 to 16 mini-batches, blocking and not: when are small rounds enough?\n\n"
        "Mini-batches have 16 samples, as in the demo, or 4. An exchange lasts as long as 4 or 16 "
        "of them. Every length of a round has its best learning rate.",
        _rounds,
        sweep=_rounds_sweep,
        claims=papers.Judged("nonblocking", "demo_rounds"),
        numbers=papers.at_best("seconds_to_target", "updates_to_target"),
    ),
}

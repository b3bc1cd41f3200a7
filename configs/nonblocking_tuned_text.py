"""Best non-blocking against best blocking: a small GPT on the text of Python's own library.

The question of `configs/nonblocking_tuned.py`, on another model: the GPT of 140,000
parameters that `configs/local_training.py` is published with, trained with AdamW as there, on
shorter sequences.

    python launch.py --config=configs/nonblocking_tuned_text.py --sweep --seeds=3 --together \
        --workdir=runs/text
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import language_model, nonblocking_tuned
from experiments import papers, stats
from experiments.parts import part

WORKERS, BATCH = 4, 1  # sequences of a mini-batch
LENGTH = 32  # words of a sequence
COMMUNICATION = 0.03125  # nominal rounds of 128 sequences: the time of four mini-batches
MIXERS = ("all_reduce", "dpsgd")
MINI_BATCHES = (1, 2, 4, 8, 16, 32)
LEARNING_RATES = (0.001, 0.002, 0.004, 0.008)


def get_config(arg: str | None = None) -> ConfigDict:
    """One arm, with the arguments of `configs/nonblocking.py`."""
    own = f"workers={WORKERS},batch={BATCH},communication={COMMUNICATION}"
    c = nonblocking_tuned.get_config(f"{own},{arg or ''}")
    c.task = language_model.get_config("size=140k").task
    c.task.length = LENGTH
    c.optimizer = part("adamw", learning_rate=0.002, weight_decay=0.1)
    # Below the plateau of 4.2, at which a model knows how frequent words are and no more.
    c.target_loss = 4.0
    c.seconds = 2.5
    return c


def sweep() -> Iterator[tuple[str, dict]]:
    """The grid, for two mixers, blocking and not."""
    yield from nonblocking_tuned.grid(MIXERS, MINI_BATCHES, LEARNING_RATES)


claims = papers.claims("nonblocking", "nonblocking_tuned_text")
numbers = stats.at_best(stats.SECONDS)

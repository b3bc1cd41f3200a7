"""Without waiting for one slow worker: DiLoCo's asynchronous forms, and rules on uneven data.

Eight workers train an MLP on scikit-learn's digits, with H local steps between two pushes, or as
many as their speed allows. One worker is `factor` times slower than the others. All arms see the
same delays; DiLoCo waits for all, the others update at every push. Ringleader ASGD and its rivals
push gradients of one mini-batch instead, and their workers hold fewer classes.

    --config=configs/frontier_async.py:factor=4 --sweep --seeds=3

The sweep goes over the rates of the local steps, or of the server where there are none; the outer
steps have DiLoCo's numbers.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import arguments, base
from experiments.parts import part
from experiments.studies import frontier_async as study


def get_config(arg: str | None = None) -> ConfigDict:
    """One arm: DiLoCo. Arguments: factor, by which worker 0 is slower; seconds, the budget."""
    a = arguments.parse(arg, factor=float(study.FACTOR), seconds=600.0)
    return base.arm(
        name="diloco/rate=0.1",  # method/rate
        split=part("dirichlet", alpha=1.0),
        batch_size=16,
        mini_batches=study.LOCAL_STEPS,
        algorithm=part("local_sgd", server=study.OUTER),
        optimizer=part("sgd", learning_rate=0.1),
        wait=part("barrier"),
        delay=part("persistent", law=part("jitter", mean=1.0, sigma=0.1), factors={0: a["factor"]}),
        seconds=a["seconds"],
        evaluate_every=a["seconds"] / 100,
        target_loss=0.1,
    )


def sweep() -> Iterator[tuple[str, dict]]:
    """Every method at every rate of its grid."""
    yield from study.arms()


claims = study.claims
numbers = study.numbers

"""Gossip on uneven data: methods and graphs at equal bytes.

Workers on a graph train an MLP on scikit-learn's digits, where each holds few classes, or a small
GPT on the text of Python's own library, where each holds few packages: a Dirichlet split with alpha
.1. Sending one model over one link takes a second, next to which the gradient takes hardly any
time, so that all arms have sent about as many bytes when time is over: a method that sends two
models, or a graph with many links, makes fewer updates.

    --config=configs/heterogeneous.py:workers=64 --sweep
    --config=configs/heterogeneous.py:task=text --sweep

The sweep goes over learning rates; the claims look at the rate of each method and graph that ends
lowest.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import arguments, base
from experiments.parts import part
from experiments.studies import heterogeneous as study

GPT = part(
    "next_token",
    model=part("gpt", layers=2, width=32, heads=2),
    vocabulary=256,
    length=32,
    evaluated=256,
)
TASKS = {"digits": (part("digits", model="mlp"), 16), "text": (GPT, 4)}  # samples of a mini-batch


def get_config(arg: str | None = None) -> ConfigDict:
    """One arm: gradient tracking on a ring. Arguments: task, a key of TASKS; workers, a multiple of
    4; alpha of the Dirichlet split; models, how many a worker sends."""
    a = arguments.parse(arg, task="digits", workers=16, alpha=0.1, models=400)
    if a["task"] not in TASKS:
        raise ValueError(f"unknown task {a['task']!r}; known tasks: {', '.join(TASKS)}")
    task, batch_size = TASKS[a["task"]]
    return base.arm(
        name="gradient_tracking/ring",  # method/graph/rate
        task=task,
        split=part("dirichlet", alpha=a["alpha"]),
        workers=a["workers"],
        batch_size=batch_size,
        algorithm=part("gradient_tracking"),
        graph=part("ring"),
        optimizer=part("sgd", learning_rate=0.2),
        wait=part("neighbour_barrier"),
        delay=part("deterministic", value=0.01),
        communication=part("link", seconds=1.0),
        seconds=float(a["models"]),
        evaluate_every=a["models"] / 40,
    )


def sweep(config: ConfigDict) -> Iterator[tuple[str, dict]]:
    """Every method on every graph that it is asked about, at every rate of the task's grid."""
    yield from study.arms(config)


claims = study.claims
numbers = study.numbers
figures = study.figures

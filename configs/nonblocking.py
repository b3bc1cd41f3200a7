"""Non-blocking against blocking SGD over four mixers (He & Dube, arXiv 2211.00889).

Workers train an MLP on scikit-learn's digits. All arms see the same delays, the same initial
parameters and the same order of samples; a round's communication costs half a nominal round. One
worker is always four times slower unless `delay` names another kind of straggler:

    --config=configs/nonblocking.py:workers=16,delay=pause,communication=0.25

VARIANTS are further experiments; most take these arguments, too:

    --config=configs/nonblocking.py:tuned,delay=pause --sweep
    --config=configs/nonblocking.py:weightings,alpha=1,slow=2 --sweep --seeds=3 --together
    --config=configs/nonblocking.py:traces,communication=0.25 --sweep --seeds=5 --together
"""

from collections.abc import Iterable

from configs import arguments, base
from experiments import papers
from experiments.registry import part
from stragglers.rule import DRAWS

# Public jobs with slow workers, and one with hardly any; the delay of a round of 128 samples.
JOBS = ("alibaba_job_4", "bytedance_ar", "alibaba_job_1")
NOMINAL = 0.2  # seconds of a round of 128 samples per worker at nominal speed


def delays(each: float, trace: str = "trace.csv") -> dict[str, tuple[base.ConfigDict, str]]:
    """Return the kinds of stragglers: name -> (delay of a mini-batch, its draw).

    each: nominal seconds of a mini-batch. The draw, "mini_batch" or "round", is the work for which
    a delay holds. trace: path of the CSV file of the kind "trace".
    """
    jitter = part("jitter", mean=each, sigma=0.1)
    return {
        "equal": (part("deterministic", value=each), "mini_batch"),
        "jitter": (jitter, "mini_batch"),
        "slow2": (part("persistent", law=jitter, factors={0: 2.0}), "mini_batch"),
        "slow4": (part("persistent", law=jitter, factors={0: 4.0}), "mini_batch"),
        "shifted_exponential": (part("shifted_exponential", shift=each, scale=each), "round"),
        "pause": (part("bernoulli_slowdown", value=each, factor=5, probability=0.1), "round"),
        "pareto": (part("pareto", minimum=each, shape=3), "round"),
        # Slow a tenth of the time, in spells of ten nominal rounds.
        "markov": (part("markov", law=jitter, factor=5, mean_normal=18, mean_slow=2), "mini_batch"),
        "trace": (part("trace", path=trace, duration="batch_time_norm", mean=each), "mini_batch"),
        **{job: (part(job, mean=each), "round") for job in JOBS},
    }


def get_config(arg: str | None = None) -> base.ConfigDict:
    """Return one arm: Ring All-Reduce, non-blocking.

    Arguments: workers (8 or 16 for the hypercube); delay, a kind of `delays`; communication, in
    nominal rounds; mini_batches per round; batch, the samples of a mini-batch, whose time is
    proportional to them; trace, the CSV file of delay=trace (columns worker, time,
    batch_time_norm).
    """
    a = arguments.parse(
        arg, workers=8, delay="slow4", communication=0.5, mini_batches=8, batch=16,
        trace="trace.csv",
    )  # fmt: skip
    each = NOMINAL * a["batch"] / 128
    delay, draw = arguments.chosen(a, "delay", delays(each, a["trace"]))

    return base.arm(
        name="all_reduce/nonblocking",
        baseline="all_reduce/blocking",
        workers=a["workers"],
        batch_size=a["batch"],
        mini_batches=a["mini_batches"],
        algorithm=part("all_reduce", collective="ring"),
        graph=part("hypercube"),  # of D-PSGD and MATCHA
        # Among 0.05, 0.1, ... 1.6 the best rate of every arm with delay=slow4.
        optimizer=part("momentum", decay=0.9, learning_rate=0.4),
        wait=part("first_finisher"),
        delay=delay,
        draw=draw,
        communication=a["communication"] * NOMINAL,
        evaluate_every=0.3,
        target_loss=0.36788,  # log(train loss) = -1
    )


MIXERS = {
    "all_reduce": (part("all_reduce", collective="ring"), part("barrier")),
    # As published: the exchange goes on beside the gradient.
    "dpsgd": (part("dpsgd", order="combine_while_adapting"), part("neighbour_barrier")),
    "matcha": (part("matcha", budget=0.5), part("neighbour_barrier")),
}
SERIAL = {  # the same with the exchange after the gradient, as in MATCHA
    "dpsgd_serial": (part("dpsgd", order="adapt_then_combine"), part("neighbour_barrier"))
}


def sweep() -> base.Arms:
    """Yield four mixers, each blocking, non-blocking, with small batches, and with a deadline."""
    for mixer, (algorithm, wait_for_all) in (MIXERS | SERIAL).items():
        common = {"algorithm": algorithm, "baseline": f"{mixer}/blocking"}
        yield f"{mixer}/blocking", common | {"wait": wait_for_all}
        yield f"{mixer}/nonblocking", common | {"wait": part("first_finisher")}
        yield f"{mixer}/small_batch", common | {"wait": wait_for_all, "mini_batches": 1}
        # One nominal round of eight mini-batches of 16 samples.
        yield f"{mixer}/deadline", common | {"wait": part("deadline", seconds=NOMINAL)}


claims = papers.Judged("nonblocking", "nonblocking_slow4")


# --- each side at its best round length and learning rate ---

BATCH = 4  # samples in a mini-batch
MINI_BATCHES = (1, 2, 4, 8, 16)
LEARNING_RATES = (0.1, 0.14, 0.2, 0.28, 0.4, 0.57, 0.8)  # factors of sqrt(2) around the best


def _tuned(arg: str | None = None) -> base.ConfigDict:
    c = get_config(",".join(filter(None, (f"batch={BATCH}", arg))))
    if DRAWS[c.draw]:
        # A slow spell lasts for the work of a nominal round, however short a method's rounds are.
        c.draw = "mini_batch"
        c.delay = part("spells", law=c.delay, mini_batches=128 // c.batch_size)
    c.evaluate_every = 0.1  # seconds on the run's clock
    c.seconds = 40.0
    c.stop_at_target = True
    return c


def _grid(mixers: Iterable[str], *grids: tuple[Iterable, Iterable]) -> base.Arms:
    """Yield arms of mixers, blocking and not, at all round lengths and learning rates.

    grids: lengths and rates of blocking rounds, then of non-blocking ones; one grid serves both.
    """
    for mixer in mixers:
        algorithm, wait_for_all = MIXERS[mixer]
        waits = {"blocking": wait_for_all, "nonblocking": part("first_finisher")}
        for (variant, wait), grid in zip(waits.items(), (*grids, *grids)[:2], strict=True):
            lengths, rates = grid
            changes = {"algorithm": algorithm, "wait": wait, "baseline": None}
            for length in lengths:
                own = changes | {"mini_batches": length}
                yield from base.at_rates(f"{mixer}/{variant}/M={length}", own, rates)


def _of_four_workers(arg: str | None) -> base.ConfigDict:
    """Return the config of four workers whose mini-batches have one sample."""
    # communication: four mini-batches of one sample, in nominal rounds of 128 samples.
    return _tuned(f"workers=4,batch=1,communication=0.03125,{arg or ''}")


def _tuned_images(arg: str | None = None) -> base.ConfigDict:
    c = _of_four_workers(arg)
    c.task = part(
        "images",
        source=part("gaussians", separation=12.0),
        model=part("resnet18", width=16, products=True),
        evaluated=64,
    )
    c.optimizer.learning_rate = 0.005
    c.target_loss = 1.2
    c.seconds = 0.8
    return c


def _tuned_text(arg: str | None = None) -> base.ConfigDict:
    c = _of_four_workers(arg)
    c.task = part(
        "next_token", model=part("gpt", layers=2, width=64, heads=4, remat=False),
        corpus=part("python"), vocabulary=512, length=32, compute="float32", micro_batch=None,
        evaluated=64,
    )  # fmt: skip
    c.optimizer = part("adamw", learning_rate=0.002, weight_decay=0.1)
    # Below the plateau of 4.2, at which a model knows how frequent words are and no more.
    c.target_loss = 4.0
    c.seconds = 2.5
    return c


def _tuned_variant(about: str, get_config, record: str, sweep, *grid: Iterable) -> base.Variant:
    return base.Variant(
        about,
        get_config,
        sweep=(lambda: sweep(*grid)) if grid else sweep,
        claims=papers.Judged("nonblocking", f"nonblocking_{record}"),
        numbers=papers.at_best("seconds_to_target"),
    )


# --- weights of non-blocking rounds on uneven data ---

# Where every worker has a model of its own, a high rate drives these apart on uneven data.
_LOW, _HIGH = (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4), (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
RATES = {"all_reduce": _HIGH, "dpsgd": _LOW, "matcha": _LOW}
TASK = part("digits", model="logistic", l2=0.01)  # its lowest loss is 0.733
WEIGHTINGS = {  # of every mixer, its own default among them
    "all_reduce": ("proportional", "equal"),
    "dpsgd": ("equal", "confidence", "local_sum"),
    "matcha": ("equal", "confidence", "local_sum"),
}


def _weightings(arg: str | None = None) -> base.ConfigDict:
    """Return one arm: Ring All-Reduce, non-blocking, weighted by finished mini-batches.

    Arguments: alpha of the Dirichlet split; slow, the factor of the slow worker; seconds, the
    budget; workers, communication, mini_batches and batch, as in `get_config`.
    """
    a = arguments.parse(
        arg, alpha=0.1, slow=4.0, seconds=60.0, workers=8, communication=0.5, mini_batches=8,
        batch=16,
    )  # fmt: skip
    common = ("workers", "communication", "mini_batches", "batch")
    c = get_config(",".join(f"{name}={a[name]}" for name in common))
    c.name, c.baseline = "all_reduce/proportional", None
    c.task = TASK
    c.split = part("dirichlet", alpha=a["alpha"])
    c.delay.factors = {0: a["slow"]}
    c.seconds, c.evaluate_every = a["seconds"], a["seconds"] / 60
    c.target_loss = None
    return c


def _weightings_sweep() -> base.Arms:
    """Yield three mixers, each with all of its weightings and blocking, at all rates."""
    for mixer, (algorithm, wait_for_all) in MIXERS.items():
        rounds = {
            weighting: {"algorithm": algorithm, "algorithm.weighting": weighting}
            for weighting in WEIGHTINGS[mixer]
        }
        rounds["blocking"] = {"algorithm": algorithm, "wait": wait_for_all}
        for variant, changes in rounds.items():
            yield from base.at_rates(f"{mixer}/{variant}", changes, RATES[mixer])


GOSSIP = ("dpsgd", "matcha")  # mixers that the paper compares with


def _traces(arg: str | None = None) -> base.ConfigDict:
    """Return one arm with the delays of the first job.

    Arguments: workers, communication, mini_batches and batch, as in `get_config`.
    """
    a = arguments.parse(arg, workers=8, communication=0.5, mini_batches=8, batch=BATCH)
    return _tuned(",".join(f"{name}={value}" for name, value in ({"delay": JOBS[0]} | a).items()))


def _traces_sweep(config: base.ConfigDict) -> base.Arms:
    """Yield gossip, blocking and not, at all round lengths and rates, with the delays of jobs."""
    for job in JOBS:
        delay = {"delay": _tuned(f"delay={job},batch={config.batch_size}").delay}
        for name, changes in _grid(GOSSIP, ((*MINI_BATCHES, 32, 64), LEARNING_RATES[1:-1])):
            yield f"{job}/{name}", changes | delay


VARIANTS = {
    "tuned": _tuned_variant(
        "Best non-blocking against best blocking: each with its own round length and learning "
        "rate.\n\n"
        "Comparing at equal samples per round flatters non-blocking, since a blocking method is "
        "free to take smaller rounds. Here every method has the mini-batches per round and the "
        "learning rate of a grid that bring it to the target first.",
        _tuned, "tuned", _grid, MIXERS, (MINI_BATCHES, LEARNING_RATES),
    ),
    "tuned_images": _tuned_variant(
        "Best non-blocking against best blocking: ResNet-18 on images of CIFAR's shape.\n\n"
        "The images are drawn from a mixture of Gaussians, 32x32 pixels of three colours in ten "
        "classes that hardly overlap; ResNet-18 has a quarter of its usual channels.",
        _tuned_images, "tuned_images", _grid, GOSSIP[:1],
        ((1, 2), (0.00088, 0.00125, 0.00177, 0.0025)),
        ((2, 4, 8), (0.00125, 0.00177, 0.0025, 0.0035, 0.005)),
    ),
    "tuned_text": _tuned_variant(
        "Best non-blocking against best blocking: a small GPT on the text of Python's own "
        "library.\n\n"
        "The GPT of 140,000 parameters of `configs/local_training.py`, with AdamW as there, on "
        "shorter sequences.",
        _tuned_text, "tuned_text", _grid, GOSSIP[:1],
        ((1, 2), (0.001, 0.0014, 0.002, 0.0028, 0.004)),
        ((2, 4, 8), (0.0014, 0.002, 0.0028, 0.004, 0.0057)),
    ),
    "traces": _tuned_variant(
        "Best non-blocking against best blocking gossip, with the delays of three public jobs.\n\n"
        "A worker's time for a round of 128 samples varies as the time of a step did in the job, "
        "whatever the length of a method's rounds. In two jobs some workers are slow for long; in "
        "the third hardly any is.",
        _traces, "traces", _traces_sweep,
    ),
    "weightings": base.Variant(
        "Weights of non-blocking rounds on uneven data, where one worker is always slow.\n\n"
        "Eight workers train logistic regression, of whose digits each holds few classes. A worker "
        "that is four times slower finishes two of eight mini-batches in a non-blocking round. "
        "Weights in proportion to finished mini-batches minimise the loss on the samples that were "
        "computed, of which the slow worker's are too few; equal weights minimise the mean of the "
        "workers' losses, as blocking rounds do. The training loss over all data at the end and "
        "the test accuracy are compared.",
        _weightings,
        sweep=_weightings_sweep,
        claims=papers.Judged("nonblocking", "nonblocking_weightings"),
        numbers=papers.at_best("final_train_loss", "test_accuracy"),
    ),
}  # fmt: skip

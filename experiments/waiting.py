"""The waiting rule of an arm and the delays of its mini-batches, built from a config."""

from collections.abc import Callable, Iterable, Iterator

import networkx as nx
import numpy as np
from ml_collections import ConfigDict

from algorithms.base import Algorithm
from experiments import parts
from experiments.kinds import Kind
from stragglers import delays, processes
from stragglers.rule import Cost, Links, Rule, Setting
from stragglers.rules import RULES, showing

DELAYS = delays.LAWS | processes.PROCESSES
DELAY = Kind("delay", DELAYS, (delays.Law, processes.Process))
RULE = Kind("wait", RULES, Rule, ("setting",))
NO_DELAY = "none"  # of workers that take as long as they take
ALIKE = delays.deterministic(1.0)  # of workers whose times do not matter
ANY_SPEED = delays.uniform(0.0, 1.0)  # of devices that take as long as they take
SHORTEST_DELAY = 1e-9  # s
LOOKED_AT = 64  # mini-batches of a worker, for what is usual


def build_delay(part) -> delays.Law | processes.Process:
    """The law or process of delays that a part describes; its `law` may be a part itself."""
    spec = parts.spec(part)
    if spec.get("name") == NO_DELAY:
        raise ValueError(
            "delay 'none': simulated workers take as long as a delay says; set config.delay, as to "
            "deterministic(value=1.0), or config.runtime=mesh for workers that take their own time"
        )
    if "law" in spec:
        spec["law"] = build_delay(spec["law"])
    return DELAY.build(spec)


def own_delay(config: ConfigDict) -> delays.Law | processes.Process | None:
    """The delay of a config, or None where workers take as long as they take."""
    return None if config.delay.name == NO_DELAY else build_delay(config.delay)


def traces(configs: Iterable[ConfigDict]) -> Iterator[str]:
    """A line for every trace that configs replay: what was read of it, and who takes part."""
    distinct = {(parts.text(config.delay), config.workers): config for config in configs}
    for config in distinct.values():
        delay = own_delay(config)
        if getattr(delay, "read", ""):
            spare = ", ".join(delay.names[config.workers :])
            left_out = f"; {spare} take no part among {config.workers} workers" if spare else ""
            yield delay.read + left_out


def rule(
    config: ConfigDict,
    delay: delays.Law | processes.Process,
    communication: Cost,
    graph: nx.Graph | None = None,
    links: Links | None = None,
) -> Rule:
    """The waiting rule of a config under a delay; communication: what an exchange takes."""
    _check_delay(config, processes.as_process(delay))
    setting = _setting(config, delay, communication, graph, links)
    return RULE.build(config.wait, setting=setting)


def _check_delay(config: ConfigDict, process: processes.Process) -> None:
    """Raise ValueError for delays that a clock in float64 seconds cannot tell from none."""
    if process.workers > config.workers:
        raise ValueError(
            f"delay {parts.text(config.delay)!r}: names worker {process.workers - 1}, but there "
            f"are {config.workers} workers, from 0 to {config.workers - 1}; leave it out"
        )
    # Some processes do not know for how many workers they are before they are asked.
    seeded = process.seeded(config.seed)
    seeded.duration(config.workers - 1, 0.0)
    usual = float(np.median(seeded.duration(0, 0.0, np.arange(LOOKED_AT))))
    counts = config.updates * float(np.max(config.mini_batches))
    horizon = min(float(config.seconds), counts * usual)
    if not usual >= max(SHORTEST_DELAY, horizon * np.finfo(np.float64).eps):
        raise ValueError(
            f"delay {parts.text(config.delay)!r}: a mini-batch usually takes {usual:.3g} s, which "
            f"a clock that runs to {horizon:.3g} s cannot tell from nothing; delays are in "
            f"seconds, {SHORTEST_DELAY} or more"
        )


def others(config: ConfigDict, wanted: Callable[[Rule], bool], algorithm: Algorithm) -> list[str]:
    """The rules, as calls, of which `wanted` is true, with the config's numbers where they can."""
    setting = _setting(config, ALIKE, 0.0, algorithm.graph, algorithm.links)
    return showing(wanted, setting, config.wait)


def _setting(config, delay, communication, graph, links) -> Setting:
    return Setting(
        delay,
        config.workers,
        config.mini_batches,
        config.seed,
        graph=graph,
        links=links,
        communication=communication,
        draw=config.draw,
    )

"""The comparison of compression with all-reduce, for a model, a network and a gradient.

The times of codecs and of the gradient are measured on this device, and the network is a cost model
(`comms.cost`). The effect of compression on the loss is left out. An exchange takes
A + B / bandwidth seconds. If nothing overlaps, a method breaks even with all-reduce at

    bandwidth = (B_dense - B) / (codec + A - A_dense)

If an exchange can hide behind a gradient of g seconds, an update takes max(g, dense) seconds, or
codec + max(g, compressed) with compression. Compression then gains nothing while the dense exchange
is hidden, and else at most the visible part of that exchange. On a network with hides=False nothing
overlaps, and an update takes the sum of g and the exchange.

All workers take part in each exchange, over links that are as slow as the slowest link.
"""

import operator
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from algorithms.all_reduce import all_reduce
from comms import cost, messages
from experiments import codec_times, optimizers, prepare, registry, stopwatch
from experiments.advice import durations
from experiments.analysis import Analysis
from experiments.config_files import override
from experiments.stats import Numbers
from experiments.tables import pivot

GIGABITS = (1.0, 10.0, 100.0)


class Line(NamedTuple):
    """The cost of an exchange: latency + traffic / bandwidth, and the time of a codec."""

    method: str
    sent: float  # bytes of a worker in an update
    latency: float  # s at an infinite bandwidth
    traffic: float  # bytes that are divided by the bandwidth
    codec: float  # s to encode and decode

    def seconds(self, bandwidth: float) -> float:
        """Return the seconds of the exchange without the codec; bandwidth in bytes per second."""
        return self.latency + self.traffic / bandwidth


def explain(config: ConfigDict) -> Analysis:
    """Compare every method that compresses with all-reduce; the fastest exchange comes first.

    The methods are the config's own method and all methods of the registry that can run on its task
    with their default parameters. Raises ValueError for a config that cannot run.
    """
    config = prepare.to_the_end(config)
    workers = config.workers
    simulated = durations.as_simulated(config)
    own = prepare.prepare(simulated)  # with its own rule, as not every method can wait for barrier
    simulated = override(simulated, {"wait": "barrier"})
    dense = own._replace(algorithm=all_reduce(optimizers.build(config.optimizer)))
    networks = codec_times.networks(config, own.shapes, GIGABITS)
    latency = max(float(network.alpha.max()) for network in networks.values())
    bandwidths = {name: 1 / float(network.beta.max()) for name, network in networks.items()}
    plain, turns = codec_times.programs(dense, simulated), codec_times.TURNS
    gradient = stopwatch.seconds({"gradient": plain["gradient"]}, turns)["gradient"]
    reference = _line("all_reduce", dense, workers, latency, 0.0)
    specs = [registry.spec(config.algorithm)]
    specs += [{"name": n} for n in prepare.METHOD.factories if n != specs[0]["name"]]
    overlaps = all(network.hides for network in networks.values())
    rows, refused = [], []
    for spec in specs:
        try:
            arm = prepare.prepare(override(simulated, {"algorithm": spec}), settled=True)
        except ValueError:
            refused.append(registry.text(spec))
            continue
        if codec_times.compresses(arm, workers):
            # The method of a single worker has the codec, but exchanges nothing.
            one = override(simulated, {"algorithm": spec, "workers": 1})
            alone = prepare.prepare(one, settled=True)
            steps = {"own": codec_times.programs(alone, simulated)["step"], "plain": plain["step"]}
            taken = stopwatch.seconds(steps, turns)
            codec = max(0.0, taken["own"] - taken["plain"])
            line = _line(registry.text(spec), arm, workers, latency, codec)
            rows.append(_row(line, reference, gradient, bandwidths, overlaps))
    rows.sort(key=lambda row: min(one["seconds"] for one in row["networks"]))
    summary = {
        "model_bytes": cost.payload_bytes(own.shapes), "workers": workers,
        "gradient_seconds": gradient, "overlaps": overlaps, "methods": rows,
        "dense": [{"network": name, "seconds": reference.seconds(bandwidth)}
                  for name, bandwidth in bandwidths.items()],
    }  # fmt: skip
    left_out = [f"not weighed: {', '.join(refused)}"] if refused else []
    return Analysis(summary, [*_tables(summary), *_sentences(summary), *left_out])


def _line(name: str, arm: prepare.Prepared, workers: int, latency: float, codec: float) -> Line:
    method, parts = arm.algorithm, []
    for alpha, beta in ((latency, 0.0), (0.0, 1.0)):
        network = cost.Network(*(np.full((workers, workers), value) for value in (alpha, beta)))
        seconds = messages.exchange_seconds(method, arm.shapes, workers, network)
        parts.append(seconds(method.settled))
    payloads = method.messages(arm.shapes, workers, messages.Row(method.settled))
    sent = sum(messages.collective_bytes(payload, workers) for payload in payloads)
    return Line(name, float(sent), *parts, codec)


def faster_between(line: Line, dense: Line, hidden: float = 0.0) -> tuple[float, float] | None:
    """Return the bandwidths [byte/s] between which a method is faster; None: at none.

    The lower end is 0 for a method that saves traffic, whose upper end is where it breaks even.
    More traffic but less latency pay above the lower end. hidden: seconds of an exchange that cost
    nothing, because a gradient hides them.
    """
    saved = dense.traffic - line.traffic
    paid = line.codec + line.latency - dense.latency
    # At the bandwidth `alone` the dense exchange takes `hidden` seconds plus the codec's.
    shown = hidden + line.codec - dense.latency
    alone = dense.traffic / shown if hidden and shown > 0 else float("inf")
    if saved < 0:
        return (saved / paid, alone) if paid < 0 and saved / paid < alone else None
    if saved == 0 <= paid:
        return None
    if hidden and line.seconds(alone) <= hidden:
        return 0.0, alone
    return 0.0, saved / paid if paid > 0 else float("inf")


def _row(
    line: Line, dense: Line, gradient: float, bandwidths: Mapping[str, float], overlaps: bool
) -> dict[str, Any]:
    networks = []
    for name, bandwidth in bandwidths.items():
        alone, sent = dense.seconds(bandwidth), line.seconds(bandwidth)
        both = max if overlaps else operator.add
        update = both(gradient, alone) / (line.codec + both(gradient, sent))
        networks.append({"network": name, "seconds": line.codec + sent,
                         "gain": alone / (line.codec + sent),
                         "gain_of_overlapped_update": update})  # fmt: skip
    row = {"method": line.method, "bytes": line.sent, "codec_seconds": line.codec}
    for how, hidden in (("", 0.0), ("_overlapped", gradient if overlaps else 0.0)):
        found = faster_between(line, dense, hidden)
        row[f"break_even{how}"] = found[1] if found and not found[0] else None
        row[f"faster_above{how}"] = found if found and found[0] else None
    return row | {"networks": networks}


def _tables(summary: Mapping[str, Any]) -> Iterator[Numbers]:
    """Yield the table of break-even bandwidths, then the gains with a column for each network."""

    def gigabits(row: Mapping[str, Any], how: str = "") -> str:
        below, above = row[f"break_even{how}"], row[f"faster_above{how}"]
        if above:
            least, most = (f"{8e-9 * bandwidth:.3g}" for bandwidth in above)
            return f"above {least}" if most == "inf" else f"{least} to {most}"
        known = {None: "never", float("inf"): "always"}
        return known.get(below) or f"{8e-9 * below:.3g}"

    yield Numbers(
        "breaks even: the bandwidth below which it is faster than all-reduce",
        ("method", "MB sent", "codec\n[ms]", "breaks even\n[Gbit/s]", "overlapped\n[Gbit/s]"),
        [(row["method"], f"{1e-6 * row['bytes']:.3g}", f"{1e3 * row['codec_seconds']:.3g}",
          gigabits(row), gigabits(row, "_overlapped"))
         for row in summary["methods"]],
    )  # fmt: skip
    yield pivot(
        "gain of an exchange | of an update that hides it behind its gradient as far as it can",
        {(row["method"], one["network"]):
         f"{one['gain']:.2f}x | {one['gain_of_overlapped_update']:.2f}x"
         for row in summary["methods"] for one in row["networks"]},
    )  # fmt: skip


def _sentences(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences on the measurements, the assumptions, and the verdict for every network."""
    yield (
        f"{1e-6 * summary['model_bytes']:.3g} MB of parameters; a gradient takes "
        f"{1e3 * summary['gradient_seconds']:.3g} ms on this device, on which codecs were "
        "measured, too"
    )
    yield (
        "assumed: rounds of all workers, over links as slow as the slowest one and without spells; "
        "a push to a server takes its own bytes, and the model back"
    )
    if not summary["methods"]:
        yield "verdict: no method that compresses can run on this config"
        return
    for number, entry in enumerate(summary["dense"]):
        methods = {row["method"]: row["networks"][number] for row in summary["methods"]}
        method = max(methods, key=lambda name: methods[name]["gain"])
        hidden = max(methods, key=lambda name: methods[name]["gain_of_overlapped_update"])
        alone, update = methods[method]["gain"], methods[hidden]["gain_of_overlapped_update"]
        verdict = (f"yes, {method} makes the exchange {alone:.2f} times as fast" if alone > 1
                   else "no, all-reduce is the fastest exchange")  # fmt: skip
        overlapped = (f"{hidden} makes an update {update:.2f} times as fast" if update > 1
                      else "nothing gains")  # fmt: skip
        where = ("where it overlaps with the gradient" if summary["overlaps"]
                 else "with the gradient, beside which nothing travels,")  # fmt: skip
        yield f"verdict at {entry['network']}: {verdict}; {where} {overlapped}"

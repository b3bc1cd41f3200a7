"""Does compressing pay for this model, on this network, with this gradient: a table of methods.

The codec's time and the gradient's are measured on the device at hand, the network is a cost model
(`comms.cost`), and what compressing has cost in loss is looked up in published records. An exchange
takes A + B / bandwidth seconds, so that a method breaks even with all-reduce at

    bandwidth = (B_dense - B) / (codec + A - A_dense)

where nothing overlaps. Where all of an exchange may hide behind a gradient of g seconds, an update
takes max(g, dense) against codec + max(g, compressed): compressing gains nothing as long as the
dense exchange is hidden, and at most what is not.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict
from rich import box
from rich.table import Table

from algorithms.all_reduce import all_reduce
from comms import cost, messages
from experiments import codec_times, deciding, entries, formats, optimizers, parts, prepare, waiting
from experiments.config_files import override
from experiments.publishing import published, quoted
from experiments.reports.table import NONE
from experiments.studies.study import Study

GIGABITS = (1.0, 10.0, 100.0)


class Line(NamedTuple):
    """An exchange: latency + traffic / bandwidth, and what a codec takes."""

    method: str
    sent: float  # bytes of a worker in an update
    latency: float  # s, whatever the bandwidth
    traffic: float  # bytes that count against the bandwidth
    codec: float  # s to encode and decode

    def seconds(self, bandwidth: float) -> float:
        """Of the exchange, the codec aside; bandwidth in bytes per second."""
        return self.latency + self.traffic / bandwidth


def explain(config: ConfigDict) -> Study:
    """Every method that compresses against all-reduce, in the order of what it gains.

    Beside the config's own method, all of the registry that can run on its task with their own
    defaults. Raises ValueError for a config that cannot run.
    """
    simulated = override(config, {"runtime": "simulate", "devices": 1, "wait": "barrier"})
    if config.delay.name == waiting.NO_DELAY:
        simulated = override(simulated, {"delay": parts.part("deterministic", value=1.0)})
    own, _ = deciding.prepared(simulated)
    dense = own._replace(algorithm=all_reduce(optimizers.build(config.optimizer)))
    networks = _networks(config, own.shapes)
    latency = float(np.max(networks[0][1].alpha))
    gradient, plain = codec_times.step_seconds(dense, simulated)
    reference = _line("all_reduce", dense, config.workers, latency, 0.0)
    lines, refused = [], []
    for spec in _methods(config):
        name = parts.text(spec)
        try:
            arm, _ = deciding.prepared(override(simulated, {"algorithm": spec}))
        except ValueError as error:
            refused.append((name, str(error)))
            continue
        if arm.algorithm.own_models or not messages.compresses(
            arm.algorithm, arm.shapes, config.workers
        ):
            continue
        # As a method for one worker, whose exchange is with nobody.
        alone, _ = deciding.prepared(override(simulated, {"algorithm": spec, "workers": 1}))
        codec = max(0.0, codec_times.step_seconds(alone, simulated)[1] - plain)
        lines.append(_line(name, arm, config.workers, latency, codec))
    costs = in_records()
    rows = [_row(line, reference, gradient, networks, costs) for line in lines]
    rows.sort(key=lambda row: min(entry["seconds"] for entry in row["networks"]))
    summary = {
        "model_bytes": cost.payload_bytes(own.shapes),
        "workers": config.workers,
        "gradient_seconds": gradient,
        "dense": [
            {"network": name, "seconds": reference.seconds(_bandwidth(network))}
            for name, network in networks
        ],
        "methods": rows,
    }
    tables = [*_tables(summary), *_sentences(summary), *_left_out(refused)]
    return Study(summary, tables)


def _methods(config: ConfigDict) -> Iterator[Mapping[str, Any]]:
    own = parts.spec(config.algorithm)
    yield own
    for name in prepare.METHOD.factories:
        if name != own["name"]:
            yield {"name": name}


def _networks(config: ConfigDict, shapes: Any) -> list[tuple[str, cost.Network]]:
    """The config's network, or links of GIGABITS."""
    if entries.is_number(config.communication):
        return [(f"{rate:g} Gbit/s", codec_times.link(rate, config.workers)) for rate in GIGABITS]
    network = prepare.network(config, shapes)
    return [(f"{8e-9 * _bandwidth(network):.3g} Gbit/s", network)]


def _bandwidth(network: cost.Network) -> float:
    """Bytes per second of the slowest link."""
    return 1 / float(np.max(network.beta))


def _line(name: str, arm: prepare.Prepared, workers: int, latency: float, codec: float) -> Line:
    method, settled = arm.algorithm, arm.algorithm.settled

    def seconds(alpha: float, beta: float) -> float:
        network = cost.Network(
            np.full((workers, workers), alpha), np.full((workers, workers), beta)
        )
        return messages.exchange_seconds(method, arm.shapes, workers, network)(settled)

    payloads = method.messages(arm.shapes, workers, messages.Row(settled))
    sent = sum(messages.collective_bytes(payload, workers) for payload in payloads)
    return Line(name, float(sent), seconds(latency, 0.0), seconds(0.0, 1.0), codec)


def break_even(line: Line, dense: Line, hidden: float = 0.0) -> float | None:
    """Bytes per second below which the method is faster; None: there are none, inf: at any.

    Who sends as much in fewer messages can be faster at any, too.

    hidden: seconds of an exchange that cost nothing, as the gradient takes longer.
    """
    saved = dense.traffic - line.traffic
    paid = line.codec + line.latency - dense.latency
    if hidden:
        # Below this the dense exchange is all that counts; the compressed one may hide or not.
        alone = dense.traffic / max(hidden + line.codec - dense.latency, 1e-12)
        if line.seconds(alone) <= hidden:
            return alone
    if saved < 0 or saved == 0 <= paid:
        return None
    return saved / paid if paid > 0 else float("inf")


def _row(
    line: Line, dense: Line, gradient: float, networks: Sequence, costs: Mapping[str, tuple]
) -> dict[str, Any]:
    verdicts = []
    for name, network in networks:
        bandwidth = _bandwidth(network)
        alone, sent = dense.seconds(bandwidth), line.seconds(bandwidth)
        overlapped = max(gradient, alone) / (line.codec + max(gradient, sent))
        verdicts.append(
            {
                "network": name,
                "seconds": line.codec + sent,
                "gain": alone / (line.codec + sent),
                "gain_of_update": (gradient + alone) / (gradient + line.codec + sent),
                "gain_of_overlapped_update": overlapped,
            }
        )
    return {
        "method": line.method,
        "bytes": line.sent,
        "codec_seconds": line.codec,
        "break_even": break_even(line, dense),
        "break_even_overlapped": break_even(line, dense, gradient),
        "networks": verdicts,
        "loss": costs.get(line.method.partition("(")[0]),
    }


def in_records() -> dict[str, tuple[float, str]]:
    """Method -> the largest loss over that of its baseline in the published records, and which."""
    found: dict[str, tuple[float, str]] = {}
    for path in sorted(published.FOLDER.glob("*.json")):
        record = formats.read(path, formats.QUOTED)
        arms = quoted.arms(record) if "arms" in record else {}
        for name, arm in arms.items():
            base = arms.get(arm.get("baseline"))
            known = base is not None and base is not arm and base.get("train_loss")
            if known and arm.get("train_loss"):
                ratio = (arm["train_loss"] / base["train_loss"], path.stem)
                method = name.partition("/")[0]
                found[method] = max(found.get(method, (0.0, "")), ratio)
    return found


def _tables(summary: Mapping[str, Any]) -> Iterator[Table]:
    """What does not depend on the network, then a table for each network."""
    shown = _empty("breaks even: the bandwidth below which it is faster than all-reduce")
    headings = ("MB sent", "codec\n[ms]", "breaks even\n[Gbit/s]", "overlapped\n[Gbit/s]", "loss")
    for heading in headings:
        shown.add_column(heading, justify="right")
    for row in summary["methods"]:
        loss = NONE if row["loss"] is None else f"{row['loss'][0]:.3f}x ({row['loss'][1]})"
        shown.add_row(
            row["method"],
            f"{1e-6 * row['bytes']:.3g}",
            f"{1e3 * row['codec_seconds']:.3g}",
            _gigabits(row["break_even"]),
            _gigabits(row["break_even_overlapped"]),
            loss,
        )
    yield shown
    for number, entry in enumerate(summary["dense"]):
        name = entry["network"]
        shown = _empty(
            f"on {name}; overlapped: where an exchange hides behind the gradient as far as it can"
        )
        headings = ("codec and\nexchange [ms]", "exchange", "update", "overlapped\nupdate")
        for heading in headings:
            shown.add_column(heading, justify="right")
        shown.add_row("all_reduce", f"{1e3 * entry['seconds']:.3g}", *["1.00x"] * 3)
        for row in summary["methods"]:
            one = row["networks"][number]
            gains = (one["gain"], one["gain_of_update"], one["gain_of_overlapped_update"])
            cells = [f"{gain:.2f}x" for gain in gains]
            shown.add_row(row["method"], f"{1e3 * one['seconds']:.3g}", *cells)
        yield shown


def _empty(caption: str) -> Table:
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=caption)
    shown.add_column("method", overflow="fold")
    return shown


def _gigabits(bandwidth: float | None) -> str:
    if bandwidth is None:
        return "never"
    return "always" if np.isinf(bandwidth) else f"{8e-9 * bandwidth:.3g}"


def _sentences(summary: Mapping[str, Any]) -> Iterator[str]:
    """The verdict for every network."""
    gradient = 1e3 * summary["gradient_seconds"]
    yield (
        f"{1e-6 * summary['model_bytes']:.3g} MB of parameters; a gradient takes {gradient:.3g} "
        "ms on this device, on which codecs were measured, too"
    )
    for number, entry in enumerate(summary["dense"]):
        rows = summary["methods"]
        if not rows:
            yield "verdict: no method that compresses can run on this config"
            return
        best = max(rows, key=lambda row: row["networks"][number]["gain"])
        hidden = max(rows, key=lambda row: row["networks"][number]["gain_of_overlapped_update"])
        alone = best["networks"][number]["gain"]
        update = hidden["networks"][number]["gain_of_overlapped_update"]
        verdict = (
            f"yes, {best['method']} makes the exchange {alone:.2f} times as fast"
            if alone > 1
            else "no, all-reduce is the fastest exchange"
        )
        overlapped = (
            f"where it overlaps with the gradient {hidden['method']} makes an update "
            f"{update:.2f} times as fast"
            if update > 1
            else "where it overlaps with the gradient nothing gains"
        )
        yield f"verdict at {entry['network']}: {verdict}; {overlapped}"


def _left_out(refused: Sequence[tuple[str, str]]) -> Iterator[str]:
    if refused:
        yield f"not weighed: {', '.join(name for name, _ in refused)}"

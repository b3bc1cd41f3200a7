"""Messages of a method in an update, which determine its bytes and its seconds.

A method lists its messages; those that travel together are a `Payload`. Reduced and gathered bytes
go round a ring; exchanged bytes go over links that a schedule switches on and off. Scalars beside
the data, such as the sum of weights, are not counted. A payload also says when it leaves and when
it is needed, so that a clock knows which of its seconds are hidden behind the gradient.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from comms import cost


class Row(NamedTuple):
    """Communication in an update of a schedule."""

    update: int  # index of the update, at most the method's `settled`
    active: np.ndarray | None = None  # [M] bool, matchings in use; None: all
    pushed: bool = False  # workers alone push to a server, as in arXiv 1803.01113


class Payload(NamedTuple):
    """Messages of one worker that travel together, in bytes each.

    A later payload of the same update starts when the earlier ones have arrived.
    """

    reduced: tuple[int, ...] = ()  # all-reduced
    gathered: tuple[int, ...] = ()  # sent to every other worker
    exchanged: int = 0  # sent over every link of `matchings`
    matchings: np.ndarray | None = None  # [m, n] sender that each worker hears, or itself
    met: int = 0  # sent both ways between the two of every pair in the schedule
    itemsize: int | tuple[int, ...] = 4  # bytes of an element, of all `reduced` or of each; a
    # chunk of a ring holds whole elements
    beside_gradient: bool = False  # known before the gradients: leaves when the round begins
    share: float = 1.0  # of the last mini-batch, after which other payloads leave, in (0, 1]
    late: int = 0  # updates that are made before workers wait for it
    others: bool = False  # sent without the last worker, and without waiting for it
    encoded: bool = False  # needs time for encoding and decoding
    answer: int | None = None  # bytes of a server's answer to a push; None: the whole model's

    @property
    def itemsizes(self) -> tuple[int, ...]:
        """Bytes of an element of each of `reduced`."""
        one = self.itemsize
        return one if isinstance(one, tuple) else (one,) * len(self.reduced)

    @property
    def size(self) -> int:
        """Bytes of all messages, once each."""
        return sum(self.reduced) + sum(self.gathered) + self.exchanged + self.met

    @property
    def leaves(self) -> float:
        """Share of the last mini-batch after which the payload leaves; 0 as the round begins."""
        return 0.0 if self.beside_gradient else self.share


class Transfer(NamedTuple):
    """Part of a round's exchange; the parts of a round travel one after the other.

    seconds: duration, scalar or [P]; or, if links are slow at times, a function of the start [s],
        scalar or [P].
    leaves: share of the last mini-batch after which the transfer can leave. 0: as the round begins,
        beside all mini-batches; 1: once the worker is ready.
    late: number of rounds that end before workers wait for the transfer.
    others: True if all workers but worker P - 1 take part, and do not wait for that worker.
    """

    seconds: float | np.ndarray | Callable[[float | np.ndarray], float | np.ndarray]
    leaves: float = 1.0
    late: int = 0
    others: bool = False


Messages = Callable[[Any, int, Row], tuple[Payload, ...]]  # (parameters, workers, row)


class Sender(Protocol):
    """Part of a method, an `algorithms.base.Algorithm`, that this module uses."""

    messages: Messages
    settled: int
    links: Any


class Alternative(NamedTuple):
    """Messages that workers sent in place of planned ones, because of their data."""

    times: float  # number of updates with it, mean over workers
    planned: tuple[Payload, ...]
    instead: tuple[Payload, ...]


class Fallbacks(NamedTuple):
    """Unplanned messages of a run."""

    updates: float  # updates that a worker took part in and that had any, mean over workers
    alternatives: tuple[Alternative, ...]


def together(payloads: Iterable[Payload]) -> Payload:
    """Join payloads: what they reduce, gather, and exchange over the same matchings."""
    payloads = list(payloads)
    items = tuple(item for payload in payloads for item in payload.itemsizes)
    return Payload(
        tuple(size for payload in payloads for size in payload.reduced),
        tuple(size for payload in payloads for size in payload.gathered),
        sum(payload.exchanged for payload in payloads),
        next((p.matchings for p in payloads if p.matchings is not None), None),
        itemsize=items if len(set(items)) > 1 else next(iter(items), 4),
        encoded=any(payload.encoded for payload in payloads),
    )


def in_step(sequences: Iterable[tuple[Payload, ...]]) -> tuple[Payload, ...]:
    """Join sequences of payloads: the first ones travel together, then the second ones, ..."""
    steps = itertools.zip_longest(*sequences, fillvalue=Payload())
    return tuple(map(together, steps))


def over_links(size: int, partners: np.ndarray, row: Row, **said) -> Payload:
    """Return a payload of `size` bytes over every active matching; partners: [M, n]."""
    used = partners if row.active is None else partners[row.active]
    return Payload(exchanged=size, matchings=used, **said)


def compresses(method: Sender, params, workers: int) -> bool:
    """Return True if the method encodes its messages, once they no longer change."""
    return any(p.encoded for p in method.messages(params, workers, Row(method.settled)))


def collective_bytes(payload: Payload, workers: int) -> float:
    """Return the bytes that a worker sends on average if all workers take part.

    2 (n - 1) / n of reduced bytes, n - 1 times gathered bytes, and exchanged bytes once per link.
    """
    reduced = sum(
        cost.ring_all_reduce_bytes(size, workers, itemsize)
        for size, itemsize in zip(payload.reduced, payload.itemsizes, strict=True)
    )
    links = 0.0
    if payload.exchanged:
        everyone = np.arange(payload.matchings.shape[1])
        links = payload.exchanged * int((payload.matchings != everyone).sum()) / len(everyone)
    return reduced + (workers - 1) * sum(payload.gathered) + links


def pushes(schedule) -> bool:
    """Return True if the workers of a schedule push to a server, see `Row`."""
    return schedule.population is not None and schedule.partner is None


def sent_bytes(method: Sender, params, schedule) -> np.ndarray:
    """Return the bytes [T] that a worker sends in every update of a schedule, mean over workers.

    Pushes that a server ignores are sent, too. params: arrays or their shapes.
    """
    workers = schedule.workers.shape[1]
    pushed = pushes(schedule)
    stages = np.minimum(schedule.offset + np.arange(schedule.updates), method.settled)
    columns = stages[:, None]
    if schedule.matchings is not None:
        columns = np.column_stack([stages, schedule.matchings])
    _, examples, which = np.unique(columns, axis=0, return_index=True, return_inverse=True)
    found = []  # bytes of every distinct row
    for t in examples:
        active = None if schedule.matchings is None else schedule.matchings[t]
        payloads = method.messages(params, workers, Row(int(stages[t]), active, pushed))
        if pushed:
            found.append(sum(payload.size for payload in payloads))
        elif schedule.population is not None:
            found.append(sum(payload.met for payload in payloads))
        else:
            found.append(sum(collective_bytes(payload, workers) for payload in payloads))
    sent = np.array(found, float)[which.ravel()]
    if schedule.population is None:
        return sent
    if pushed:
        taken = (schedule.batches > 0).sum(axis=1)
        count = taken if schedule.ignored is None else taken + schedule.ignored
        return sent * count / schedule.population
    met = (schedule.partner != np.arange(workers)).sum(axis=1)
    return sent * met / schedule.population


def fallback_bytes(found: Fallbacks, workers: int, pushed: bool = False) -> float:
    """Return the bytes of a worker beyond the plan, mean over workers; `pushed`: see `Row`."""

    def sent(payloads: tuple[Payload, ...]) -> float:
        if pushed:
            return sum(payload.size for payload in payloads)
        return sum(collective_bytes(payload, workers) for payload in payloads)

    return float(sum(a.times * (sent(a.instead) - sent(a.planned)) for a in found.alternatives))


def fallback_seconds(found: Fallbacks, workers: int, network: cost.Network) -> float:
    """Return the seconds of unplanned messages beyond the plan, each message on its own."""

    def took(payloads: tuple[Payload, ...]) -> float:
        return sum(seconds(payload, workers, network) for payload in payloads)

    return float(sum(a.times * (took(a.instead) - took(a.planned)) for a in found.alternatives))


def seconds(
    payload: Payload, workers: int, network: cost.Network, slowness: float | np.ndarray = 1.0
) -> float:
    """Return the seconds of a payload: rings for reduced and gathered bytes, and its links.

    slowness: factor of the ring's links, scalar or [n]. A ring that gathers takes half the steps of
    one that reduces all gathered bytes together. Matchings follow one another (arXiv 1905.09435),
    and a matching takes as long as its slowest pair.
    """
    total = 0.0
    if sum(payload.reduced):
        total += cost.ring_seconds(workers, sum(payload.reduced), network, slowness)
    if sum(payload.gathered):
        size = workers * sum(payload.gathered)
        total += cost.ring_seconds(workers, size, network, slowness) / 2
    if payload.exchanged:
        total += sum(cost.matching_seconds(payload.matchings, payload.exchanged, network).tolist())
    if payload.met and workers > 1:
        one, other = np.triu_indices(workers, 1)
        total += float(np.max(network.seconds(payload.met, one, other)))
    return total


def extra_seconds(count: float, size: float, workers: int, network: cost.Network) -> float:
    """Return the seconds of messages that pairs have repeated: `size` bytes in `count` messages."""
    if not count:
        return 0.0
    return count * seconds(Payload(met=size / count), workers, network)


def transfers(payloads: Sequence[Payload], each: Sequence[float]) -> tuple[Transfer, ...]:
    """Return the transfers of an update one after the other; `each`: seconds of each payload.

    A payload that is known when an earlier one leaves joins the earlier one's transfer.
    """
    joined = [Transfer(0.0)] if not payloads else []
    for payload, taken in zip(payloads, each, strict=True):
        alike = joined and (payload.late, payload.others) == (joined[-1].late, joined[-1].others)
        if alike and payload.leaves <= joined[-1].leaves:
            joined[-1] = joined[-1]._replace(seconds=joined[-1].seconds + taken)
        else:
            leaves = max(payload.leaves, joined[-1].leaves if joined else 0.0)
            joined.append(Transfer(taken, leaves, payload.late, payload.others))
    return tuple(joined)


def exchange_transfers(
    method: Sender, params, workers: int, network: cost.Network, took: Callable | None = None
) -> Callable[[int], tuple[Transfer, ...]]:
    """Return a function: round -> transfers of its exchange, for rules in rounds.

    took: payload -> its seconds, or another number to be summed; None: seconds on the network.
    """
    took = took or (lambda payload: seconds(payload, workers, network))

    @functools.lru_cache(maxsize=4096)
    def of_row(update: int, used: bytes | None) -> tuple[Transfer, ...]:
        active = None if used is None else np.frombuffer(used, bool)
        payloads = method.messages(params, workers, Row(update, active))
        if not network.hides:
            payloads = [p._replace(beside_gradient=False, share=1.0, late=0) for p in payloads]
        return transfers(payloads, list(map(took, payloads)))

    def of_round(round_index: int) -> tuple[Transfer, ...]:
        links = method.links
        used = None if links is None else links.active(round_index, 1)[0].tobytes()
        return of_row(min(round_index, method.settled), used)

    return of_round


def push_seconds(
    method: Sender, params, workers: int, network: cost.Network
) -> Callable[[int], np.ndarray]:
    """Return a function: update -> seconds [workers] of a push to a server and of its answer.

    Every worker has a link of its own to the server, which serves any number of them at once. An
    update is made when the k-th contribution is computed, and does not wait for pushes; every
    worker waits for its own push before it begins another one. Answers that replace the model go to
    all workers after every update; a worker waits for the last one only.
    """
    everyone = np.arange(workers)
    model = cost.payload_bytes(params)

    @functools.cache
    def of_stage(stage: int) -> np.ndarray:
        payloads = method.messages(params, workers, Row(stage, pushed=True))
        pushed = sum(payload.size for payload in payloads)
        answers = [payload.answer for payload in payloads if payload.answer is not None]
        back = network.seconds(sum(answers) if answers else model, everyone, everyone)
        return back + network.seconds(pushed, everyone, everyone)

    return lambda update: of_stage(min(update, method.settled))


def exchange_seconds(
    method: Sender, params, workers: int, network: cost.Network
) -> Callable[[int], float]:
    """Return a function: round -> seconds of its exchange; arguments as in `exchange_transfers`."""
    of_round = exchange_transfers(method, params, workers, network)
    return lambda round_index: sum(transfer.seconds for transfer in of_round(round_index))


def lasting(method: Sender, params, workers: int, total: float) -> tuple[Transfer, ...]:
    """Return the exchange of every round if it takes `total` seconds, shared out by bytes.

    Bytes are counted in a settled update over all links.
    """
    payloads = method.messages(params, workers, Row(method.settled))
    sizes = [payload.size for payload in payloads]
    if any(payload.exchanged for payload in payloads):  # as often as there are matchings
        sizes = [collective_bytes(payload, workers) for payload in payloads]
    whole = sum(sizes)
    sizes = [size / whole if whole else 1 / len(payloads) for size in sizes]
    shares = transfers(payloads, sizes)
    if len(shares) == 1:
        return (shares[0]._replace(seconds=total),)
    return tuple(share._replace(seconds=total * share.seconds) for share in shares)

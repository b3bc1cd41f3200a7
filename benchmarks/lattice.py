"""What Swarm's lattice codec costs: rounds and retries of pure gossip, and its time at one node.

    python -m benchmarks.lattice [--coordinates=10000000] [--bits=8] [--output=FILE]

The first table has the time of encoding and decoding beside a memory copy of the same vector, in
turns of one process, and of a whole meeting, of which a node's part is half.
Fresh pages make all of this several times slower, see `benchmarks.codecs`. In the second one eight
nodes average in random pairs, without gradients: rounds until the squared distance of their models
is a millionth of that at the start, and the share of the bytes that were sent again because they
could not be read.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from rich.console import Console
from rich.table import Table

from algorithms.base import AXIS
from algorithms.swarm import ROUNDINGS, Quantised, SwarmState, meet
from benchmarks import output, ratios
from comms import lattice, lattice_ladder
from experiments import stopwatch

_COORDINATES = flags.DEFINE_integer("coordinates", 10_000_000, "Of the vector whose time is taken.")
_BITS = flags.DEFINE_integer("bits", 8, "Of a coordinate in the timed message, from 3 to 16.")
_TURNS = flags.DEFINE_integer("turns", 15, "Timed turns of every call.")

GOAL = 15.0  # copies that encoding and decoding take together
NODES, SIZE, ROUNDS, SMALL = 8, 4096, 300, 1e-6


class Gossip(NamedTuple):
    """What a gossip without gradients came to."""

    distance: np.ndarray  # [rounds] squared distance to the mean, against that at the start
    extra_bytes: np.ndarray  # [rounds] sent again until then, in the mean over nodes
    state: SwarmState  # of the nodes in the end

    @property
    def rounds(self) -> int | None:
        """Return the rounds until the distance was a millionth, or None if it never was."""
        arrived = np.flatnonzero(self.distance < SMALL)
        return int(arrived[0]) + 1 if arrived.size else None


def pure_gossip(quantised: Quantised, rounds: int = ROUNDS, seed: int = 0) -> Gossip:
    """Let eight random models of 4,096 coordinates meet in pairs, drawn anew in every round."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(NODES, SIZE)).astype(np.float32)
    order = np.array([rng.permutation(NODES) for _ in range(rounds)])
    partners = np.empty_like(order)
    np.put_along_axis(
        partners, order, order.reshape(rounds, -1, 2)[:, :, ::-1].reshape(rounds, -1), 1
    )
    transform = meet(quantised)

    def one(state, partner):
        return transform.update(state.comm, state, state.comm, batches=0, partner=partner)[1]

    def step(state, partner):
        state = jax.vmap(one, axis_name=AXIS)(state, partner)
        return state, (_spread(state.comm), state.codec.extra_bytes.mean())

    run = jax.jit(lambda state: jax.lax.scan(step, state, partners))
    state, (distance, extra) = run(jax.vmap(transform.init)(x))
    return Gossip(np.asarray(distance) / _spread(x), np.asarray(extra), state)


def _spread(models):
    return ((models - models.mean(0, keepdims=True)) ** 2).sum()


def counted(rounding: str, bits: int) -> dict:
    """A point: rounds of gossip until the models are near, and the bytes that were sent again.

    The bytes are shares of what messages take that can be read: until then, and in ROUNDS rounds.
    """
    found = pure_gossip(Quantised(bits, rounding))
    once = lattice.payload_bytes(SIZE, bits) + lattice_ladder.flag_bytes(lattice.buckets(SIZE))
    arrived = found.rounds or ROUNDS
    return {
        "call": f"gossip {rounding}", "size": SIZE, "bits": bits, "rounds": found.rounds,
        "sent_again": float(found.extra_bytes[arrived - 1] / (once * arrived)),
        "sent_again_in_all": float(found.extra_bytes[-1] / (once * ROUNDS)),
    }  # fmt: skip


def _gossip_table(found: list[dict]) -> Table:
    table = Table(title=f"{NODES} nodes, {SIZE:,} coordinates, until the distance is {SMALL:g}")
    for column in ("", "bits", "rounds", "sent again", f"in {ROUNDS} rounds"):
        table.add_column(column, justify="right")
    for point in found:
        shares = (f"{point[name]:.1%}" for name in ("sent_again", "sent_again_in_all"))
        table.add_row(point["call"], str(point["bits"]), str(point["rounds"]), *shares)
    return table


def _calls(size: int, bits: int) -> dict[str, Callable]:
    """Calls to time; all vectors lie in buckets but the first one."""
    rng = np.random.default_rng(0)
    vector = jnp.asarray(rng.normal(size=size), jnp.float32)
    rows = jax.block_until_ready(jax.jit(lattice.in_buckets)(vector))
    near = rows + jax.random.uniform(jax.random.key(0), rows.shape, minval=-0.1, maxval=0.1)
    side = lattice.side_for(jnp.full(len(rows), 0.2), bits)
    encode = jax.jit(lambda x: lattice.encode(x, side, bits))
    message, _ = encode(rows)
    transform = meet(Quantised(bits))

    def meeting(state, partner):
        return transform.update(state.comm, state, state.comm, batches=0, partner=partner)[1]

    meetings = jax.jit(jax.vmap(meeting, axis_name=AXIS))
    comm = jnp.stack([vector, vector + 0.01])
    state = jax.vmap(transform.init)(comm)
    return {
        "copy": functools.partial(jax.jit(jnp.copy), vector),
        "multiply": functools.partial(jax.jit(lambda x: 1.5 * x), vector),
        "encode": functools.partial(encode, rows),
        "decode": functools.partial(
            jax.jit(lambda m, x: lattice.decode(m, x, bits)), message, near
        ),
        "meeting of two": functools.partial(meetings, state, jnp.array([1, 0])),
    }


def measured(size: int, bits: int, turns: int) -> list[dict]:
    """Points: seconds of every call, and of encoding and decoding together, and over a copy."""
    times = {name: np.array(each) for name, each in _times(size, bits, turns).items()}
    times["encode + decode"] = times["encode"] + times["decode"]
    found = []
    for name, of_turns in times.items():
        point = {"call": name, "size": size, "bits": bits}
        point["seconds"] = stopwatch.faster_half(of_turns)
        found.append(point | ratios.over("copy", of_turns, times["copy"]))
    return found


def _times(size: int, bits: int, turns: int) -> dict[str, list[float]]:
    return stopwatch.taken(_calls(size, bits), turns)


def _times_table(found: list[dict], turns: int) -> Table:
    size, bits = found[0]["size"], found[0]["bits"]
    table = Table(title=f"{size:,} float32 in {bits} bits, {jax.default_backend()}, {turns} turns")
    for column in ("", "ms", "x copy", "goal"):
        table.add_column(column, justify="right")
    for point in found:
        over_copy = {name: value for name, value in point.items() if name.startswith("over_copy")}
        table.add_row(
            point["call"],
            f"{1e3 * point['seconds']:.1f}",
            ratios.as_text(over_copy),
            f"<= {GOAL:g}" if point["call"] == "encode + decode" else "",
        )
    return table


def main(_) -> None:
    console = Console()
    found = measured(_COORDINATES.value, _BITS.value, _TURNS.value)
    console.print(_times_table(found, _TURNS.value))
    gossip = [
        counted(rounding, bits)
        for rounding, chosen in ROUNDINGS.items()
        for bits in range(chosen.least_bits, lattice.BITS[1] + 1)
    ]
    console.print(_gossip_table(gossip))
    output.put("lattice", ("call", "size", "bits"), found + gossip)


if __name__ == "__main__":
    app.run(main)

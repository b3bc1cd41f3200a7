"""The sum of `comms.quantise.ring_all_reduce` in int8 as one kernel of remote DMA on TPUs.

At every hop a worker decodes a message, adds its own chunk in float32, and encodes the next one.
Chunks are cut into tiles, and a tile into two parts, so that one is computed while the other
travels. A message is a part's codes and a row of scales. A worker has room for two messages of each
part, and signals its sender when it has read one. Interpreted sums equal that ring's bit for bit.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from comms import hashing, quantise
from comms.collectives import AXIS, is_on_one_device

LANES, SUBLANES = 128, 32  # the hardware's shape of an int8 register
PARTS = 2  # of a tile
ROWS = 128  # most blocks of a part, for the memory of a core


def all_reduce(
    x, bucket: int = 1024, axis: str = AXIS, keys=None, interpret=False
) -> tuple[jax.Array, jax.Array]:
    """Return what `ring_all_reduce` by `int8_codec` returns; it also serves chunks below `bucket`.

    interpret: a `pltpu.InterpretParams`, without which devices other than TPUs raise ValueError.
    """
    if not interpret and (jax.default_backend() != "tpu" or is_on_one_device()):
        raise ValueError(
            "dma_ring: needs a TPU for every worker, and these are simulated, or on "
            f"{jax.default_backend()}; take ring(int8), whose sums are the same"
        )
    workers, size = jax.lax.axis_size(axis), x.size
    chunk, codec = quantise.chunk_entries(size, workers), quantise.int8_codec(bucket)
    if workers == 1 or chunk < bucket:
        return quantise.ring_all_reduce(
            x,
            lambda held, key: codec.encode(held[None], key),
            lambda message, entries: codec.decode(message, entries)[0],
            axis,
            keys,
        )
    shape = (workers, *tiles(chunk, bucket))
    flat = jnp.ravel(x).astype(jnp.float32)
    chunks = jnp.pad(flat, (0, workers * chunk - size)).reshape(workers, chunk)
    whole = shape[1] * PARTS * shape[3] * bucket
    chunks = jnp.pad(chunks, ((0, 0), (0, whole - chunk))).reshape(shape)
    seeds = jnp.zeros(workers, jnp.uint32) if keys is None else jax.vmap(jax.random.bits)(keys)
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    out = jax.typeof(chunks)
    found = pl.pallas_call(
        functools.partial(_kernel, workers, axis, keys is not None),
        out_shape=(out, out),
        grid=shape[1:2],
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), anywhere],
        out_specs=(anywhere, anywhere),
        scratch_shapes=[
            pltpu.VMEM(shape[2:], jnp.float32),
            pltpu.VMEM(shape[2:], jnp.int8),
            pltpu.VMEM((PARTS, 1, LANES), jnp.float32),
            pltpu.VMEM((PARTS, 2, *shape[3:]), jnp.int8),
            pltpu.VMEM((PARTS, 2, 1, LANES), jnp.float32),
            pltpu.SemaphoreType.DMA((PARTS, 2)),
            pltpu.SemaphoreType.DMA((PARTS, 2, 2)),
            pltpu.SemaphoreType.REGULAR((PARTS,)),
        ],
        interpret=interpret,
    )(seeds, chunks)
    total, errors = (a.reshape(workers, whole)[:, :chunk].ravel()[:size] for a in found)
    return total.reshape(x.shape), (flat - errors).reshape(x.shape)


def sized(bucket: int) -> Callable[[int], int]:
    """Return a function: chunk entries -> hop bytes; ValueError unless LANES divides bucket > 0."""
    if bucket < 1 or bucket % LANES:
        raise ValueError(
            f"dma_ring: needs buckets of n x {LANES} entries, got {bucket}; 1024 fits"
        )

    def payload_bytes(chunk):
        if chunk < bucket:
            return quantise.int8_codec(bucket).payload_bytes(chunk)
        count, parts, rows, _ = tiles(chunk, bucket)
        return count * parts * (rows * bucket + 4 * LANES)

    return payload_bytes


def tiles(chunk: int, bucket: int) -> tuple[int, int, int, int]:
    """Return the shape (tiles, parts, blocks of a part, bucket) to which a chunk is padded."""
    blocks = -(-chunk // bucket)
    rows = min(ROWS, SUBLANES * -(-blocks // (SUBLANES * PARTS)))
    return -(-blocks // (PARTS * rows)), PARTS, rows, bucket


def _kernel(  # noqa: C901
    workers, axis, draws, seeds, x, total, errors,
    own, codes, scales, heard, heard_scales, sent, arrived, free,
):  # fmt: skip
    """Reduce one tile of all chunks of x, [workers, *tiles].

    own: the parts at work, float32; codes, scales: messages that leave; heard: the last two heard.
    """
    tile, me = pl.program_id(0), jax.lax.axis_index(axis)
    first = tile * 2 * (workers - 1)  # number of the tile's first message
    _, rows, bucket = own.shape
    diagonal = _iota((rows, LANES), 0) == _iota((rows, LANES), 1)

    def near(step):
        return jax.lax.rem(me + workers + step, workers)

    def copies(part, number):
        slot, pairs = jax.lax.rem(number, 2), ((codes, heard), (scales, heard_scales))
        return [
            pltpu.make_async_remote_copy(
                source.at[part], target.at[part, slot], sent.at[part, i],
                arrived.at[part, slot, i], device_id={axis: near(1)},
            )
            for i, (source, target) in enumerate(pairs)
        ]  # fmt: skip

    def send(part, number):
        @pl.when(number >= 2)
        def _():
            pl.semaphore_wait(free.at[part], 1)

        for copy in copies(part, number):
            copy.start()

    def hear(part, number):
        for copy in copies(part, number):
            copy.wait()
        slot = jax.lax.rem(number, 2)
        message = heard[part, slot], heard_scales[part, slot]
        pl.semaphore_signal(free.at[part], 1, device_id={axis: near(-1)})
        return message

    def read(code, scale):
        column = jnp.where(diagonal, scale, 0.0).sum(axis=1, keepdims=True)  # [1, lanes] turned
        return quantise.apart(code.astype(jnp.float32) * column)

    def write(part, hop):
        held = own[part]
        scale = quantise.peak(held, axis=1, keepdims=True) / 127
        drawn = None
        if draws:
            block = (tile * PARTS + part) * rows + _iota((rows, bucket), 0)
            drawn = hashing.fraction(block * bucket + _iota((rows, bucket), 1), seeds[hop])
        codes[part] = quantise.steps(held, scale, 127, drawn).astype(jnp.int8)
        scales[part] = jnp.where(diagonal, scale, 0.0).sum(axis=0, keepdims=True)
        own[part] = held - read(codes[part], scales[part])
        pltpu.sync_copy(own.at[part], errors.at[near(-hop), tile, part])
        send(part, first + hop)

    def add(hop, carry):
        for part in range(PARTS):
            pltpu.sync_copy(x.at[near(-hop), tile, part], own.at[part])
            own[part] = read(*hear(part, first + hop - 1)) + own[part]
            write(part, hop)
        return carry

    def keep(part, chunk):
        own[part] = read(codes[part], scales[part])
        pltpu.sync_copy(own.at[part], total.at[chunk, tile, part])

    def pass_on(hop, carry):
        for part in range(PARTS):
            codes[part], scales[part] = hear(part, first + hop - 1)
            pl.when(hop < 2 * (workers - 1))(functools.partial(send, part, first + hop))
            keep(part, near(workers - hop))
        return carry

    for part in range(PARTS):
        pltpu.sync_copy(x.at[me, tile, part], own.at[part])
        write(part, 0)
    jax.lax.fori_loop(1, workers, add, 0)
    for part in range(PARTS):
        keep(part, near(1))
    jax.lax.fori_loop(workers, 2 * workers - 1, pass_on, 0)

    @pl.when(tile == pl.num_programs(0) - 1)
    def _():
        for part in range(PARTS):  # of the last two messages
            pl.semaphore_wait(free.at[part], 2)


def _iota(shape, dimension: int) -> jax.Array:
    return jax.lax.broadcasted_iota(jnp.int32, shape, dimension)

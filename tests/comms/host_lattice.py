"""The lattice codec again in NumPy, step by step."""

import numpy as np

from comms import lattice


def encode(x, side, bits, u=None, bucket=lattice.BUCKET):
    """Return the message; u: [buckets, n] in [0, 1), or None."""
    count = -(-x.size // bucket)
    n = -(-x.size // count)
    rows = np.pad(x, (0, count * n - x.size)).reshape(count, n)
    side = np.broadcast_to(side, count).astype(np.float32)
    side = np.maximum(side, np.abs(rows).max(1) * np.float32(2.0**-21))
    scaled = rows * (np.float32(1) / side)[:, None]
    low = np.floor(scaled)
    k = np.round(scaled) if u is None else low + (u < scaled - low)
    k = k.astype(np.int64)
    header = np.column_stack(
        [checksum(k).astype("<u4").view("<u1"), side.view(np.uint8).reshape(count, 4)]
    )
    return np.concatenate([header, pack(np.mod(k, 2**bits), bits)], 1)


def widths(bits):
    """Widths of the fields of a colour, lowest first."""
    return [8] * (bits // 8) + [width for width in (4, 2, 1) if bits & width]


def pack(colours, bits):
    """Whole bytes first; then a byte holds the fields of coordinates that lie far apart."""
    count, n = colours.shape
    planes = []
    for width in widths(bits):
        m = -(-n * width // 8)
        field = np.pad(colours % 2**width, ((0, 0), (0, 8 // width * m - n)))
        planes.append(
            (field.reshape(count, -1, m) << (width * np.arange(8 // width))[:, None]).sum(1)
        )
        colours = colours >> width
    return np.concatenate(planes, 1).astype(np.uint8)


def unpack(octets, n, bits):
    colours, begin, shift = 0, 0, 0
    for width in widths(bits):
        m = -(-n * width // 8)
        plane = octets[:, None, begin : begin + m].astype(np.int64)
        field = plane >> (width * np.arange(8 // width))[:, None] & 2**width - 1
        colours = colours + (field.reshape(len(octets), -1)[:, :n] << shift)
        begin, shift = begin + m, shift + width
    return colours


def checksum(k):
    sums = []
    for seed in (0x9E3779B9, 0x3C6EF372):
        x = (np.arange(k.shape[1]) + seed) % 2**32
        x = (x ^ (x >> 16)) * 0x7FEB352D % 2**32
        x = (x ^ (x >> 15)) * 0x846CA68B % 2**32
        sums.append((k * ((x ^ (x >> 16)) | 1)).sum(1) % 2**32)
    return np.stack(sums, 1)


def decode(message, reference, bits):
    """Value without regard to the checksum, which the caller has compared, and k."""
    count = len(message)
    n = -(-reference.size // count)
    side = np.ascontiguousarray(message[:, 8:12]).view(np.float32)[:, 0]
    colours = unpack(message[:, 12:], n, bits)
    rows = np.pad(reference, (0, count * n - reference.size)).reshape(count, n)
    scaled = rows * (np.float32(1) / side)[:, None]
    turns = np.round((scaled - colours.astype(np.float32)) * np.float32(1 / 2**bits))
    k = colours + 2**bits * turns.astype(np.int64)
    return (k.astype(np.float32) * side[:, None]).ravel()[: reference.size], k

"""An event loop in torch, as a side of `benchmarks.peers`, in an environment of its own."""

import heapq
import itertools
import sys

import peers_data as data
import torch


def main(model: str, updates: int) -> None:
    """A turn is a number of updates from the start, each with one gradient of an earlier model."""
    inputs, labels = data.images()
    inputs, labels = torch.from_numpy(inputs), torch.from_numpy(labels).long()
    seconds, rows = data.events(updates)
    rows = torch.from_numpy(rows).long()
    sizes = [data.INPUTS, *([data.HIDDEN] if model == "hidden" else []), data.CLASSES]
    torch.manual_seed(0)
    start = [
        tensor
        for rows_in, columns in itertools.pairwise(sizes)
        for tensor in (torch.randn(rows_in, columns) * rows_in**-0.5, torch.zeros(columns))
    ]

    def gradient(params, taken):
        leaves = [one.detach().requires_grad_() for one in params]
        signal = inputs[taken]
        for n in range(0, len(leaves), 2):
            signal = signal @ leaves[n] + leaves[n + 1]
            signal = torch.relu(signal) if n + 2 < len(leaves) else signal
        return torch.autograd.grad(torch.nn.functional.cross_entropy(signal, labels[taken]), leaves)

    def turn():
        params, read = start, [start] * data.WORKERS
        counters = [0] * data.WORKERS
        flying = [(seconds[i, 0], i) for i in range(data.WORKERS)]
        heapq.heapify(flying)
        for _ in range(updates):
            now, i = heapq.heappop(flying)
            found = gradient(read[i], rows[i, counters[i] % updates])
            params = [one - data.STALE_RATE * g for one, g in zip(params, found, strict=True)]
            read[i], counters[i] = params, counters[i] + 1
            heapq.heappush(flying, (now + seconds[i, counters[i] % updates], i))
        return params

    data.take_turns(turn)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

"""DiLoCo whose workers are slices: a GPT on 2 workers of 4 devices each.

The devices of a worker share every mini-batch over their fast links, and workers exchange once in
many local steps over slow ones (A. Douillard et al., arXiv 2311.08105). Real devices, real time:

    --config=configs/diloco.py:size=100M,steps=5000
    --config=configs/diloco.py:tiny --sweep

All arms train alike: with the whole model on every device, with a part of it on each, and with
workers of one device. On a CPU, which is split into as many devices as an arm needs, only memory
and messages are worth comparing.
"""

from configs import arguments, base, language_model
from experiments.registry import part


def get_config(arg: str | None = None) -> base.ConfigDict:
    """Return one arm: a whole model on every device.

    Arguments: size, corpus, compute, remat as in `language_model`; workers and devices_per_worker;
    steps of a worker, a multiple of local_steps, which lie between two exchanges; batch, sequences
    of a worker's mini-batch; tiny, the smallest size.
    """
    a = arguments.parse(
        arg, size="600k", corpus="python", compute="float32", remat=False, workers=2,
        devices_per_worker=4, steps=1000, local_steps=50, batch=16, tiny=False,
    )  # fmt: skip
    if a["local_steps"] < 1 or a["steps"] % a["local_steps"]:
        raise ValueError(
            f"steps must be a multiple of local_steps={a['local_steps']}, got {a['steps']}; set "
            "one of them"
        )
    inherited = ("size", "corpus", "compute", "remat", "workers", "tiny")
    options = ",".join(f"{name}={a[name]}" for name in inherited)
    c = language_model.get_config(f"{options},runtime=mesh")
    c.name = c.baseline = "diloco/whole"
    c.devices_per_worker = a["devices_per_worker"]
    c.batch_size = a["batch"]
    c.optimizer[1].schedule = part(
        "cosine", samples=a["workers"] * a["batch"] * a["steps"], floor=0.1
    )
    c.algorithm = part("local_sgd", server=language_model.OUTER)
    c.mini_batches = a["local_steps"]
    c.rounds_per_dispatch = 1
    c.updates = a["steps"] // a["local_steps"]
    c.seconds = 24 * 3600.0
    c.evaluate_every = 10.0  # s
    return c


def sweep() -> base.Arms:
    """Yield arms with a whole model per device, a part of it, and one device per worker."""
    yield "diloco/whole", {}
    yield "diloco/divided", {"sharding": "fsdp"}
    yield "diloco/alone", {"devices_per_worker": 1}

"""Non-blocking rounds on a mesh with injected delays: one of four workers is four times slower.

    python examples/nonblocking_mesh.py
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")  # of a CPU
import tempfile

from gossax.configs import nonblocking
from gossax.experiments import train

for wait in ("barrier", "first_finisher"):
    config = nonblocking.get_config("workers=4")
    config.runtime, config.wait = "mesh", wait
    config.algorithm = "all_reduce"
    config.mini_batches = 4  # of a full round
    config.delay = "persistent(law=deterministic(value=0.02), factors={0: 4.0})"  # real seconds
    config.communication = 0.0  # the mesh communicates for real
    config.seconds, config.evaluate_every, config.target_loss = 6.0, 1.0, None
    with tempfile.TemporaryDirectory() as workdir:
        summary = train.run(config, workdir)
    print(
        f"{wait}: {summary['updates']} updates of {summary['samples'] / summary['updates']:.0f} "
        f"samples, workers wait {summary['idle_fraction']:.0%} of the time, training loss "
        f"{summary['train_loss']:.3f}"
    )

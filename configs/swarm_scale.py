"""Communication time from 8 to 256 nodes whose link serves one transfer at a time.

Nothing is trained. SwarmSGD (Nadiradze et al., arXiv 1910.12308) beside AD-PSGD, SGP, D-PSGD and
ring all-reduce: mean and 99 % quantile, per node and update, of the time from the end of the local
steps to the beginning of the next ones.

    --config=configs/swarm_scale.py:delay=slow4
"""

from pathlib import Path

from ml_collections import ConfigDict

from configs import arguments
from experiments import records
from experiments.reports import table
from experiments.studies import serial_link_figures, serial_links

DELAYS = {
    "equal": "jitter(mean=0.2, sigma=0.1)",
    "slow4": "persistent(law=jitter(mean=0.2, sigma=0.1), factors={0: 4.0})",
    "exponential": "exponential(scale=0.2)",
}
MOST_GROWTH = 1.1  # of a mean that counts as none


def get_config(arg: str | None = None) -> ConfigDict:
    """Ten methods. Arguments: delay, a key of DELAYS; rounds, that every node makes."""
    a = arguments.parse(arg, delay="equal", rounds=100)
    if a["delay"] not in DELAYS:
        raise ValueError(f"unknown delay {a['delay']!r}; choose one of {', '.join(DELAYS)}")

    c = ConfigDict()
    c.name = "swarm_scale"
    c.seed = 0  # of the delays and partners
    c.workers = (8, 16, 32, 64, 128, 256)  # powers of two, for the hypercube
    c.rounds = a["rounds"]
    c.delay = DELAYS[a["delay"]]  # seconds of a mini-batch

    c.size = 11_689_512  # coordinates of ResNet-18
    c.alpha = 1e-4  # seconds to start a message
    c.beta = 8e-10  # seconds per byte: 10 Gbit/s

    # steps: mini-batches between two exchanges; bits: of a coordinate on the wire.
    c.methods = (
        ("swarm/H=1", "swarm(steps=1)"),
        ("swarm/H=2", "swarm(steps=2)"),
        ("swarm/H=4", "swarm(steps=4)"),
        ("swarm/H=2/8 bits", "swarm(steps=2, bits=8)"),
        ("ad_psgd", "ad_psgd(steps=1)"),
        ("sgp", "sgp(steps=1)"),
        ("dpsgd/ring", "dpsgd_ring(steps=1)"),
        ("dpsgd/hypercube", "dpsgd_hypercube(steps=1)"),
        ("dpsgd/complete", "dpsgd_complete(steps=1)"),
        ("all_reduce", "all_reduce(steps=1)"),
    )
    return c


def claims(points):
    """What the paper says of an exchange's time, beside the simulated one of all Swarm methods."""
    swarm = {}
    for point in points:
        if point.method.startswith("swarm"):
            swarm.setdefault(point.method, []).append(point)
    if not swarm:
        return
    grown = {
        label: [getattr(row[-1], field) / getattr(row[0], field) for field in ("mean", "quantile")]
        for label, row in swarm.items()
    }
    few, many = (next(iter(swarm.values()))[end].workers for end in (0, -1))
    yield (
        f"an exchange takes as long with {many} nodes as with {few} (arXiv 1910.12308)",
        "\n".join(
            f"{label}: {'yes' if mean < MOST_GROWTH else 'no'}, {mean:.2f}x in the mean, "
            f"{quantile:.2f}x in the 99 % quantile"
            for label, (mean, quantile) in grown.items()
        ),
    )
    yield (
        f"less than 10 % of the time of computing, with {many} nodes",
        "\n".join(
            f"{label}: {'yes' if share < 0.1 else 'no'}, {100 * share:.1f} %"
            for label, share in ((label, row[-1].of_compute) for label, row in swarm.items())
        ),
    )


def analyse(config, workdir, console):
    """Write the numbers and the figure into workdir, print the table and the claims."""
    points = serial_links.simulate(config)
    workdir = Path(workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    records.write_json(workdir / records.CONFIG, config.to_dict())
    told = list(claims(points))
    numbers = [point._asdict() for point in points]
    records.write_json(
        workdir / records.SUMMARY, {"name": config.name, "points": numbers, "claims": told}
    )
    serial_link_figures.draw_points(points, workdir / "figure.png")
    serial_link_figures.print_points(console, points)
    table.print_claims(console, told)
    console.print(f"records: {workdir}   figure: {workdir / 'figure.png'}", highlight=False)

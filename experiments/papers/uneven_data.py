"""Gossip on uneven data: methods and graphs at equal bytes."""

from matplotlib.figure import Figure

from experiments.papers.base import Panel, Records, Sweep, draw
from experiments.stats import END, Claim

TITLE = "Gossip on uneven data"
COMMAND = "--sweep --seeds=3 --together"
SWEEPS = (
    Sweep("heterogeneous", f"--config=configs/heterogeneous.py {COMMAND}", 0.1),
    Sweep("heterogeneous_workers_64", f"--config=configs/heterogeneous.py:workers=64 {COMMAND}",
          0.15),
    Sweep("heterogeneous_workers_256", f"--config=configs/heterogeneous.py:workers=256 {COMMAND}",
          0.6),
    Sweep("heterogeneous_text", f"--config=configs/heterogeneous.py:task=text {COMMAND}", 0.5),
)  # fmt: skip


PAIRS = (  # source, and two arms, the first of which ends below the other
    ("arXiv 2102.04761", "qg_dsgdm/ring", "dpsgd_momentum/ring"),
    ("arXiv 1805.09708", "gradient_tracking/ring", "dpsgd/ring"),
    ("arXiv 2110.13363", "dpsgd/one_peer", "dpsgd/ring"),
    ("arXiv 2305.11420", "dpsgd/base_2", "dpsgd/one_peer"),
)
CLAIMS = tuple(
    Claim(f"{ours} ends below {theirs}", source, "heterogeneous", ours, theirs, END, tuned=True,
          equal=("bytes_per_worker",), within=0.1)
    for source, ours, theirs in PAIRS
)  # fmt: skip
GROUPS = {
    "dpsgd/ring": "D-PSGD, ring", "dpsgd/torus": "D-PSGD, torus",
    "dpsgd/equi": "D-PSGD, EquiDyn", "dpsgd/one_peer": "D-PSGD, one peer",
    "dpsgd/base_2": "D-PSGD, Base-2", "matcha/ring": "MATCHA, ring",
    "gradient_tracking/ring": "gradient tracking, ring",
    "exact_diffusion/ring": "exact diffusion, ring",
    "dpsgd_momentum/ring": "D-PSGD, momentum, ring", "decentlam/ring": "DecentLaM, ring",
    "qg_dsgdm/ring": "QG-DSGDm, ring",
}  # fmt: skip


def figure(records: Records) -> Figure:
    """Draw how low training ends with few and with many workers that have sent as many bytes."""
    sizes = (("16 workers", "heterogeneous"), ("256 workers", "heterogeneous_workers_256"))
    return draw(
        [Panel(title, record, GROUPS, END, "training loss at the end", log=True)
         for title, record in sizes],
        records,
    )  # fmt: skip

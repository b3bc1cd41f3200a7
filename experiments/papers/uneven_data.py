"""Gossip on uneven data: methods and graphs at equal bytes."""

from experiments.papers.base import Panel, drawn, swept
from experiments.stats import BYTES, END, Claim

TITLE = "Gossip on uneven data"
DIGITS, GPT = "heterogeneous", "heterogeneous_text"
LARGE = "heterogeneous_workers_256"
WORDS = {DIGITS: "", LARGE: "256 workers: ", GPT: "a GPT: "}
SWEEPS = (
    swept(DIGITS, "heterogeneous.py", 0.05),
    swept(LARGE, "heterogeneous.py:workers=256", 0.65),
    swept(GPT, "heterogeneous.py:task=text", 0.75),
)
CLAIMS = tuple(
    Claim(f"{WORDS[record]}{ours} ends below {theirs}", source, record, ours, theirs, END,
          tuned=True, equal=(BYTES,), within=0.1)
    for source, ours, theirs, records in (
        ("arXiv 2102.04761", "qg_dsgdm/ring", "dpsgd_momentum/ring", (DIGITS, GPT)),
        ("arXiv 2102.04761", "qg_dsgdm/base_2", "dpsgd_momentum/base_2", (DIGITS, LARGE)),
        ("arXiv 2104.11981", "decentlam/ring", "dpsgd_momentum/ring", (DIGITS, GPT)),
        ("arXiv 1803.07068", "exact_diffusion/ring", "dpsgd/ring", (DIGITS, GPT)),
        ("arXiv 1805.09708", "gradient_tracking/ring", "dpsgd/ring", (DIGITS, LARGE, GPT)),
        ("arXiv 2305.11420", "dpsgd/base_2", "dpsgd/ring", (DIGITS, LARGE, GPT)),
        ("arXiv 2110.13363", "dpsgd/one_peer", "dpsgd/ring", (DIGITS,)),
        ("arXiv 2305.11420", "dpsgd/base_2", "dpsgd/one_peer", (DIGITS,)),
    )
    for record in records
)  # fmt: skip
GROUPS = {
    "dpsgd/ring": "D-PSGD, ring", "dpsgd/torus": "D-PSGD, torus",
    "dpsgd/equi": "D-PSGD, EquiDyn", "dpsgd/one_peer": "D-PSGD, one peer",
    "dpsgd/base_2": "D-PSGD, Base-2", "matcha/ring": "MATCHA, ring",
    "gradient_tracking/ring": "gradient tracking, ring",
    "exact_diffusion/ring": "exact diffusion, ring",
    "dpsgd_momentum/ring": "D-PSGD, momentum, ring", "decentlam/ring": "DecentLaM, ring",
    "qg_dsgdm/ring": "QG-DSGDm, ring", "dpsgd_momentum/base_2": "D-PSGD, momentum, Base-2",
    "qg_dsgdm/base_2": "QG-DSGDm, Base-2",
}  # fmt: skip
figure = drawn(
    Panel("16 workers", DIGITS, GROUPS, END, log=True),
    Panel("256 workers", LARGE, GROUPS, END, log=True),
)

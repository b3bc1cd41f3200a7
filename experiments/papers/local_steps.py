"""Local steps and small messages on a small GPT: DiLoCo and its kin, DeMo, NoLoCo."""

from experiments.papers.base import Panel, Sweep, drawn, swept
from experiments.stats import BYTES, END, Claim

TITLE = "Local steps, small messages"
SWEEPS = (
    swept("local_training", "local_training.py:size=140k,steps=1500", 2.7),
    swept("small_messages", "small_messages.py:size=140k,steps=750", 0.65),
    Sweep("language_model_10M", "--config=configs/language_model.py:size=10M,steps=200,batch=1 "
          "--sweep", 1.7),
)  # fmt: skip
SAMPLES = ("samples",)


def _ends(
    source: str, ours: str, theirs: str, share: float = 0.0, record: str = "local_training"
) -> Claim:
    """Return the claim that a method ends below another, or above it by at most a share."""
    words = f"within {share:.0%} of" if share else "below"
    return Claim(f"{ours} ends {words} {theirs}", source, record, ours, theirs, END, 1 + share,
                 tuned=True, equal=SAMPLES)  # fmt: skip


CLAIMS = (
    _ends("arXiv 2311.08105, abstract", "diloco/H=30", "all_reduce", 0.01),
    _ends("arXiv 2505.23725", "muloco/H=30", "diloco/H=30"),
    _ends("arXiv 2501.18512", "streaming/H=30", "diloco/H=30", 0.01),
    _ends("arXiv 2506.10911", "noloco/H=30", "diloco/H=30", 0.01),
    _ends("arXiv 2508.15706", "sparse_loco/H=30", "diloco/H=30", 0.01),
    Claim("sparse_loco/H=30 sends a hundredth of the bytes of diloco/H=30", "arXiv 2508.15706",
          "local_training", "sparse_loco/H=30", "diloco/H=30", BYTES, 0.01, tuned=True,
          chosen_by=END, equal=SAMPLES),
    _ends("arXiv 2411.19870", "demo/8 of 64", "all_reduce", 0.01, "small_messages"),
    Claim("demo/1 of 256 sends a hundredth of the bytes of all_reduce", "arXiv 2411.19870",
          "small_messages", "demo/1 of 256", "all_reduce", BYTES, 0.01, tuned=True, chosen_by=END,
          equal=SAMPLES),
    Claim("10 million parameters: diloco/H=10 ends within 1% of all_reduce",
          "arXiv 2311.08105, abstract", "language_model_10M", "diloco/H=10", "all_reduce", END,
          1.01, equal=SAMPLES, condition="all have one learning rate"),
)  # fmt: skip
GROUPS = {
    "all_reduce": "all-reduce, AdamW", "local_sgd/H=30": "local SGD, H = 30",
    "diloco/H=30": "DiLoCo, H = 30", "diloco/H=100": "DiLoCo, H = 100",
    "streaming/H=30": "Streaming DiLoCo", "streaming_4_bits/H=30": "the same in 4 bits",
    "sparse_loco/H=30": "SparseLoCo", "noloco/H=30": "NoLoCo",
    "all_reduce_muon": "all-reduce, Muon", "muloco/H=30": "MuLoCo",
}  # fmt: skip
figure = drawn(
    Panel("after the same steps", "local_training", GROUPS, END, log=True),
    Panel("at that setting", "local_training", GROUPS, BYTES, by=END, log=True),
)

"""Non-blocking SGD (He & Dube, arXiv 2211.00889): rounds end when the first worker is done."""

from experiments.papers.base import Panel, Sweep, drawn, swept
from experiments.stats import END, Claim

TITLE = "Non-blocking SGD"
ABSTRACT = "arXiv 2211.00889, abstract"
MIXERS = ("all_reduce", "dpsgd", "matcha")
SWEEPS = (
    Sweep("demo", "--config=configs/demo.py --sweep", 0.02),
    *(
        swept(f"nonblocking_{delay}", f"nonblocking.py:delay={delay}", 0.07)
        for delay in
        ("jitter", "slow2", "slow4", "shifted_exponential", "pause", "pareto", "markov")
    ),
    swept("nonblocking_dirichlet",
          "nonblocking.py:delay=slow4 --config.split='dirichlet(alpha=0.1)'", 0.05),
    swept("nonblocking_tuned", "nonblocking.py:tuned,communication=0.25", 0.4),
    swept("nonblocking_tuned_images", "nonblocking.py:tuned_images", 1.5),
    swept("nonblocking_tuned_text", "nonblocking.py:tuned_text", 0.9),
    swept("nonblocking_weightings", "nonblocking.py:weightings", 0.3, seeds=10),
)  # fmt: skip
CLAIMS = (
    *(
        Claim(f"one worker 4x slower, both sides tuned: less time than blocking {mixer}", ABSTRACT,
              "nonblocking_tuned", f"{mixer}/nonblocking", f"{mixer}/blocking", tuned=True)
        for mixer in MIXERS[:2]
    ),
    Claim("dpsgd, one worker 4x slower: less time to the same loss than blocking rounds", ABSTRACT,
          "nonblocking_slow4", "dpsgd/nonblocking", "dpsgd/blocking",
          condition="at equal samples per round, one rate for all"),
    Claim("dpsgd, the same: less time than blocking rounds of one mini-batch", "",
          "nonblocking_slow4", "dpsgd/nonblocking", "dpsgd/small_batch"),
    *(
        Claim(f"dpsgd, {words}, each side at its best: less time", ABSTRACT,
              f"nonblocking_tuned_{task}", "dpsgd/nonblocking", "dpsgd/blocking", tuned=True,
              edges={"M": 1.0})
        for task, words in (("images", "ResNet-18"), ("text", "a small GPT"))
    ),
    Claim("dpsgd, uneven data: ends below blocking rounds after the same time", ABSTRACT,
          "nonblocking_weightings", "dpsgd/equal", "dpsgd/blocking", END, tuned=True,
          equal=("seconds",)),
)  # fmt: skip


def _groups(**variants: str) -> dict[str, str]:
    return {f"{mixer}/{variant}": f"{mixer}, {words}"
            for mixer in MIXERS for variant, words in variants.items()}  # fmt: skip


TWO = {"blocking": "blocking", "nonblocking": "non-blocking"}
figure = drawn(
    Panel("one worker 4x slower, one rate for all", "nonblocking_slow4",
          _groups(**TWO, small_batch="blocking, one mini-batch", deadline="deadline")),
    Panel("each side at its best rounds and rate", "nonblocking_tuned", _groups(**TWO)),
)  # fmt: skip

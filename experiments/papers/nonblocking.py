"""Non-blocking SGD (He & Dube, arXiv 2211.00889): rounds end when the first worker is done."""

from experiments.papers.base import HEADLINE, Curves, Sweep, drawn, swept
from experiments.stats import END, GAIN, Claim

TITLE = "Non-blocking SGD"
ABSTRACT = "arXiv 2211.00889, abstract"
MIXERS = ("all_reduce", "dpsgd", "matcha")
JOBS = {  # delays of eight workers as in a job
    "alibaba_job_4": "four of eight workers 3x to 5x slower",
    "bytedance_ar": "two of eight workers 2x slower",
    "alibaba_job_1": "no slow worker",
}
SWEEPS = (
    Sweep("demo", "--config=configs/demo.py --sweep", 0.02, HEADLINE),
    swept("demo_rounds", "demo.py:lengths", 0.1, seeds=5, tier=HEADLINE),
    *(
        swept(f"nonblocking_{delay}", f"nonblocking.py:delay={delay}", 0.02)
        for delay in
        ("jitter", "slow2", "slow4", "shifted_exponential", "pause", "pareto", "markov")
    ),
    swept("nonblocking_dirichlet",
          "nonblocking.py:delay=slow4 --config.split='dirichlet(alpha=0.1)'", 0.02),
    swept("nonblocking_tuned", "nonblocking.py:tuned,communication=0.25", 0.15, seeds=5,
          tier=HEADLINE),
    swept("nonblocking_traces", "nonblocking.py:traces,communication=0.25", 0.25, seeds=5,
          tier=HEADLINE),
    swept("nonblocking_tuned_images", "nonblocking.py:tuned_images", 0.5, seeds=5, tier=HEADLINE),
    swept("nonblocking_tuned_text", "nonblocking.py:tuned_text", 0.35, seeds=5, tier=HEADLINE),
    Sweep("public_jobs", "--config=configs/public_jobs.py", 0.02, HEADLINE),
    swept("nonblocking_weightings", "nonblocking.py:weightings", 0.1, seeds=10),
)  # fmt: skip
SHORTEST = {"M": 1.0}  # mini-batches of the shortest possible round
CLAIMS = (
    *(
        Claim(f"one worker 4x slower, tuned: non-blocking {mixer} takes {words}", ABSTRACT,
              "nonblocking_tuned", f"{mixer}/nonblocking", f"{mixer}/blocking",
              bound=bound, tuned=True, edges=SHORTEST, headline=True)
        for words, bound in (("less time", 1.0), ("half the time", 0.5)) for mixer in MIXERS
    ),
    *(
        Claim(f"one worker 4x slower, rounds of eight mini-batches: {mixer} takes half the time",
              ABSTRACT, "nonblocking_tuned", f"{mixer}/nonblocking/M=8",
              f"{mixer}/blocking/M=8", bound=0.5, tuned=True, headline=True,
              condition="rounds have eight mini-batches")
        for mixer in MIXERS[1:]
    ),
    *(
        Claim(f"delays as in {job}, {words}, each at its best: {mixer} takes less time", ABSTRACT,
              "nonblocking_traces", *(f"{job}/{mixer}/{side}" for side in
              ("nonblocking", "blocking")), tuned=True, edges=SHORTEST, headline=True)
        for job, words in JOBS.items() for mixer in MIXERS[1:]
    ),
    *(
        Claim("non-blocking rounds finish more mini-batches than a barrier, with delays as in a "
              f"job: {gain:g}x, {job}", ABSTRACT, "public_jobs",
              {"job": job, "rule": "first_finisher"}, {"job": job, "rule": "barrier"}, GAIN, gain,
              headline=True)
        for job, gain in (("alibaba_job_4", 2.0), ("bytedance_ar", 1.5), ("alibaba_job_1", 1.1))
    ),
    Claim("dpsgd, one worker 4x slower: less time to the same loss than blocking rounds", ABSTRACT,
          "nonblocking_slow4", "dpsgd/nonblocking", "dpsgd/blocking",
          condition="at equal samples per round, one rate for all"),
    Claim("dpsgd, the same: less time than blocking rounds of one mini-batch", "",
          "nonblocking_slow4", "dpsgd/nonblocking", "dpsgd/small_batch"),
    *(
        Claim("each side at its best: less time with all_reduce, mini-batches of "
              f"{samples}, an exchange lasts {exchange}", "", "demo_rounds",
              *(f"{side}/samples={samples}/exchange={exchange}"
                for side in ("nonblocking", "blocking")), tuned=True, edges=SHORTEST)
        for samples, exchange in ((16, 4), (4, 4), (4, 16))
    ),
    *(
        Claim(f"each side at its best: less time with dpsgd, {words}", ABSTRACT,
              f"nonblocking_tuned_{task}", "dpsgd/nonblocking", "dpsgd/blocking", tuned=True,
              edges=SHORTEST, headline=True)
        for task, words in (("images", "ResNet-18"), ("text", "a small GPT"))
    ),
    Claim("dpsgd, uneven data: ends below blocking rounds after the same time", ABSTRACT,
          "nonblocking_weightings", "dpsgd/equal", "dpsgd/blocking", END, tuned=True,
          equal=("seconds",), condition="rounds have eight mini-batches"),
    Claim("dpsgd, uneven data: blocking rounds of one mini-batch end below non-blocking ones of "
          "eight", "", "nonblocking_dirichlet", "dpsgd/small_batch", "dpsgd/nonblocking", END,
          equal=("seconds",), condition="all have one learning rate"),
)  # fmt: skip


figure = drawn(
    *(
        Curves(f"mini-batches of {samples}, exchange of {exchange}", "demo_rounds", {
            f"{side}/samples={samples}/exchange={exchange}": words
            for side, words in (("blocking", "blocking"), ("nonblocking", "non-blocking"))
        })
        for samples, exchange in ((16, 4), (4, 4), (4, 16))
    ),
    columns=3,
)  # fmt: skip

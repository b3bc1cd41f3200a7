"""Stragglers in links: methods with a slow link, slow spells of links, and a slow worker."""

from experiments.papers.base import Panel, drawn, swept
from experiments.stats import Claim

TITLE = "Stragglers in links"
NAME = "slow_links"
SWEEPS = (swept(NAME, "slow_links.py", 0.1, seeds=5),)
RING, CUBE, MATCHA = "dpsgd/ring", "dpsgd/hypercube", "matcha/hypercube"
SWARM, BLOCKING = "swarm/nonblocking", "swarm/blocking"
CLAIMS = (
    Claim("over a slow link: D-PSGD on a ring takes less time than all-reduce", "", NAME,
          f"link/{RING}", "link/all_reduce", tuned=True),
    Claim("over a slow link: MATCHA takes at most .75 of the time of D-PSGD on its graph", "", NAME,
          f"link/{MATCHA}", f"link/{CUBE}", bound=0.75, tuned=True),
    Claim("over a slow link: non-blocking Swarm takes at most half the time of all-reduce", "",
          NAME, f"link/{SWARM}", "link/all_reduce", bound=0.5, tuned=True),
    Claim("over a slow link: K-async takes at most half the time of all-reduce", "", NAME,
          "link/k_async", "link/all_reduce", bound=0.5, tuned=True),
    Claim("under spells: DiLoCo takes at most half the time of all-reduce", "", NAME,
          "spells/diloco", "spells/all_reduce", bound=0.5, tuned=True),
    Claim("under spells: D-PSGD on a ring takes less time than all-reduce", "", NAME,
          f"spells/{RING}", "spells/all_reduce", tuned=True),
    Claim("beside a slow worker, too: non-blocking Swarm takes less time than blocking", "", NAME,
          f"both/{SWARM}", f"both/{BLOCKING}", tuned=True),
    Claim("beside a slow worker, too: K-async takes less time than DiLoCo", "", NAME,
          "both/k_async", "both/diloco", tuned=True),
)  # fmt: skip
METHODS = {
    "all_reduce": "all-reduce", RING: "D-PSGD, ring", CUBE: "D-PSGD, hypercube",
    "dpsgd/complete": "D-PSGD, complete", MATCHA: "MATCHA, half, hypercube",
    SWARM: "Swarm, non-blocking", BLOCKING: "Swarm, blocking", "diloco": "DiLoCo, 8 local steps",
    "k_async": "K-async, 2 of 8",
}  # fmt: skip
figure = drawn(*(
    Panel(title, NAME, {f"{condition}/{key}": label for key, label in METHODS.items()}, log=True)
    for condition, title in (("usual", "no straggler"), ("link", "one slow link"),
                             ("spells", "spells of all links"),
                             ("both", "one slow link and one slow worker"))
))  # fmt: skip

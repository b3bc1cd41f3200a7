"""The evidence, a file per paper or family: its sweeps, its claims and its figure."""

PAPERS = (
    "nonblocking",
    "matcha",
    "uneven_data",
    "slow_and_stale",
    "adasync",
    "asynchronous",
    "swarm",
    "mg_wfbp",
    "s2_reducer",
    "local_steps",
    "failures",
)

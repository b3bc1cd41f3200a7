"""Numbers and verdicts that pages have by hand, recomputed from their records.

A page has to have each phrase with today's numbers; a test that fails gives the phrase to write.
"""

import collections
import functools
import math
import re

import numpy as np
import pytest

from benchmarks import validation_processes
from experiments import publish, stats
from experiments.papers import asynchronous, mg_wfbp, s2_reducer, slow_and_stale, swarm
from experiments.stats import BYTES, END, FAILS, HOLDS, INCONCLUSIVE, SECONDS, WHERE, Claim

MIXERS, JOBS = ("all_reduce", "dpsgd", "matcha"), ("alibaba_job_4", "bytedance_ar", "alibaba_job_1")
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")
TASKS = ("ncf", "transformer", "lstm", "hashed_logistic")
FRONTIER, BITS, DIVIDED = "frontier_2026", "few_bits", "few_bits_divided"
record = functools.cache(publish.record)


@functools.cache
def arms(name):
    return publish.arms(record(name))


class Number(float):
    """A number in formats of pages.

    They end in h for hundreds, m for millions, p for the difference from 1 in %, c for this
    difference rounded up.
    """

    def __format__(self, form):
        kind, more = form[-1:], abs(100 * (self - 1))
        if kind == "c":
            return f"{math.ceil(10 * more) / 10:.1f}"
        value = {"p": more, "m": self / 1e6, "h": 100 * self}.get(kind)
        return super().__format__(form) if value is None else f"{value:{form[:-1]}f}"


def best(name, group, quantity=SECONDS, by=""):
    """Return a quantity of a group's best arm, by the same quantity unless `by` is given."""
    return stats.best(stats.group(arms(name), group), by or quantity)[quantity]


def numbers(name, groups, quantity=SECONDS, by=""):
    """Give the quantity of each group; of "A, B : C; D" these are A / C, B / C and D."""
    for part in groups.split("; "):
        ours, _, theirs = part.partition(" : ")
        below = best(name, theirs, quantity, by) if theirs else 1.0
        for group in ours.split(", "):
            yield Number(best(name, group, quantity, by) / below)


CLAIMS = [claim for paper in publish.papers() for claim in paper.CLAIMS] + [
    *(Claim(f"{name}: a fifth", "", name, "matcha", "vanilla", bound=0.2, tuned=True,
            edges={"budget": 1.0}) for name in ("matcha_graph_2", "matcha_graph_3")),
    *(Claim(f"two steps beside {rival}", "", "swarm_tuned", swarm.EXACT, rival, tuned=True)
      for rival in swarm.RIVALS),
    *(Claim(f"many workers: {ours} beside momentum", "", "heterogeneous_workers_256",
            f"{ours}/ring", "dpsgd_momentum/ring", END, tuned=True)
      for ours in ("decentlam", "qg_dsgdm")),
    Claim("equal links: LOSCAR-SGD beside DiLoCo", "", FRONTIER, "usual/loscar", "usual/diloco",
          tuned=True),
    Claim("Rennala beside Async-SGD", "", "async_baselines", "rennala_interrupt", "async_sgd",
          tuned=True),
    *(Claim(f"{ours} beside {theirs}", "", name, ours, theirs, END, tuned=True)
      for name, ours, theirs in (
          ("frontier_async", "async_diloco", "async_average"),
          ("local_training", "diloco/H=30", "local_sgd/H=30"),
          ("local_training", "muloco/H=30", "all_reduce"),
          ("local_training", "muloco/H=30", "all_reduce_muon"),
          ("small_messages", "demo/1 of 256", "all_reduce"))),
]  # fmt: skip
VERDICTS = (  # words of the findings, a pattern of claims, and the verdict of all of these
    ("**Holds** in part where one worker is four", r"one worker 4x.*tuned: .*less time", HOLDS),
    ("**Inconclusive** with the delays of three", r"delays as in .* dpsgd takes", INCONCLUSIVE),
    ("in the noise, with 4 samples", r"each side.* of 16,", INCONCLUSIVE),
    ("**Holds** for the time on five of six", r"graph \d: .*less time than D-PSGD", HOLDS),
    ("**Does not hold** on the ring", r"a ring: .* updates", FAILS),
    ("of D-PSGD's time on graph 0", r"graph 0, a matching .*a fifth", FAILS),
    ("which the seeds do not tell from a fifth", r"matcha_graph_.: a fifth", INCONCLUSIVE),
    ("on a ring of 16 exact diffusion ends below", r"exact_diffusion", HOLDS),
    ("lower on changing graphs", r"dpsgd/(base_2|one_peer) ends below dpsgd/ring", HOLDS),
    ("graphs, also with 256 workers", r"256 workers: dpsgd/base_2 ends below", HOLDS),
    ("**Inconclusive** for DecentLaM and QG", r"(decent|qg_dsgdm/ring)", INCONCLUSIVE),
    ("With 256 workers this holds", r"many workers", HOLDS),
    ("With a GPT nothing but gradient tracking leaves", r"a GPT: (?!gradient)", INCONCLUSIVE),
    ("nothing but gradient tracking leaves the noise", r"a GPT: gradient", FAILS),
    ("it ends above D-PSGD", r"gradient_tracking", FAILS),
    ("except with 256 workers on the ring", r"256 workers: gradient", HOLDS),
    ("SGD is the first to a moderate loss and ends highest", r"rate 0.16", WHERE),
    ("**Does not hold** at each K's best", r"K-batch-async .* ends below K-async \(K = 1", FAILS),
    ("no better than a tuned fixed one", r"K-async \(K = 1\), threshold", FAILS),
    ("Updates take the seconds that theory says", r"an update with all P", HOLDS),
    ("do not decide whether it takes at most a tenth", r"AdaSync takes", INCONCLUSIVE),
    ("and Rennala 1", r"Rennala beside", FAILS),
    ("**Use** QG-DSGDm on a changing graph", r".*qg_dsgdm/base_2", HOLDS),
    ("four end 1.50 times as high", r"256 nodes, one rate", FAILS),
    ("it ends far below DiLoCo that waits, below momentum", r".*: async_diloco ends", HOLDS),
    ("and below averages without", r"async_diloco beside", HOLDS),
    ("**Does not hold** for Ringleader", r".*: ringleader", FAILS),
    ("8 bits cost no accuracy", r".*8 bits keep the accuracy", HOLDS),
    ("accuracy hardly depends on local steps", r".*after 600 mini-batches H = 4", WHERE),
    ("is faster than all rivals", r".*one local step takes less", HOLDS),
    ("with two slower than other gossip", r"two steps beside (?!all_reduce)", FAILS),
    ("and about as fast as all-reduce", r"two steps beside all_reduce", INCONCLUSIVE),
    ("8 bits save time over [links of 100", r"links of 100", HOLDS),
    ("over 1 Gbit/s this is inconclusive", r"links of 1 G", INCONCLUSIVE),
    ("never slower than a single all-reduce or a", r"simulated.*(single|layer)", HOLDS),
    ("**Does not hold** against buckets of 25 MB", r".*25 MB", FAILS),
    ("**Inconclusive** on [two CPU hosts]", r"two hosts.*single", INCONCLUSIVE),
    ("**Does not hold** against the default", r"two hosts.*without threads", FAILS),
    ("buckets change no bit of the result", r"buckets change", HOLDS),
    ("**Inconclusive** for the loss", r"(NCF|transformer|LSTM), one rate", INCONCLUSIVE),
    ("**Does not hold** against exact sparse", r"NCF: a sketch sends less", FAILS),
    ("the sketch raises the loss with hashed", r"hashed", FAILS),
    ("below local SGD, in the noise", r"diloco/H=30 beside", INCONCLUSIVE),
    ("ends far below DiLoCo", r"muloco/H=30 ends", HOLDS),
    ("and below all-reduce with AdamW", r"muloco/H=30 beside all_reduce$", HOLDS),
    ("Streaming DiLoCo ends where DiLoCo does, in the noise", r"streaming", INCONCLUSIVE),
    ("against all-reduce with the same", r"(diloco/H=30 ends|muloco.*_muon)", FAILS),
    ("DeMo ends higher where it saves much", r"demo/1 of 256 beside", FAILS),
    ("bytes, not a hundredth", r"sparse_loco/H=30 sends", FAILS),
    ("**Inconclusive** for NoLoCo and Sp", r"(noloco|sparse_loco)/H=30 ends", INCONCLUSIVE),
    ("**Holds** in simulated schedules, also with more", r"(512|1,000) learners", HOLDS),
    ("it keeps a larger share of its samples", r"while processes", HOLDS),
    ("end with a higher loss on it", r"a barrier ends below", HOLDS),
    ("`balance=true` is nearly as fast as dropping", r"dropping takes", HOLDS),
    ("**Use** K-async where", r"over a slow link: K-async", HOLDS),
    ("| one slow link | GASLoC |", r"one slow link: GASLoC", HOLDS),
    ("| Decoupled DiLoCo |", r"killed workers: Decoupled", HOLDS),
    ("NoLoCo takes 1", r"killed workers: NoLoCo", FAILS),
    ("| sums in few bits |", r"(int|fp|MX).*at most 1 % more", HOLDS),
    ("few bits | int8, fp8 |", r"a divided .*(int8|fp8)", HOLDS),
    ("above; the claim was 1 %", r"a divided .*(int4|MXFP4)", INCONCLUSIVE),
    ("| durations with heavy tails |", r"heavy tails", INCONCLUSIVE),
    ("| ATA |", r"four speeds: ATA takes", INCONCLUSIVE),
    ("| StragglAR |", r".*StragglAR", INCONCLUSIVE),
    ("EDiT's penalty | not faster than DiLoCo", r"EDiT", INCONCLUSIVE),
    ("not more accurate than D-PSGD", r"DSGD-AC", INCONCLUSIVE),
    ("of DiLoCo's time there", r"one slow link: LOSCAR-SGD takes less", INCONCLUSIVE),
    ("| equal links | LOSCAR-SGD |", r"equal links: LOSCAR", FAILS),
    ("| the last 5 % of updates |", r"5 % of the averages", FAILS),
    ("| EF21-Muon |", r"EF21-Muon, a tenth", FAILS),
)


def rounds(*cases):
    """Return groups for `numbers`: non-blocking rounds over blocking ones, in several cases."""
    return "; ".join(f"{one.format('nonblocking')} : {one.format('blocking')}" for one in cases)


ROWS = (  # words, a record, groups of its arms as in `numbers`, and their quantity, if not seconds
    ("an exchange lasts eight | {:.2f} | {:.2f} | {:.2f} |", "nonblocking_tuned",
     rounds(*(f"{mixer}/{{}}" for mixer in MIXERS))),
    ("in rounds of eight mini-batches | {:.2f} | {:.2f} | {:.2f} |", "nonblocking_tuned",
     rounds(*(f"{mixer}/{{}}/M=8" for mixer in MIXERS))),
    ("four | | {:.2f} | |", "nonblocking_tuned_images", rounds("dpsgd/{}")),
    ("GPT | | {:.2f} | |", "nonblocking_tuned_text", rounds("dpsgd/{}")),
    ("they take {lo:.2f} to {hi:.2f} of the time", "nonblocking_traces",
     rounds(*(f"{job}/{mixer}/{{}}" for job in JOBS for mixer in MIXERS[1:]))),
    ("the ratio is {:.2f} with all-reduce and one worker four times slower, in the noise, with 4 "
     "samples {:.2f}, not after correction, but with a longer exchange it is {:.2f}, beyond "
     "the noise", "demo_rounds",
     rounds(*(f"{{}}/samples={n}/exchange={m}" for n, m in ((16, 4), (4, 4), (4, 16))))),
    ("it is the reverse, {:.2f}, {:.2f} and {:.2f} of", "nonblocking_tuned", "; ".join(
        f"{mixer}/nonblocking/M=8 : {mixer}/blocking/M=1" for mixer in MIXERS)),
    ("takes {:.1f} times as many updates", "matcha_graph_5", "matcha/budget=0.5 : vanilla",
     "updates_to_target"),
    ("it takes {:.2f} of D-PSGD's time on graph 0", "matcha", "matcha : vanilla"),
    ("on graphs 2 and 3 it takes {:.2f} and", "matcha_graph_2", "matcha : vanilla"),
    ("and {:.2f}, which the seeds do not tell", "matcha_graph_3", "matcha : vanilla"),
    ("at {:.2f} and {:.2f} of the loss of D-PSGD with momentum", "heterogeneous",
     "decentlam/ring, qg_dsgdm/ring : dpsgd_momentum/ring", END),
    ("With 256 workers this holds: {:.2f} and {:.2f}.", "heterogeneous_workers_256",
     "decentlam/ring, qg_dsgdm/ring : dpsgd_momentum/ring", END),
    *((words, name, "qg_dsgdm/base_2 : dpsgd_momentum/base_2", END)
      for words, name in (("at {:.2f} and", "heterogeneous"),
                          ("and {:.2f} of the loss of D-PSGD with momentum. On a fixed",
                           "heterogeneous_workers_256"))),
    *((words, "slow_and_stale", "; ".join(
        f"compensated/threshold=0.01/rate={rate} : k_async/K=1/rate={rate}"
        for rate in ("0.16", "0.235")), quantity)
      for words, quantity in (("it ends {:.0p} and {:.0p} % lower (`threshold=0.01`", END),
                              ("but takes {:.1f} and {:.1f} times as long", SECONDS))),
    ("a mean loss of {:.4f} (K = 1) to {hi:.4f},", "slow_and_stale",
     ", ".join(slow_and_stale.WITHOUT), END),
    ("it ends {:.1p} % higher", "adasync", "adasync : fixed", END),
    ("Ringmaster takes {lo:.2f} and", "async_baselines", ", ".join(
        one for one in asynchronous.LIMITED if one.startswith("ringmaster")) + " : async_sgd"),
    ("K-sync takes {:.2f} times as long, in the noise", "async_baselines", "k_sync : async_sgd"),
    ("and Rennala {:.2f}, which does not", "async_baselines", "rennala_interrupt : async_sgd"),
    ("four end {:.2f} times as high as one, and", "swarm_nodes_256", "swarm/H=4 : swarm/H=1", END),
    ("and one ends {:.2f} times as high as SGP", "swarm_nodes_256", "swarm/H=1 : sgp", END),
    ("take {:.2f} of D-PSGD's time.", "swarm_real", "real/8 bits : real/dpsgd"),
    ("as all-reduce ({:.1f} s)", "swarm_tuned", "all_reduce"),
    ("until the target SGP sends {:.2m} MB, and `swarm/H=2` {:.2m} MB", "swarm_tuned",
     "sgp, swarm/H=2", stats.BYTES_THERE),
    ("DiLoCo ends {:.0p} % below local SGD", "local_training", "diloco/H=30 : local_sgd/H=30", END),
    ("ends {:.0p} % above local SGD with 10 local steps, and {:.0p} % with 50",
     "language_model_10M", "diloco/H=10 : local_sgd/H=10; diloco/H=50 : local_sgd/H=50", END),
    ("sends {:.2f} of DiLoCo's", "local_training", "sparse_loco/H=30 : diloco/H=30", BYTES, END),
    ("which end {:.0p} and {:.0p} % above DiLoCo", "local_training",
     "noloco/H=30, sparse_loco/H=30 : diloco/H=30", END),
    ("keep {lo:.0h} to {hi:.0h} % of the longest tenth", "sample_costs",
     "nonblocking/drop, anytime/drop, drop_compute/drop, k_sync/drop", "kept_long"),
    ("GASLoC | {:.2f} of DiLoCo's time, {:.2f} on equal links", FRONTIER,
     "link/gasloc : link/diloco; usual/gasloc : usual/diloco"),
    ("Decoupled DiLoCo | {:.2f} of DiLoCo's time; NoLoCo takes {:.2f} |", FRONTIER,
     "usual_killed/decoupled_diloco, usual_killed/noloco : usual_killed/diloco"),
    ("within {hi:c} % of the loss of bfloat16", BITS, "int8, fp8_e4m3, fp8_e5m2 : bf16", END),
    ("loss of bfloat16, with {:.2f} of the bytes", BITS, "int8 : bf16", BYTES),
    ("int4, MXFP4 | within {:c} and {:c} %", BITS, "int4, mxfp4 : bf16", END),
    ("with {:.2f} and {:.2f} of the bytes", BITS, "int4, mxfp4 : bf16", BYTES),
    ("within {lo:c} % with error", BITS, "int4_feedback, mxfp4_feedback : bf16", END),
    ("the control | {:.0p} % above", BITS, "sign : bf16", END),
    ("int8, fp8 | within {hi:c} % of bf", DIVIDED, "int8, fp8_e4m3, fp8_e5m2 : bf16", END),
    ("int4, MXFP4 | {:.1p} and {:.1p} % above; the", DIVIDED, "int4, mxfp4 : bf16", END),
    ("MindFlayer | {:.0f} s, full rounds {:.0f} ±", FRONTIER, "heavy/mindflayer, heavy/barrier"),
    ("but K-batch-sync {:.0f} s |", FRONTIER, "heavy/k_batch_sync"),
    ("ATA | {:.2f} of the time of equal", FRONTIER, "unequal/ata : unequal/barrier"),
    ("with {:.1f} times its bytes", FRONTIER, "unequal/ata : unequal/k_batch_sync", BYTES, SECONDS),
    ("StragglAR | {:.2f} of a ring's", FRONTIER, "late/straggl_ar : late/ring"),
    ("LOSCAR-SGD | {:.0f} s, DiLoCo {:.0f} s", FRONTIER, "usual/loscar, usual/diloco"),
    ("with a slow link, {:.2f} of", FRONTIER, "link/loscar : link/diloco"),
    ("{:.0h} % accuracy, a random 5 % gives {:.0h} % |", FRONTIER, "budget/late, budget/even",
     stats.ACCURACY),
    ("{:.1p} % above the training loss of Muon", BITS, "ef21_muon : muon", END),
    ("EF21-SGDM {:.1p} % above momentum", BITS, "ef21_sgdm : bf16", END),
)
DATA = (  # the same of docs/data_stragglers.md
    ("barrier and has {:.0p} % less speed", "sample_costs", "nonblocking/carry : nonblocking/drop",
     "samples"),
    ("costs {:.0p} %, `equal_work` (`tokens`, up to 16 mini-batches) {:.0p} %", "sample_costs",
     "nonblocking/again, tokens : nonblocking/drop", "samples"),
    ("at {:.0h} % of dropping's", "sample_costs", "nonblocking/balanced : nonblocking/drop",
     "samples"),
    ("| all-reduce | {:.1f} |", "slow_links", "link/all_reduce : usual/all_reduce"),
    ("three graphs | {lo:.1f} to {hi:.1f} |", "slow_links", "; ".join(
        f"link/dpsgd/{one} : usual/dpsgd/{one}" for one in ("ring", "hypercube", "complete"))),
    ("| DiLoCo | {:.1f}; {:.1f} if", "slow_links", "link/diloco, both/diloco : usual/diloco"),
    ("non-blocking Swarm | {:.2f}; up to {hi:.2f} with other", "slow_links",
     "link/swarm/nonblocking, spells/swarm/nonblocking, both/swarm/nonblocking : "
     "usual/swarm/nonblocking"),
    ("it takes {:.2f} of all-reduce's time", "slow_links", "link/k_async : link/all_reduce"),
    ("takes {:.2f} of the time of D-PSGD on the same graph over the slow link, but {:.2f} if",
     "slow_links", "; ".join(
         f"{one}/matcha/hypercube : {one}/dpsgd/hypercube" for one in ("link", "both"))),
)  # fmt: skip


def span(values, form, word=" to "):
    return f"{min(values):{form}}{word}{max(values):{form}}"


def beyond_noise(name):
    """Return, of a record's p-values below 5 % in docs/results.md, their stars or else ""."""
    found = re.findall(rf"results/{name}\.json\) \| ([\d.e-]+)(\*?)", text("docs/results.md"))
    return [star for p, star in found if float(p) < stats.LEVEL]


def of_findings():
    """Give phrases of the findings that are made of several quantities, or of simulations."""
    gains = [stats.point(arms("public_jobs"), {"job": job, "rule": "first_finisher"}, "gain")
             ["gain"] for job in JOBS]  # fmt: skip
    yield f"rounds finish {span(gains, '.1f')} times as many mini-batches"
    stars = beyond_noise("nonblocking_traces")
    yield (f"{NUMBERS[len(stars)].capitalize()} of six differences exceeds the noise, and "
           f"{'none' if all(stars) else 'not all'} after correction")  # fmt: skip
    for name, words in (("demo_rounds", "with 4 samples"), ("adasync", "% higher, but")):
        stars = beyond_noise(name)
        yield words if "*" in stars else f"{words} (no p-value of {name} has a star: {stars})"
    wait, go = ([*numbers("slow_and_stale", ", ".join(rules), END)]
                for rules in (slow_and_stale.WITH, slow_and_stale.WITHOUT))  # fmt: skip
    yield f"with waiting, {min(wait) - max(go):.3f} to {max(wait) - min(go):.3f} higher"
    own, fixed = (stats.best(stats.group(arms("adasync"), group), SECONDS)
                  for group in ("adasync", "fixed"))  # fmt: skip
    (rate,), (k, lower) = (stats.settings(arm["name"]).values() for arm in (own, fixed))
    yield (f"at {rate:g} it takes {own[SECONDS]:.0f} s, where K = {k:g} at {lower:g} takes "
           f"{fixed[SECONDS]:.0f} s, and ends {Number(own[END] / fixed[END]):.0p} % lower")
    made = {arm["name"]: arm["updates"] for arm in arms("slow_and_stale_real")}
    late = max(made[name.replace("real", "simulated")] / count for name, count in made.items()
               if re.match(r"real/.*_sync/", name))  # fmt: skip
    yield f"under rules that wait real processes take up to {Number(late):.0p} % longer"
    slowed = [best("swarm_tuned_slow4", one) / best("swarm_tuned", one)
              for one in swarm.RIVALS[:4]]  # fmt: skip
    yield f"D-PSGD, SGP and all-reduce take {span(slowed, '.2g')} times as long"
    spent = {(one["method"], one["workers"]): one["mean"] for one in arms("swarm_scale")}
    own, cube, whole, *flat = (spent[method, 256] / spent[method, 8] for method in (
        "swarm/H=1", "dpsgd/hypercube", "dpsgd/complete", "ad_psgd", "sgp", "dpsgd/ring"))
    yield (f"takes {own:.2f} times as long; with AD-PSGD, SGP and D-PSGD on a ring "
           f"{span(flat, '.2f')} times, with D-PSGD on a hypercube {cube:.1f} and on a complete "
           f"graph {whole:.0f} times")  # fmt: skip
    full = stats.best(stats.group(arms(FRONTIER), "heavy/barrier"), SECONDS)
    yield f"± {np.std(full[f'{SECONDS}_by_seed'], ddof=1):.0f} s, but K-batch-sync"
    curves = arms("mg_wfbp_scale")
    both, layers = ([100 * one["efficiency"][one["workers"].index(2048)] for one in curves if
                     one["network"] == "ethernet_10" and one["schedule"] in names]
                    for names in (("greedy", "single"), ("wfbp",)))  # fmt: skip
    yield f"both scale at {span(both, '.0f')} %, and WFBP at {span(layers, '.0f')} %"
    least = mg_wfbp.never_slower("fixed", curves, {}).measured.partition("x")[0]
    yield f"greedy ones are down to {least} times as fast"
    verdicts, taken = of_hosts("greedy", "single", ("gpt", "one_large_layer"))
    yield (f"takes {span(taken, '.2f')} of a single all-reduce's time, in "
           f"{NUMBERS[verdicts.count(HOLDS)]} beyond the noise")  # fmt: skip
    counts = {schedule: [NUMBERS[of_hosts(schedule, mg_wfbp.PLAIN)[0].count(verdict)]
                         for verdict in (HOLDS, FAILS)]
              for schedule in ("greedy", "optimal", "fixed")}  # fmt: skip
    words = "buckets are faster in {} of nine cells and slower in {} cells."
    yield words.format(*counts["greedy"])
    assert counts["optimal"] == counts["fixed"]
    yield "fixed ones of 1 MB, are faster in {} cells and slower in {} cell.".format(
        *counts["fixed"])  # fmt: skip
    *_, last = of_hosts("optimal", "single")[1]
    yield f"`optimal` ones take {last:.2f} of a single all-reduce's time"


def of_hosts(ours, theirs, models=("gpt", "one_large_layer", "resnet18")):
    """Return verdicts on steps of two schedules on two hosts, and their quotients, by cell."""
    cells = [[stats.point(arms("benchmarks/overlap"), {"hosts": 2, "rate": rate, "model": model,
              "schedule": schedule}, "turns") for schedule in (ours, theirs)]
             for model in models for rate in ("100mbit", "200mbit", "1gbit")]  # fmt: skip
    return ([stats.compare(*cell, "turns").verdict for cell in cells],
            [one["turns"] / other["turns"] for one, other in cells])  # fmt: skip


def column(title, heading, arm):
    """Return an arm's number in a table of S2 Reducer, for every task."""
    return [s2_reducer._column((), record(f"s2_{task}"), title, heading, arm)[0] for task in TASKS]


def on_hosts():
    """Return OmniReduce's step over that of s2/exact, on two hosts, for every task."""
    return [steps["omnireduce"] / steps["s2/exact"] for steps in steps_on_hosts().values()]


def steps_on_hosts(hosts=2):
    """Return the seconds of a step on hosts at 1 Gbit/s, by task and method."""
    found = collections.defaultdict(dict)
    for one in arms("benchmarks/hosts"):
        if (one["hosts"], one["rate"]) == (hosts, "1gbit"):
            found[one["task"]][one["method"]] = one["injected"]
    return found


def of_overlap():
    """Give phrases of the page on overlap."""
    shown = {one["schedule"]: one for one in arms("benchmarks/overlap")
             if (one["hosts"], one["model"], one["rate"]) == (2, "gpt", "200mbit")}  # fmt: skip
    merged, plain = [shown[key] for key in ("fixed", "greedy", "optimal")], shown[mg_wfbp.PLAIN]
    yield f"Merged buckets hide {span([100 * one['hidden'] for one in merged], '.0f')} % of what"
    yield f"so that the default hides {100 * plain['hidden']:.0f} %"
    gains = span([plain["seconds"] / one["seconds"] for one in merged], ".2f")
    yield f"over the default they gain {gains}."


def of_sketches():
    """Give phrases of the findings on S2 Reducer."""
    ours, tables = s2_reducer.AS_PUBLISHED, s2_reducer.TABLES
    *losses, hashed = column(tables, "loss over dense [%]", ours)
    peeled = max(column(tables, "loss over dense [%]", "s2/sketch"))
    yield f"Peeled, the sketch ends at most {peeled:.1f} % above"
    fewer = {f"{one:.0f}" for one in column(tables, "fewer bytes [%]", ours)[:3]}
    yield (f"end {span(losses, '.1f')} % above dense training, in the noise, with "
           f"{' to '.join(sorted(fewer))} % fewer bytes")  # fmt: skip
    yield f"raises the loss with hashed features by {hashed:.1f} %"
    sent = [one for task in TASKS for one in numbers(f"s2_{task}", f"{ours} : bf16", BYTES)]
    yield f"It sends {span(sent, '.2f')} of the bytes of sums in bfloat16"
    steps = (column(s2_reducer.STEP, "ms", arm) for arm in ("omnireduce", "s2/exact"))
    one, *others, _ = (f"{slow / fast:.1f}" for slow, fast in zip(*steps, strict=True))
    others = " and ".join(dict.fromkeys(others))
    yield (f"its step is {one} times as fast as OmniReduce's with NCF, and {others} times "
           "with the transformer and the LSTM")  # fmt: skip
    yield f"on two hosts at this rate {span(on_hosts(), '.1f')} times."
    rivals = ("s2/exact", "sparse_all_gather", "sparcml")
    modelled = [min(times, key=times.get) for times in (
        {arm: column(s2_reducer.STEP, "ms", arm)[at] for arm in rivals} for at in range(4))]
    real = [min(rivals, key=lambda arm: steps[arm]) for steps in steps_on_hosts().values()]
    yield (f"in the model on {NUMBERS[modelled.count(rivals[0])]} of four tasks, on two hosts on "
           f"{NUMBERS[real.count(rivals[0])]} of five.")  # fmt: skip
    four = steps_on_hosts(hosts=4)["ncf"]
    gain = any(four[arm] < four["dense"] for arm in (*rivals, "s2/sketch", ours, "omnireduce"))
    yield f"{'one' if gain else 'no'} sparse method gains over dense training with NCF"


def of_readme():
    both = (column(s2_reducer.STEP, "ms", arm) for arm in ("s2/exact", "omnireduce"))
    shares = [fast / slow for fast, slow in zip(*both, strict=True)]
    yield (f"takes {span(shares, '.2f')} of OmniReduce's modelled step time; on two hosts at "
           f"1 Gbit/s, {span([1 / share for share in on_hosts()], '.1g')}.")  # fmt: skip


def of_data():
    found = {arm["name"].removeprefix("nonblocking/"): arm for arm in arms("sample_costs")}
    beyond = {name: arm["train_loss_long"] - found["barrier"]["train_loss_long"]
              for name, arm in found.items()}  # fmt: skip
    deviation = np.std(found["drop"]["train_loss_long_by_seed"], ddof=1)
    yield f"is {beyond['drop'] / deviation:.0f} standard deviations above the barrier's"
    yield f"and end {beyond['weighted']:.3f} above the barrier, in the noise"


def of_advice():
    points = arms("benchmarks/advice")
    right, pairs = (sum(one[key] for one in points) for key in ("right", "pairs"))
    unsure = sum(one["verdict"].startswith("not sure") for one in points)
    yield f"predicted in the right order: {right} of {pairs}."
    yield f"On {NUMBERS[unsure]} sources the advisor says"


def of_validation():
    for kept, cells in (("", ""), (", without D-PSGD", "dpsgd")):
        points = [one for one in arms("benchmarks/validation_processes") if one["method"] != cells]
        for words, name in (("as it is", ""), ("with arrays", "arrays_")):
            found = validation_processes.summary(points, name)
            yield (f"| {words}{kept} | {found['cells']} | {100 * found['median_error']:.1f} % | "
                   f"{found['beyond_10%']} | {found['tau']:.2f} |")  # fmt: skip
            if not kept:
                yield f"two standard errors: {found['ranked']} of {found['pairs']} pairs."


@functools.cache
def text(page):
    return plain((publish.ROOT / page).read_text(encoding="utf-8"))


def plain(words):
    """Return words on one line, with .5 for 0.5."""
    return re.sub(r"(?<!\d)0(?=\.\d)", "", " ".join(words.split()))


def lacks(page, words):
    return "" if plain(words) in text(page) else f"{page} does not say: {words}"


PAGES = [("docs/findings.md", row) for row in ROWS]
PAGES += [("docs/data_stragglers.md", row) for row in DATA]


@pytest.mark.parametrize(("page", "row"), PAGES, ids=[row[0] for _, row in PAGES])
def test_a_page_has_the_numbers_of_arms(page, row):
    words, name, groups, *quantities = row
    found = [*numbers(name, groups, *quantities)]
    missing = lacks(page, words.format(*found, lo=min(found), hi=max(found)))
    assert not missing


@pytest.mark.parametrize(
    ("page", "phrases"),
    [("docs/findings.md", of_findings), ("docs/findings.md", of_sketches),
     ("docs/overlap.md", of_overlap),
     ("docs/data_stragglers.md", of_data), ("README.md", of_readme),
     ("docs/advice.md", of_advice), ("docs/validation.md", of_validation)],
)  # fmt: skip
def test_a_page_has_the_other_numbers(page, phrases):
    missing = [*filter(None, (lacks(page, words) for words in phrases()))]
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize(("words", "pattern", "verdict"), VERDICTS)
def test_a_verdict_of_the_findings_is_that_of_its_claims(words, pattern, verdict):
    claims = [claim for claim in CLAIMS if re.match(pattern, claim.claim)]
    answers = [(claim.claim, stats.judge(claim, arms(claim.record), record(claim.record)))
               for claim in claims]  # fmt: skip
    assert claims, f"no claim begins like {pattern}"
    missing = lacks("docs/findings.md", words)
    assert not missing
    others = [f"{claim}: {answer}" for claim, answer in answers if answer.verdict != verdict]
    assert not others, f"the findings say {words!r}"

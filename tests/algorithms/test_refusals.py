"""Errors of methods: one sentence with the cause, the value and a way out, before anything runs."""

import functools
import inspect

import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax
import pytest

import algorithms as use
from algorithms import reducers as by
from algorithms.links import Links, in_turn
from algorithms.mg_wfbp import plan_with
from comms import topology
from configs import nonblocking
from experiments import prepare, sweep
from experiments.profiling import Profile
from runtimes.base import refuse
from stragglers import delays, local_updates
from stragglers.rule import Turnout
from tests import planned
from tests.algorithms import quadratics
from tests.algorithms.quadratics import N
from tests.refusals import refused

SGD = optax.sgd(0.1)
LAW = delays.exponential(1.0)
RING, ONE, ALL = topology.ring(N), topology.complete(1), topology.complete(8)
SOME = planned.rule("k_async", LAW, N, k=2).turnout
PAIRS = planned.rule("random_pairs", LAW, N, graph=RING).turnout
MATRIX = {"matrix": jnp.zeros((3, 3))}
MODULE = {"module_1": {"kernel": jnp.zeros((10, 10))}, "module_2": {"bias": jnp.zeros(10)}}
OTHER = Profile([["module_1/kernel"], ["module_3/bias"]])


def run(method, wait, **options):
    return quadratics.simulated(method, wait, LAW, 4, **options)


test_what_makes_no_sense_is_refused = refused(
    (lambda: use.s2_reducer(SGD, sparse=()), "no parameter is said to be row-sparse"),
    (lambda: use.s2_reducer(SGD, ratio=0.5, budget=3), "both size it"),
    (lambda: use.s2_reducer(SGD, rows=0), "s2_reducer: needs rows >= 1, got 0; set 1 or"),
    (lambda: use.s2_reducer(SGD, error_feedback=True), "peeling leaves nothing out; set error_f"),
    (lambda: use.s2_reducer(SGD, fallback="sparse"), "fallback: unknown choice 'sparse'; known"),
    (lambda: use.s2_reducer(SGD, sparse=("embeding",)).exchange.init({"embedding": jnp.zeros(3)}),
     "has no parameter 'embeding' .* embedding"),
    (lambda: use.sparcml(SGD, sparse=("emb*",)).exchange.init({"embedding": jnp.zeros(3)}),
     "has no parameter 'emb.' that could be row-sparse; set sparse to some of embedding"),
    (lambda: use.sparse_all_gather(SGD).exchange.init(MATRIX),
     "sparse_all_gather: the model has no parameter"),
    (lambda: use.sparcml(SGD).exchange.init(jnp.zeros(3)), "give a tree with names, as {'embedd"),
    (lambda: use.omnireduce(SGD, block=0), "omnireduce: needs block >= 1, got 0"),
    (lambda: use.top_k(SGD, ratio=2.0), "0 < ratio <= 1"),
    (lambda: use.powersgd(SGD, rank=0), "powersgd: needs rank >= 1, got 0"),
    (lambda: refuse(use.powersgd(SGD), N, SOME), "its memory must be equal on all workers"),
    (lambda: refuse(use.top_k(SGD, warmup_updates=5), N, SOME),
     "its count of warm-up updates must be equal"),
    (lambda: use.choco_sgd(SGD, RING, exchange=by.random_k(0.5)),
     "choco_sgd: random_k writes no message that a neighbour"),
    (lambda: use.choco_sgd(SGD, topology.base_k(N, 2)), "its links change from update to update"),
    (lambda: use.choco_sgd(SGD, ONE), "choco_sgd: a single worker has no neighbours"),
    (lambda: use.choco_sgd(SGD, RING, gamma=2), "needs 0 < gamma <= 1, got 2"),
    (lambda: use.async_diloco(SGD, N, period=0), "async_diloco: needs period >= 1, got 0"),
    (lambda: local_updates.dynamic([1.0], 0), "needs most >= 1 and positive speeds, got 0 and 1"),
    (lambda: local_updates.measured_speeds(planned.plan("k_async", LAW, N, 2, k=1), N),
     "finished nothing in 2 updates"),
    (lambda: use.decoupled_diloco(SGD, fragments=0), "needs fragments >= 1, got 0"),
    (lambda: use.decoupled_diloco(SGD, exchange=by.error_feedback(by.top_k())),
     "decoupled_diloco: .*keeps a memory of one fragment"),
    (lambda: run(use.decoupled_diloco(SGD), "k_batch_async", k=6), "may deliver twice in an updat"),
    (lambda: use.streaming_diloco(SGD, fragments=2, overlap=2), "needs overlap < fragments=2, g"),
    (lambda: use.streaming_diloco(SGD, alpha=1), "needs 0 <= alpha < 1, got 1"),
    (lambda: run(use.streaming_diloco(SGD), "k_async", k=2), "all workers send the same fragment"),
    (lambda: use.loscar_sgd(SGD, N, every=2, overlap=3), "needs overlap <= every, got 3 and 2"),
    (lambda: refuse(use.loscar_sgd(SGD, N), N, SOME), "all workers send the same coordinates"),
    (lambda: use.easgd(SGD, N, beta=1.5), r"easgd: needs 0 < beta <= 1, got 1\.5"),
    (lambda: use.ef21(SGD, N, exchange=by.error_feedback(by.top_k())),
     "ef21: error_feedback keeps a memory of what was not"),
    (lambda: use.ef21(SGD, N, broadcast=by.random_k(0.1)), "broadcast=random_k writes no message"),
    (lambda: use.ef21_sgdm(SGD, N, eta=0), "ef21_sgdm: needs 0 < eta <= 1, got 0"),
    (lambda: refuse(use.ef21(SGD, N), N + 1, Turnout()), "built for 8 workers, but 9 trai"),
    (lambda: use.noloco(SGD, RING, gamma=0), "noloco: needs gamma > 0, got 0"),
    (lambda: use.noloco(SGD, ALL, alpha=0.9), r"by 1\.035; .* set gamma to 0\.43 or less, or use"),
    (lambda: use.noloco(SGD, ONE), "a single worker has nobody to meet"),
    (lambda: use.gasloc(SGD, RING, alpha=0), "gasloc: needs eta > 0 and alpha > 0, got 0.7 and 0"),
    (lambda: use.gasloc(SGD, RING, gamma=1), "gasloc: needs 0 <= gamma < 1, got 1"),
    (lambda: use.gasloc(SGD, RING, alpha=3),
     r"with alpha=3 and gamma=0\.9 .* by 1\.5; set alpha to 2\.84 or less, or use mixing_mat"),
    (lambda: use.gasloc(SGD, topology.base_k(N)),
     r"alpha to 0\.96 or less, or set gamma to 0\.7 or less, or use a graph that stays"),
    (lambda: use.gasloc(SGD, ALL, pairs=True),
     r"by 1\.08; set alpha to 0\.43 or less, or set gamma to 0\.74 or less, or use pairs=false"),
    (lambda: use.gasloc(SGD, ONE, pairs=True), "gasloc: a single worker has nobody to meet"),
    (lambda: use.swarm(SGD, ONE, lockstep=True), "swarm: a single worker has nobody to meet"),
    (lambda: use.swarm(SGD, RING, bits=2), "bits=2, but with rounding 'nearest' two models"),
    (lambda: use.swarm(SGD, RING, rounding="unbiased"), "without bits rounds nothing; set bits"),
    (lambda: use.swarm(SGD, RING, bits=3, rounding="unbiased"), "bits=3, but with rounding 'unb"),
    (lambda: use.swarm(SGD, RING, bits=8, rounding="up"), "rounding: unknown choice 'up'; known"),
    (lambda: run(use.swarm(SGD, RING), "barrier"), "this rule makes none"),
    (lambda: run(use.swarm(SGD, RING, blocking=True), "random_pairs"), "a partner goes on"),
    (lambda: use.trimmed_mean(SGD, trim=-1), "trimmed_mean: needs trim >= 0, got -1"),
    (lambda: use.krum(SGD, keep=0), "krum: needs keep >= 1, got 0"),
    (lambda: use.centred_clipping(SGD, radius=0.0), "centred_clipping: needs radius > 0"),
    (lambda: run(use.centred_clipping(SGD, radius=1.0), "k_async", k=2),
     "all workers keep the same centre, but an update may have only 2 of 8"),
    (lambda: use.powersgd(SGD, rank=None), "powersgd: rank must be a whole number, got None"),
    (lambda: use.trimmed_mean(SGD, trim=0.1), "trim must be a whole number, got 0.1; round it"),
    (lambda: use.krum(SGD, keep=1.5), "krum: keep must be a whole number, got 1.5"),
    (lambda: use.async_diloco(SGD, N, period=2.5), "period must be a whole number, got 2.5"),
    (lambda: use.loscar_sgd(SGD, N, every=1.5), "every must be a whole number, got 1.5"),
    (lambda: use.powersgd(SGD, rank=1.5), "rank must be a whole number, got 1.5"),
    (lambda: use.demo(SGD, k=True), "demo: k must be a whole number, got True"),
    (lambda: use.one_bit_adam(SGD, N, warmup_updates=2.5), "must be a whole number, got 2.5"),
    (lambda: use.sgp(SGD, N, overlap=1.5), "sgp: overlap must be a whole number, got 1.5"),
    (lambda: use.edit(SGD, warmup=2.5), "edit: warmup must be a whole number, got 2.5"),
    (lambda: use.streaming_diloco(SGD, fragments=2.5), "fragments must be a whole number, got 2.5"),
    (lambda: use.decoupled_diloco(SGD, fragments=2.5), "fragments must be a whole number, got 2.5"),
    (lambda: use.omnireduce(SGD, block=2.5), "omnireduce: block must be a whole number, got 2.5"),
    (lambda: use.parallax(SGD, budget=2.5), "parallax: budget must be a whole number, got 2.5"),
    (lambda: use.top_k(SGD, warmup_updates=2.5), "top_k: warmup_updates must be a whole number"),
    (lambda: use.s2_reducer(SGD, rows=2.5), "s2_reducer: rows must be a whole number, got 2.5"),
    (lambda: use.sketched_sgd(SGD, rows=2.5), "sketched_sgd: rows must be a whole number, got"),
    (lambda: use.qsgd(SGD, levels=2.5), "qsgd: levels must be a whole number, got 2.5"),
    (lambda: use.sparse_loco(SGD, k=2.5), "chunked_top_k: k must be a whole number, got 2.5"),
    (lambda: by.quantise(bits=4.5), "quantise: bits must be a whole number, got 4.5"),
    (lambda: by.int8(bucket=2.5), "int8: bucket must be a whole number, got 2.5"),
    (lambda: use.s2_reducer(SGD, exact=True, rows=5), "rows=5, .* the exact variant has none; le"),
    (lambda: use.choco_sgd(SGD, RING, exchange=by.bf16), "choco_sgd: exchange=.* is no reducer"),
    (lambda: use.ef21(SGD, N, broadcast="top_k"), "ef21: broadcast=top_k is no reducer; write"),
    (lambda: use.decoupled_diloco(SGD, exchange="int8"), "exchange=int8 is no reducer"),
    (lambda: by.error_feedback(by.sign), "chain: part=.* is no reducer; write reducers.bf16"),
    (lambda: use.sparse_loco(SGD, chunk=8, k=9), "chunked_top_k: needs 1 <= k <= chunk"),
    (lambda: use.demo(SGD, chunk=512), "demo: needs 1 <= k <= chunk <= 256, got 8 and 512"),
    (lambda: use.demo(SGD, decay=1), "demo: needs 0 <= decay < 1, got 1"),
    (lambda: use.one_bit_adam(SGD, N, warmup_updates=0), "needs warmup_updates >= 1, got 0"),
    (lambda: refuse(use.one_bit_adam(SGD, N), N + 1, Turnout()), "built for 8 workers, but 9 trai"),
    (lambda: use.mg_wfbp(SGD), r"'optimal' need the times .* one of wfbp, single, fi"),
    (lambda: plan_with("fixed:25 M B"), "'25 M B' is no size of a bucket; write a positive"),
    (lambda: plan_with("wfbp", OTHER)(MODULE), "the profile does not have 'module_2/bias'; measur"),
    (lambda: plan_with("wfbp", OTHER)({"module_1": MODULE["module_1"]}), "the model does not have"),
    (lambda: use.matcha(SGD, RING, budget=0.0), "budget is a share"),
    (lambda: use.qg_dsgdm(SGD, RING, momentum=1.0), r"needs 0 <= momentum < 1, got 1\.0"),
    (lambda: by.chain(), "chain: got no reducer"),
    (lambda: by.chain(by.sign(), by.top_k()), "chain: sign sends codes, which top_k cannot work"),
    (lambda: by.chain(by.top_k(), by.random_k()), "top_k: picks other entries on every worker"),
    (lambda: by.chain(by.random_k(), by.random_k()), "chain: has random_k 2 times"),
    (lambda: by.chain(by.random_k(), by.error_feedback(by.sign())), "error_feedback keeps a memor"),
    (lambda: by.error_feedback(by.error_feedback(by.sign())), "keeps a memory already"),
    (lambda: by.error_feedback(by.random_k(0.1, unbiased=True), by.int8()),
     "error_feedback: random_k scales what it sends to be unbiased"),
    (lambda: use.ef21(SGD, N, exchange=by.random_k(0.1, unbiased=True)), "ef21: random_k scales w"),
    (lambda: by.error_feedback(by.top_k(), by.quantise()),
     r"error_feedback: codes of 4 bits may lose .* quantise\(bits=5\), or bucket=195"),
    (lambda: use.ef21(SGD, N, exchange=by.chain(by.random_k(), by.quantise(bits=2, bucket=4))),
     r"ef21: codes of 2 bits .* quantise\(bits=3\), or bucket=3"),
    (lambda: by.error_feedback(by.ring(by.quantise())), "error_feedback: codes of 4 bits may lo"),
    (lambda: use.ef21(SGD, N, broadcast=by.quantise()), "ef21: codes of 4 bits may lose"),
    (lambda: use.sparse_loco(SGD, bits=1), "sparse_loco: codes of one bit may lose more"),
    (lambda: use.ef21(SGD, N, exchange=by.chunked_top_k(bits=1)), "ef21: codes of one bit may"),
    (lambda: by.ring(by.top_k(), by.int8()), "ring: top_k has no codes for whole sums"),
    (lambda: by.ring(by.chunked_top_k()), "ring: chunked_top_k has no codes for whole sums"),
    (lambda: by.quantise(bucket=0), "quantise: needs bucket >= 1, got 0"),
    (lambda: by.quantise(bits=1), "quantise: needs 2 to 16 bits, got 1"),
    (lambda: use.all_reduce(SGD, exchange=by.sign(), collective="ring"),
     "all_reduce: collective='ring' is for a plain mean"),
    (lambda: use.local_sgd(SGD, server=SGD, server_momentum=0.9),
     "server_momentum=0.9 are for the server that averages"),
)  # fmt: skip


def test_a_method_without_memory_lets_workers_be_left_out():
    refuse(use.s2_reducer(SGD), N, SOME)


test_parts_of_a_config_that_do_not_fit_are_explained = refused(
    ("local_sgd(exchange=top)", "exchange: unknown name 'top'; did you mean 'top_k'"),
    ("local_sgd(exchange=chain(top_k(share=0.1)))", "unknown parameter 'share'"),
    ("local_sgd(exchange=chain(0.1))", "cannot read the part"),
    ("local_sgd(exchange=top_k(sign))", "exchange 'top_k': is not made of other parts"),
    ("local_sgd(server=adam)", "config.algorithm.server.learning_rate must be a number, got None"),
    ("dpsgd(exchange=top_k)", "algorithm 'dpsgd': unknown parameter 'exchange'"),
    by=lambda algorithm: prepare.prepare(
        sweep.override(nonblocking.get_config("workers=4"), {"algorithm": algorithm})
    ),
)


def test_numbers_of_workers():
    every = use.ALGORITHMS.values()
    makers = [make for make in every if "workers" in inspect.signature(make).parameters]
    assert len(makers) >= 9
    for make in makers:
        for workers, cause in ((0, "needs workers >= 1, got 0"), (2.5, "a whole number, got 2.5")):
            with pytest.raises(ValueError, match=rf"^{make.__name__}: .*{cause}; "):
                make(SGD, workers)


WEIGHED = [use.dpsgd, use.gradient_tracking, use.exact_diffusion, use.qg_dsgdm, use.decentlam,
           use.gasloc, use.choco_sgd]  # fmt: skip
LOCKSTEP = functools.partial(use.swarm, lockstep=True)
APART = nx.Graph([(0, 1), (2, 3)])


def test_graphs_on_which_workers_cannot_agree():
    others = (use.matcha, use.periodic, use.noloco, use.swarm, LOCKSTEP, use.ad_psgd)
    for make in (*WEIGHED, *others):
        with pytest.raises(ValueError, match="graph: the graph of 4 workers falls into 2 compon"):
            make(SGD, APART)
    for make in (*WEIGHED, lambda sgd, graph: use.sgp(sgd, N)):
        with pytest.raises(ValueError, match="meetings of pairs, which its exchange is not made f"):
            refuse(make(SGD, RING), N, PAIRS)


def test_weights_and_links_of_ones_own():
    W = np.array([[0.5, 0.3, 0.2], [0.3, 0.6, 0.1], [0.2, 0.1, 0.7]])
    for make in WEIGHED:
        make(SGD, topology.complete(3), mixing_matrix=W)
        with pytest.raises(ValueError, match=r"mixing_matrix: W\[0, 2\] = 0.2, but the graph has"):
            make(SGD, nx.path_graph(3), mixing_matrix=W)
    for make in (*WEIGHED[:-1], functools.partial(use.dsgd_ac, samples=1)):
        with pytest.raises(ValueError, match="their own here, and best_constant would not be"):
            make(SGD, topology.base_k(N, 2), mixing_matrix="best_constant")
    square = topology.complete(4)
    # Two of the three matchings of a square with its diagonals join no more than two pairs.
    pairs, weights = np.array([[1, 0, 3, 2], [1, 0, 3, 2]]), np.full((2, 4), 0.5)
    links = Links(pairs, in_turn(2), weights=weights, period=2)
    with pytest.raises(ValueError, match="links: on this graph models do not come together"):
        use.dpsgd(SGD, square, links=links)
    links = links._replace(partners=np.array([[1, 0, 3, 2], [3, 2, 1, 0]]))
    use.dpsgd(SGD, square, links=links)
    with pytest.raises(ValueError, match=r"their weights \(1, 4\); give both as \[M, 4\]"):
        use.dpsgd(SGD, square, links=links._replace(weights=weights[:1]))
    with pytest.raises(ValueError, match="the graph has 8 workers, but partners"):
        use.dpsgd(SGD, RING, links=links)

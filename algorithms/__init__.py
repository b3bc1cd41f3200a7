"""The methods, by the names that configs use."""

from algorithms.all_reduce import all_reduce
from algorithms.async_diloco import async_diloco
from algorithms.base import Algorithm
from algorithms.choco import choco_sgd
from algorithms.decentlam import decentlam
from algorithms.decoupled_diloco import decoupled_diloco
from algorithms.demo import demo
from algorithms.dpsgd import dpsgd
from algorithms.easgd import easgd
from algorithms.ef21 import ef21, ef21_sgdm
from algorithms.exact_diffusion import exact_diffusion
from algorithms.gradient_tracking import gradient_tracking
from algorithms.local_sgd import local_sgd
from algorithms.matcha import matcha, periodic
from algorithms.mg_wfbp import mg_wfbp
from algorithms.noloco import noloco
from algorithms.omnireduce import omnireduce
from algorithms.one_bit_adam import one_bit_adam
from algorithms.parallax import parallax
from algorithms.powersgd import powersgd
from algorithms.push_sum import sgp
from algorithms.qg_dsgdm import qg_dsgdm
from algorithms.quantised import ef_sign, int8_all_reduce, natural_compression, qsgd
from algorithms.ringleader import ringleader
from algorithms.robust import centred_clipping, coordinate_median, krum, trimmed_mean
from algorithms.s2_reducer import s2_reducer
from algorithms.sketched_sgd import sketched_sgd
from algorithms.sparcml import sparcml
from algorithms.sparse_all_gather import sparse_all_gather
from algorithms.sparse_loco import sparse_loco
from algorithms.stale import (
    compensated_rate,
    dc_asgd,
    delay_adaptive,
    hinge_staleness,
    inverse_staleness,
    polynomial_staleness,
)
from algorithms.streaming_diloco import streaming_diloco
from algorithms.swarm import ad_psgd, swarm
from algorithms.top_k import random_k, top_k

ALGORITHMS = {
    method.__name__: method
    for method in (
        ad_psgd,
        all_reduce,
        async_diloco,
        centred_clipping,
        choco_sgd,
        compensated_rate,
        coordinate_median,
        dc_asgd,
        decentlam,
        decoupled_diloco,
        delay_adaptive,
        demo,
        dpsgd,
        easgd,
        ef21,
        ef21_sgdm,
        ef_sign,
        exact_diffusion,
        gradient_tracking,
        hinge_staleness,
        int8_all_reduce,
        inverse_staleness,
        krum,
        local_sgd,
        matcha,
        mg_wfbp,
        natural_compression,
        noloco,
        omnireduce,
        one_bit_adam,
        parallax,
        periodic,
        polynomial_staleness,
        powersgd,
        qg_dsgdm,
        qsgd,
        random_k,
        ringleader,
        s2_reducer,
        sgp,
        sketched_sgd,
        sparcml,
        sparse_all_gather,
        sparse_loco,
        streaming_diloco,
        swarm,
        top_k,
        trimmed_mean,
    )
}

__all__ = ["ALGORITHMS", "Algorithm", *ALGORITHMS]

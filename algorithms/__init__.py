"""Methods by the names that configs use; a method is imported when it is asked for."""

from algorithms.base import Algorithm
from comms.registry import Registry

ALGORITHMS = Registry({
    "ad_psgd": "algorithms.swarm:ad_psgd",
    "all_reduce": "algorithms.all_reduce:all_reduce",
    "async_diloco": "algorithms.async_diloco:async_diloco",
    "centred_clipping": "algorithms.robust:centred_clipping",
    "choco_sgd": "algorithms.choco:choco_sgd",
    "compensated_rate": "algorithms.stale:compensated_rate",
    "coordinate_median": "algorithms.robust:coordinate_median",
    "dc_asgd": "algorithms.stale:dc_asgd",
    "decentlam": "algorithms.decentlam:decentlam",
    "decoupled_diloco": "algorithms.decoupled_diloco:decoupled_diloco",
    "delay_adaptive": "algorithms.stale:delay_adaptive",
    "demo": "algorithms.demo:demo",
    "dpsgd": "algorithms.dpsgd:dpsgd",
    "easgd": "algorithms.easgd:easgd",
    "ef21": "algorithms.ef21:ef21",
    "ef21_sgdm": "algorithms.ef21:ef21_sgdm",
    "ef_sign": "algorithms.compressed_sgd:ef_sign",
    "exact_diffusion": "algorithms.exact_diffusion:exact_diffusion",
    "gradient_tracking": "algorithms.gradient_tracking:gradient_tracking",
    "hinge_staleness": "algorithms.stale:hinge_staleness",
    "int8_all_reduce": "algorithms.compressed_sgd:int8_all_reduce",
    "inverse_staleness": "algorithms.stale:inverse_staleness",
    "krum": "algorithms.robust:krum",
    "local_sgd": "algorithms.local_sgd:local_sgd",
    "matcha": "algorithms.matcha:matcha",
    "mg_wfbp": "algorithms.mg_wfbp:mg_wfbp",
    "natural_compression": "algorithms.compressed_sgd:natural_compression",
    "noloco": "algorithms.noloco:noloco",
    "omnireduce": "algorithms.omnireduce:omnireduce",
    "one_bit_adam": "algorithms.one_bit_adam:one_bit_adam",
    "parallax": "algorithms.parallax:parallax",
    "periodic": "algorithms.matcha:periodic",
    "polynomial_staleness": "algorithms.stale:polynomial_staleness",
    "powersgd": "algorithms.powersgd:powersgd",
    "qg_dsgdm": "algorithms.qg_dsgdm:qg_dsgdm",
    "qsgd": "algorithms.compressed_sgd:qsgd",
    "random_k": "algorithms.compressed_sgd:random_k",
    "ringleader": "algorithms.ringleader:ringleader",
    "s2_reducer": "algorithms.s2_reducer:s2_reducer",
    "sgp": "algorithms.push_sum:sgp",
    "sketched_sgd": "algorithms.sketched_sgd:sketched_sgd",
    "sparcml": "algorithms.sparcml:sparcml",
    "sparse_all_gather": "algorithms.sparse_all_gather:sparse_all_gather",
    "sparse_loco": "algorithms.sparse_loco:sparse_loco",
    "streaming_diloco": "algorithms.streaming_diloco:streaming_diloco",
    "swarm": "algorithms.swarm:swarm",
    "top_k": "algorithms.compressed_sgd:top_k",
    "trimmed_mean": "algorithms.robust:trimmed_mean",
})
# Codecs of methods that take an exchange.
REDUCERS = Registry({
    "bf16": "algorithms.reducers:bf16",
    "chain": "algorithms.reducers:chain",
    "chunked_top_k": "algorithms.reducers:chunked_top_k",
    "error_feedback": "algorithms.reducers:error_feedback",
    "fp16": "algorithms.reducers:fp16",
    "int8": "algorithms.reducers:int8",
    "natural": "algorithms.reducers:natural",
    "quantise": "algorithms.reducers:quantise",
    "random_k": "algorithms.reducers:random_k",
    "sign": "algorithms.reducers:sign",
    "top_k": "algorithms.reducers:top_k",
})

__all__ = ["ALGORITHMS", "REDUCERS", "Algorithm", *ALGORITHMS]

ALGORITHMS.as_attributes_of(__name__)

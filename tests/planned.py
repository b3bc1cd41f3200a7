"""Waiting rules and their plans by name, as tests ask for them."""

import networkx as nx
import numpy as np

from stragglers.rule import Rule, Setting, whole
from stragglers.rules import RULES
from stragglers.schedule import Schedule


def rule(name, delay, workers, mini_batches=1, seed=0, **options) -> Rule:
    """Return the rule; options: of the setting, and its own parameters."""
    offered = {key: options.pop(key) for key in Setting._fields if key in options}
    return RULES[name](Setting(delay, workers, mini_batches, seed, **offered), **options)


def plan(name, delay, workers, updates, mini_batches=1, seed=0, **options) -> Schedule:
    """Return the first rows of the rule, as one segment."""
    return whole(rule(name, delay, workers, mini_batches, seed, **options), updates)


def random_pairs(delay, graph: nx.Graph, local_steps, updates, seed=0, **options) -> Schedule:
    """Return rows of nodes that meet after `local_steps`, by default all of a round."""
    options = {"mini_batches": local_steps, "local_steps": local_steps, "graph": graph} | options
    return plan("random_pairs", delay, len(graph), updates, seed=seed, **options)


def counted(schedule: Schedule, workers) -> np.ndarray:
    """Return the mini-batches of every update, [updates, workers]."""
    batches = np.zeros((schedule.updates, workers + 1), int)
    np.add.at(batches, (np.arange(schedule.updates)[:, None], schedule.workers), schedule.batches)
    return batches[:, :workers]

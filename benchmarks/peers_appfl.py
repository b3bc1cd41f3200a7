"""APPFL's virtual-time simulator, as a side of `benchmarks.peers`, in an environment of its own."""

import logging
import sys
import tempfile

import numpy as np
import peers_data as data
import torch
from appfl.agent import ServerAgent, SimClientAgent
from appfl.vsim import AsyncSimDriver, ClientProfile, SyncSimDriver
from omegaconf import OmegaConf

LEAN = {"optimize_memory": False}  # else every part collects garbage after each of its steps
# Named as well, since a setting that is absent is looked for among similar names in every step.
OFF = ("use_dp", "do_validation", "do_pre_validation", "clip_grad")
draws = np.random.default_rng(1)


class Drawn(ClientProfile):
    """A client whose mini-batches take shifted exponential times, and whose messages take none."""

    def compute_time(self, compute_second_per_step: float, num_steps: int, **_) -> float:
        return compute_second_per_step * float((1.0 + draws.exponential(size=num_steps)).sum())

    def comm_time(self, model_bytes: float, **_) -> float:
        return 0.0


def model(hidden: int) -> torch.nn.Module:
    """The softmax, or an MLP where hidden is not 0; the library finds this function by its name."""
    sizes = (hidden,) if hidden else ()
    layers = []
    for before, after in zip((data.INPUTS, *sizes), (*sizes, data.CLASSES), strict=True):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def accuracy(labels: np.ndarray, logits: np.ndarray) -> float:
    """Of a client's samples; the library asks for a metric and finds this function by its name."""
    return float((logits.argmax(axis=1) == labels).mean())


def agents(task: str, clients: int, steps: int, batch: int) -> tuple:
    """A server that averages local models or adds gradients as they come, and its clients."""
    rounds, folder = task == "rounds", tempfile.mkdtemp()
    train = {
        "trainer": "VanillaTrainer",
        "mode": "step",
        "num_local_steps": steps,
        "train_batch_size": batch,
        "train_drop_last": True,
        "optim": "SGD",
        "optim_args": {"lr": data.RATE if rounds else data.STALE_RATE},
        "loss_fn": "CrossEntropyLoss",
        "metric_path": __file__,
        "metric_name": "accuracy",
        "send_gradient": not rounds,
        "logging_output_dirname": folder,
        **dict.fromkeys(OFF, False),
        **LEAN,
    }
    made = {
        "model_path": __file__,
        "model_name": "model",
        "model_kwargs": {"hidden": data.HIDDEN if task == "hidden" else 0},
    }
    weight = {} if rounds else {"alpha": clients}  # of a gradient, over the number of clients
    served = {
        "num_clients": clients,
        "num_global_epochs": 0,
        "scheduler": "SyncScheduler" if rounds else "AsyncScheduler",
        "scheduler_kwargs": {"same_init_model": True, **LEAN},
        "aggregator": "FedAvgAggregator" if rounds else "FedAsyncAggregator",
        "aggregator_kwargs": {"use_secure_agg": False, **LEAN} | weight,
        "logging_output_dirname": folder,
        **LEAN,
    }
    parts = {"train_configs": train, "model_configs": made, **LEAN}
    server = ServerAgent(OmegaConf.create({"client_configs": parts, "server_configs": served}))
    inputs, labels = map(torch.from_numpy, data.images())
    shares = zip(inputs.chunk(clients), labels.long().chunk(clients), strict=True)
    return server, [
        SimClientAgent(server.get_client_configs(), str(i), torch.utils.data.TensorDataset(*share))
        for i, share in enumerate(shares)
    ]


def main(task: str, amount: int) -> None:
    """A turn goes on by a number of rounds of all clients, or of updates with one gradient each."""
    logging.disable(logging.CRITICAL)  # the library logs every step of a client
    torch.set_num_threads(1)  # two are slower, as the products are small
    rounds = task == "rounds"
    clients = data.CLIENTS if rounds else data.WORKERS
    steps, batch = (data.STEPS, data.BATCH) if rounds else (1, data.STALE_BATCH)
    server, owns = agents(task, clients, steps, batch)
    profiles = {own.get_id(): Drawn() for own in owns}
    common = server, owns, profiles, clients, logging.getLogger("peer")
    if rounds:
        driver = SyncSimDriver(*common, base_step_time=1.0, target_rounds=sys.maxsize)
    else:
        driver = AsyncSimDriver(*common, base_step_time=1.0)
    configs = server.server_agent_config.server_configs

    def turn():
        configs.num_global_epochs += amount
        driver.run()

    data.take_turns(turn)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

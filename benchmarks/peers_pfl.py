"""pfl-research's federated averaging, as a side of `benchmarks.peers`, with its own environment."""

import os
import sys

import numpy as np
import peers_data as data
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel


class Softmax(torch.nn.Linear):
    """Has a loss and metrics, as the library asks for."""

    def loss(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self(inputs), labels)

    def metrics(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted.from_unweighted(self.loss(inputs, labels).item())}


def main(rounds: int) -> None:
    """A turn goes on by a number of rounds, each with all clients as its cohort."""
    torch.set_num_threads(1)  # two are slower, as the products are small
    os.environ["PFL_PYTORCH_DEVICE"] = "cpu"  # else the library looks for a GPU in every step
    inputs, labels = data.images()
    inputs, labels = torch.from_numpy(inputs), torch.from_numpy(labels).long()
    each, used = data.SAMPLES // data.CLIENTS, data.STEPS * data.BATCH
    rng = np.random.default_rng(0)

    def samples(client: int) -> Dataset:
        """A client's samples of a round; the library goes through them once and in order."""
        rows = np.concatenate([rng.permutation(each) for _ in range(-(-used // each))])[:used]
        rows = torch.from_numpy(client * each + rows)
        return Dataset((inputs[rows], labels[rows]), user_id=str(client))

    clients = FederatedDataset(samples, get_user_sampler("minimize_reuse", range(data.CLIENTS)))
    backend = SimulatedBackend(training_data=clients, val_data=clients)
    module = Softmax(data.INPUTS, data.CLASSES)
    server = torch.optim.SGD(module.parameters(), lr=1.0)
    model = PyTorchModel(module, torch.optim.SGD, server)
    algorithm = FederatedAveraging()
    steps = NNTrainHyperParams(
        local_batch_size=data.BATCH,
        local_num_epochs=None,
        local_num_steps=data.STEPS,
        local_learning_rate=data.RATE,
    )
    ended = 0

    def turn():
        nonlocal ended
        ended += rounds
        # The library evaluates all clients in its first round, which is not timed, and then never.
        until = NNAlgorithmParams(ended, sys.maxsize, data.CLIENTS, None)
        algorithm.run(until, backend, model, steps, send_metrics_to_platform=False)

    data.take_turns(turn)


if __name__ == "__main__":
    main(int(sys.argv[2]))

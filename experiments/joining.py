"""How several processes can find each other: checks of an address and of the environment."""

import errno
import os
import re
import socket
from collections.abc import Mapping

BIND = "JAX_COORDINATOR_BIND_ADDRESS"  # where process 0 listens, if not at the address of others


def check_address(address: str, listens: bool) -> None:
    """Raise ValueError for an address that names no host or port, or where nobody can listen."""
    host, _, port = address.rpartition(":")
    if not host or not re.fullmatch(r"\d{1,5}", port) or not 0 < int(port) < 2**16:
        raise ValueError(
            f"several processes: coordinator_address={address!r} names no host or no "
            "port; give host:port"
        )
    if not listens or BIND in os.environ:
        return
    try:
        (family, kind, *_, place), *_ = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM
        )
        with socket.socket(family, kind) as probe:
            # A port whose last connections are only being forgotten is free, as for JAX.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason = "another process listens there; give a free port, and --process_id=0 only once"
        else:
            reason = (
                f"process 0 cannot listen there ({error}); give an address of its machine, or say "
                f"in {BIND} where it listens"
            )
        raise ValueError(f"several processes: coordinator_address={address!r}: {reason}") from error


def is_alone(environment: Mapping[str, str]) -> bool:
    """Whether the environment says that this process is the only one, or says nothing.

    JAX would look further in any pod, and would give a single task one of its many GPUs.
    """
    if "OMPI_COMM_WORLD_SIZE" in environment:
        size = _count(environment, "OMPI_COMM_WORLD_SIZE")
        if size > 1 and "OMPI_MCA_orte_hnp_uri" not in environment:
            raise ValueError(
                f"several processes: this Open MPI has started {size} but names no coordinator; "
                "give --coordinator_address=HOST:PORT --num_processes=$OMPI_COMM_WORLD_SIZE "
                "--process_id=$OMPI_COMM_WORLD_RANK"
            )
        return size == 1
    if "SLURM_STEP_NODELIST" in environment:
        return _count({"SLURM_NTASKS": "1"} | dict(environment), "SLURM_NTASKS") == 1
    if "KUBERNETES_SERVICE_HOST" in environment:
        return not {"JOB_COMPLETION_INDEX", "TPU_WORKER_HOSTNAMES"} & environment.keys()
    return False


def is_queued_again(environment: Mapping[str, str]) -> bool:
    """Whether this process is of a job of Slurm that has begun before."""
    return environment.get("SLURM_RESTART_COUNT", "0") != "0"


def _count(environment: Mapping[str, str], name: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,8}", environment[name]):
        raise ValueError(
            f"several processes: {name}={environment[name]!r} in the environment is no number of "
            "processes; correct or unset it"
        )
    return int(environment[name])

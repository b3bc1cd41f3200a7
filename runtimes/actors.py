"""Workers as processes that nobody marches in step, under a server: real asynchrony, wall-clock.

The launching process is the server, every worker an actor of `runtimes.crew` with a JAX of its own.
The server goes on in a thread while the training loop evaluates a snapshot of it. Whatever makes
an update becomes a row of the Schedule as it happens, which the simulator replays.

A process that dies, or does not answer any more, is replaced. Its worker then begins its order anew
at the newest version, on the same samples and with a fresh state; the others do not notice.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.base import Algorithm
from runtimes import base, packing, uplink, worker
from runtimes.free_worker import Parts, first_state
from runtimes.overseer import Options
from runtimes.parameter_server import ParameterServer
from runtimes.server_programs import State
from runtimes.serving import COPIES, Serving
from runtimes.session import SESSION, Session, store_bytes
from stragglers.rule import Rule
from stragglers.schedule import Schedule

LOOKED_AT = 64  # updates of a plan whose sizes are compiled before a run
DEFAULTS = Options()


class ActorsRun(NamedTuple):
    """A snapshot of the server."""

    state: State
    counters: dict[str, np.ndarray]
    kept: np.ndarray  # [workers] the order whose state of local steps belongs to it
    seconds: float
    update: int
    samples: int
    sent: int  # bytes of all contributions until then
    deaths: int  # of processes

    @property
    def exhausted(self) -> bool:
        """Free workers never come to an end."""
        return False


class Actors:
    """The runtime of a method with a server and one task, see `runtimes.base.Runtime`."""

    clock, replays = "wall", False

    def __init__(
        self,
        parts: Parts,
        recipe: Callable[[], Parts],
        rule: Rule,
        options: Options = DEFAULTS,
        session: Session = SESSION,
    ):
        """Check the parts; no process is started before the first update.

        recipe: builds the same parts in the process of a worker; it has to be picklable.
        """
        self.parts, self._recipe, self._rule = parts, recipe, rule
        self._options, self._session = options, session
        refuse(parts.algorithm, rule)
        _, self._planned = rule.extend(rule.init(), LOOKED_AT)
        self._serving: Serving | None = None

    def check_room(self, params: Any) -> None:
        """Raise ValueError where this machine lacks the memory; params: arrays, or shapes."""
        workers = self._rule.workers
        self._session.check_room(workers, store_bytes(params, workers, COPIES))

    def start(self, params: Any) -> ActorsRun:
        """A run of no updates from `params`; processes come with the first `advance`."""
        self.close()
        self._server = ParameterServer(
            self.parts.algorithm,
            self._rule.arrivals,
            params,
            workers=self._rule.workers,
            mini_batches=self.parts.mini_batches,
            batch_size=self.parts.sampler.batch_size,
        )
        refuse(self.parts.algorithm, self._rule, params, self.parts.mini_batches)
        self._params, self._elapsed = params, 0.0
        self._sent_before, self._deaths_before = 0, 0  # in the run that this one resumes
        self._states: dict[int, tuple[int, worker.WorkerState]] = {}
        return self._snapshot(0.0)

    def advance(
        self, run: ActorsRun, seconds: float, updates: float = np.inf
    ) -> tuple[ActorsRun, Schedule | None]:
        """Wait until the clock stands at `seconds`, or for `updates` more updates."""
        if self._serving is None:
            self._open()
        serving, server = self._serving, self._server
        with serving.turn:
            serving.limit = run.update + updates
            serving.turn.notify_all()
            while serving.now() < seconds and server.update < serving.limit and not serving.error:
                serving.turn.wait(min(0.2, max(0.0, seconds - serving.now())))
            if serving.error is not None:
                raise serving.error
            schedule = server.rows()
            ended = schedule is not None and server.update >= serving.limit
            return self._snapshot(float(schedule.time[-1]) if ended else serving.now()), schedule

    def observe(self, run: ActorsRun, seconds: float, loss: float) -> ActorsRun:
        """Pass a training loss to a rule that follows it."""
        with contextlib.nullcontext() if self._serving is None else self._serving.turn:
            self._server.observe(seconds, loss)
        return run

    def models(self, run: ActorsRun) -> Any:
        """The one model of the snapshot, with a leading axis of 1."""
        return jax.tree.map(lambda a: a[None], run.state.params)

    def memory(self, run: ActorsRun) -> Any:
        """The exchange's state, with a leading axis of workers.

        Where workers encode what they send it is asked of them; who has died since has a fresh one.
        """
        first = self._first_state()
        if not jax.tree.leaves(first.exchange):
            return run.state.memory
        kept = self._kept(run)
        states = [kept.get(who, first).exchange for who in range(self._rule.workers)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)

    def measured(self, run: ActorsRun) -> dict[str, float]:
        """What has really travelled to the server, and what has gone wrong."""
        return {
            "bytes_per_worker": run.sent / self._rule.workers,
            "deaths": float(run.deaths),
            "dropped_contributions": float(run.counters["dropped"][0]),
        }

    def pack(self, run: ActorsRun) -> dict[str, np.ndarray]:
        """The snapshot, with what its workers keep for their next local steps."""
        return (
            packing.pack(run.state)
            | _under("counters/", run.counters)
            | _under("history/", self._server.log.pack(run.update))
            | self._packed_states(run)
            | {"clock/seconds": np.array([run.seconds]), "sent": np.array([run.sent, run.deaths])}
        )

    def resume(
        self,
        run: ActorsRun,
        packed: Mapping[str, np.ndarray],
        observed: Sequence[tuple[float, float]],
    ) -> tuple[ActorsRun, None]:
        """The packed run; contributions that were under way then are made anew."""
        state = packing.unpack(run.state, packed)
        counters, history = (_inside(f"{what}/", packed) for what in ("counters", "history"))
        self._elapsed = float(packed["clock/seconds"][0])
        self._sent_before, self._deaths_before = packed["sent"].tolist()
        first = self._first_state()
        forgotten = []
        for who, number in enumerate(counters["counted"].tolist()):
            kept = _inside(f"worker/{who}/", packed)
            if not kept and jax.tree.leaves(first):
                forgotten.append(who)
            else:
                self._states[who] = number, packing.unpack(first, kept)
        self._server.resume(state, counters, history, observed)
        for who in forgotten:
            self._server.lost(who, self._elapsed)
            self._server.returned(who, self._elapsed)
        return self._snapshot(self._elapsed), None

    def pids(self) -> dict[int, int]:
        """The processes of the workers that are ready, by their numbers on their machines."""
        return {} if self._serving is None else self._serving.pids()

    def close(self) -> None:
        """End the processes of the run."""
        if self._serving is not None:
            self._serving.close()
            self._serving = None

    def _open(self) -> None:
        self._serving = Serving(self._server, self._params, self._options)
        planned = (self._planned.batches > 0).sum(axis=1)
        counts = range(planned.min(), self._planned.workers.shape[1] + 1)
        try:
            self._serving.open(self._session, self._recipe, counts, self._elapsed, self._states)
        except BaseException:
            self.close()
            raise

    def _snapshot(self, seconds: float) -> ActorsRun:
        server, serving = self._server, self._serving
        server.kept = server.settled()
        return ActorsRun(
            server.state,
            server.counters(),
            server.kept.copy(),
            seconds,
            server.update,
            server.samples,
            self._sent_before + (0 if serving is None else serving.sent),
            self._deaths_before + (0 if serving is None else serving.deaths),
        )

    def _first_state(self) -> worker.WorkerState:
        """What a worker remembers at first."""
        parts = self.parts
        state = first_state(parts.algorithm, self._params, parts.mini_batches)
        return jax.tree.map(jnp.asarray, state)

    def _kept(self, run: ActorsRun) -> dict[int, worker.WorkerState]:
        """What the workers remembered at the snapshot, but for those that have died since."""
        if self._serving is None or not jax.tree.leaves(self._first_state()):
            return {}
        import ray

        asked, found = {}, {}
        for who, number in enumerate(run.kept.tolist()):
            with contextlib.suppress(ray.exceptions.RayError):
                asked[who] = self._serving.state_of(who, number)
        for who, reference in asked.items():
            with contextlib.suppress(ray.exceptions.RayError):
                found[who] = ray.get(reference, timeout=60)
        return found

    def _packed_states(self, run: ActorsRun) -> dict[str, np.ndarray]:
        states = {who: packing.pack(state) for who, state in self._kept(run).items()}
        packed = (_under(f"worker/{who}/", state) for who, state in states.items())
        return {name: value for one in packed for name, value in one.items()}


def misfit(
    algorithm: Algorithm, rule: Rule, params: Any = None, mini_batches: int = 1
) -> str | None:
    """Return why free workers cannot keep a rule with a method, or None if they can.

    params, mini_batches: of a contribution, as in `runtimes.base.misfit`.
    """
    if rule.arrivals is None:
        return "its workers move freely, and the waiting rule has no form for that"
    reason = base.misfit(algorithm, rule.workers, rule.turnout, params)
    if reason is not None:
        return reason
    if rule.turnout.pairs == (algorithm.server is not None):
        return "a rule with a server is for one model, and pairs are for a model per worker"
    if algorithm.server is None and algorithm.links is not None:
        return "its matchings need all workers at once"
    if algorithm.server is None and algorithm.grad_params is not None:
        return "its gradients are taken at a point that the others' messages move"
    known = algorithm.adopt is None or params is None or not rule.turnout.early
    if not known and uplink.alone(algorithm, params, mini_batches) is None:
        return "only an update knows how workers' own models change, and a worker may go on before"
    return None


def refuse(algorithm: Algorithm, rule: Rule, params: Any = None, mini_batches: int = 1) -> None:
    """Raise ValueError where `misfit` finds a reason."""
    reason = misfit(algorithm, rule, params, mini_batches)
    if reason is not None:
        raise ValueError(f"actors: {reason}; take another waiting rule or method")


def _under(prefix: str, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The values by names that begin with a prefix."""
    return {prefix + name: value for name, value in values.items()}


def _inside(prefix: str, packed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What is packed under a prefix, by the rest of its name."""
    return {n.removeprefix(prefix): v for n, v in packed.items() if n.startswith(prefix)}

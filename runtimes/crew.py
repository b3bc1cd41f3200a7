"""Processes that work for one run, each an actor on Ray: started, watched, replaced, ended.

Calls of one actor are answered in order, calls of its group `ASIDE` beside them, at any time.
Whatever happens comes out of one queue: answers, deaths, and processes that are ready to work.
"""

import contextlib
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from runtimes.session import Resources, environment

ASIDE = "aside"  # the group of calls that an actor answers while it works
_WATCH = "watch"  # the group of the one call that never returns while the process lives


class News(NamedTuple):
    """Something that has happened to a process."""

    member: int
    kind: str  # "ready" | "answer" | "failed" | "lost"
    value: Any = None  # what was answered, or the exception
    tag: Any = None  # of the call


class Place(NamedTuple):
    """Where a process runs."""

    pid: int
    node: str


class Crew:
    """The processes of one run, a member each.

    member_of: (member) -> the picklable arguments of `target`, whose object lives in the process.
    """

    def __init__(
        self,
        target: type,
        member_of: Callable[[int], tuple],
        members: int,
        resources: Resources,
        groups: Sequence[str] = (ASIDE,),
    ):
        self.news: queue.Queue[News] = queue.Queue()
        self._target, self._member_of, self._resources = target, member_of, resources
        self._groups = dict.fromkeys((*groups, _WATCH), 1)
        self._actors: dict[int, Any] = {}
        self._places: dict[int, Place] = {}
        self._lock = threading.Lock()
        self._closed = False
        self.members = members

    def start(self, member: int, *ready: Any) -> Any:
        """Start the process of a member, or a new one; news "ready" when `ready(*ready)` is done.

        References among the arguments are resolved before; that of its end is returned.
        """
        import ray

        actor = (
            ray.remote(concurrency_groups=self._groups)(_alive(self._target))
            .options(
                num_cpus=self._resources.cpus,
                num_gpus=self._resources.gpus,
                max_restarts=0,  # a new process begins as its run says, not as Ray does
                max_task_retries=0,
                runtime_env={"env_vars": environment(self._resources)},
            )
            .remote(*self._member_of(member))
        )
        with self._lock:
            self._actors[member] = actor
        begun = actor.begin_member.remote(*ready)
        self._follow(member, actor, "ready", begun, None)
        self._follow(
            member,
            actor,
            "lost",
            actor.watch_member.options(concurrency_group=_WATCH).remote(),
            None,
        )
        return begun

    def call(
        self, member: int, method: str, *arguments: Any, tag: Any = None, aside: bool | str = False
    ) -> Any:
        """Ask a member for something; the answer comes as news, and as the reference returned.

        aside: the group of calls that answers; True: `ASIDE`.
        """
        with self._lock:
            actor = self._actors[member]
        bound = getattr(actor, method)
        if aside:
            bound = bound.options(concurrency_group=ASIDE if aside is True else aside)
        reference = bound.remote(*arguments)
        self._follow(member, actor, "answer", reference, tag)
        return reference

    def handle(self, member: int) -> Any:
        """The actor of a member, for another member that talks to it."""
        with self._lock:
            return self._actors[member]

    def place(self, member: int) -> Place | None:
        """Where the member's process runs, once it was ready."""
        with self._lock:
            return self._places.get(member)

    def wait_until_ready(self, seconds: float, again: Callable[[int], Any]) -> None:
        """Wait for news "ready" of all; ValueError if one fails, or is not ready by then.

        again: starts the process of a member once more, whose last one has been killed.
        """
        until, alive = time.monotonic() + seconds, set()
        while len(alive) < self.members:
            with contextlib.suppress(queue.Empty):
                news = self.news.get(timeout=1.0)
                if news.kind == "ready":
                    alive.add(news.member)
                elif news.kind == "lost" and not news.value.actor_init_failed:
                    alive.discard(news.member)
                    again(news.member)
                else:
                    raise ValueError(
                        f"actors: the process of worker {news.member} cannot start "
                        f"({reason(news.value)}); correct the config"
                    )
            if time.monotonic() > until:
                raise ValueError(
                    f"actors: only {len(alive)} of {self.members} processes have started within "
                    f"{seconds:g} s; set fewer workers, or see what the cluster is busy with"
                )

    def kill(self, member: int) -> None:
        """End the process of a member, also one that is stopped; news "lost" follows."""
        import ray

        with self._lock:
            actor, place = self._actors[member], self._places.get(member)
        ray.kill(actor)
        if place is not None and place.node == ray.get_runtime_context().get_node_id():
            with contextlib.suppress(ProcessLookupError):
                os.kill(place.pid, signal.SIGKILL)  # a stopped one never answers when Ray asks

    def close(self) -> None:
        """End all processes; nothing is news any more."""
        with self._lock:
            self._closed, members = True, list(self._actors)
        for member in members:
            with contextlib.suppress(Exception):  # it may be gone already, with Ray or without
                self.kill(member)

    def _follow(self, member: int, actor, kind: str, reference, tag) -> None:
        def done(future) -> None:
            import ray

            with self._lock:
                if self._closed or self._actors.get(member) is not actor:
                    return  # of a process that has been replaced
            error = future.exception()
            if error is None:
                value = future.result()
                if kind == "ready":
                    value, place = value
                    with self._lock:
                        self._places[member] = place
                self.news.put(News(member, kind, value, tag))
            elif isinstance(error, ray.exceptions.RayActorError):
                if kind == "lost":  # the call that watches the process says so once
                    self.news.put(News(member, "lost", error))
            else:
                self.news.put(News(member, "failed", error, tag))

        reference.future().add_done_callback(done)


def _alive(target: type) -> type:
    """`target` with what a crew asks of every member."""

    class Member(target):
        def begin_member(self, *arguments):
            import ray

            value = self.ready(*arguments)
            return value, Place(os.getpid(), ray.get_runtime_context().get_node_id())

        def watch_member(self) -> None:
            threading.Event().wait()  # until the process ends

    Member.__name__ = target.__name__
    return Member


def reason(error: BaseException) -> str:
    """Why a call has failed, on one line; what Ray passes on ends with what a worker has raised."""
    cause = getattr(error, "cause", None)
    if cause is not None:
        return f"{type(cause).__name__}: {' '.join(str(cause).split())}"[:200]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[-1][:200]

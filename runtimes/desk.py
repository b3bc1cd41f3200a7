"""Where a node answers those who ask it to meet, one meeting at a time, in turns.

A turn that comes twice, known by the number of its asker's attempt and of the step, gets the same
reply twice. What is said next is computed while a reply is on its way.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import jax
import numpy as np

from runtimes.conversation import Half
from stragglers.pair_log import Entry, Meeting

_NEVER = 1 << 62  # an attempt that nobody comes to
PATIENCE = 10.0  # s without a word of its asker until a meeting is given up


class Turn(NamedTuple):
    """What an asker says to its partner."""

    asker: int
    attempt: int  # of all that it has begun
    step: int  # of this one
    said: Sequence[Any]
    entry: Entry


class Reply(NamedTuple):
    """What the partner says at the same step."""

    said: Sequence[Any]
    entry: Entry


class _Book:
    """Notes of an asker's latest attempt."""

    def __init__(self):
        self.lock = threading.Lock()
        self.attempt, self.heard = -1, 0.0
        self.replies: list[Reply | None] = []
        self.following: Future | None = None  # says what follows the last reply


class Desk:
    """Answers for a node.

    lock: who holds it may change what the node holds; here from a first reply until the meeting is
    over. begin: () -> (half, entry of the node), or None to refuse; commit: (Meeting, result of the
    half), the end of it; both under the lock. send: takes every reply before it leaves, and before
    its meeting can end. now: the node's clock [s].
    """

    def __init__(
        self,
        workers: int,
        lock: threading.Lock,
        begin: Callable[[], tuple[Half, Entry] | None],
        commit: Callable[[Meeting, Any], None],
        send: Callable[[Reply], None],
        now: Callable[[], float],
    ):
        self._lock, self._begin, self._commit, self._now = lock, begin, commit, now
        self._send = send
        self._books = [_Book() for _ in range(workers)]
        self._serving: _Book | None = None  # for whom the lock is held
        self._ahead = ThreadPoolExecutor(1, "answers")
        self.failure: BaseException | None = None  # which has ended a meeting

    def answer(self, turn: Turn) -> Reply | None:
        """The reply to a turn; None refuses it, or says that its attempt has been given up."""
        book = self._books[turn.asker]
        with book.lock:
            if turn.attempt == book.attempt and turn.step < len(book.replies):
                reply = book.replies[turn.step]
                if reply is not None:
                    self._send(reply)
                return reply
            if turn.attempt < book.attempt or (turn.step > 0 and turn.attempt > book.attempt):
                return None
            book.heard = time.monotonic()
            if turn.step == 0:
                book.attempt, book.replies, book.following = turn.attempt, [], None
                reply = self._first(turn, book)
            else:
                reply = None if book.following is None else self._next(turn, book)
            book.replies.append(reply)
        return reply

    def give_up_the_silent(self) -> None:
        """Forget a meeting whose asker has not said a word for long; nothing has changed by it."""
        book = self._serving
        if book is not None and time.monotonic() - book.heard > PATIENCE:
            self.give_up(self._books.index(book), PATIENCE)

    def give_up(self, asker: int, silence: float = 0.0) -> None:
        """Forget a meeting under way if its asker has not said a word for `silence` seconds."""
        book = self._books[asker]
        with book.lock:
            if book.following is not None:
                wait([book.following])
            late = time.monotonic() - book.heard >= silence
            if self._serving is book and late:
                self._serving = book.following = None
                self._lock.release()

    def close_to(self, asker: int) -> None:
        """Refuse an asker that has gone, whatever of it is still under way; until `forget`."""
        self.give_up(asker)
        with self._books[asker].lock:
            self._books[asker].attempt, self._books[asker].replies = _NEVER, []

    def forget(self, asker: int) -> None:
        """Begin anew with an asker that counts its attempts anew."""
        with self._books[asker].lock:
            self._books[asker].attempt, self._books[asker].replies = -1, []

    def _first(self, turn: Turn, book: _Book) -> Reply | None:
        if not self._lock.acquire(blocking=False):
            return None
        asked = self._now()
        with self._released_by_failure():
            begun = self._begin()
            if begun is not None:
                half, entry = begun
                said = on_host(next(half))
        if begun is None:
            self._lock.release()
            return None
        self._serving = book
        return self._sent(turn, book, half, said, entry, asked)

    def _next(self, turn: Turn, book: _Book) -> Reply:
        return self._sent(turn, book, *book.following.result())

    def _sent(self, turn: Turn, book: _Book, half: Half, said, entry: Entry, asked: float) -> Reply:
        reply = Reply(said, entry)
        self._send(reply)
        book.following = self._ahead.submit(self._follow, turn, half, entry, asked)
        return reply

    def _follow(self, turn: Turn, half: Half, entry: Entry, asked: float) -> tuple:
        """What is said at the next step, or () once the meeting is over."""
        with self._released_by_failure():
            said, result = advanced(half, turn.said)
            if said is not None:
                return half, said, entry, asked
            self._serving = None
            self._commit(Meeting((turn.entry, entry), asked, self._now()), result)
        self._lock.release()
        return ()

    @contextlib.contextmanager
    def _released_by_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.failure, self._serving = error, None
            self._lock.release()
            raise


def advanced(half: Half, heard: Sequence[Any]) -> tuple[list[np.ndarray] | None, Any]:
    """(what the half says next, None) or, at its end, (None, its result)."""
    try:
        return on_host(half.send(heard)), None
    except StopIteration as end:
        return None, jax.block_until_ready(end.value)


def on_host(message: Sequence[Any]) -> list[np.ndarray]:
    """A message as it is sent."""
    return [np.asarray(value) for value in message]

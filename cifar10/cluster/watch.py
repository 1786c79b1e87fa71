"""Watches the other processes of a cluster, reports lost processes, and ends this process after a time limit.

TensorFlow's session waits for a lost process silently and without a limit, and its errors name no address.
"""
import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cifar10.base.console import say
from cifar10.base.stuck import end_process
from cifar10.cluster.address import peer_of, shut_down

_INTERVAL_SECS = 0.5  # between two checks
_CHECK_SECS = 30.0  # maximum duration of a check; a longer check means that this process was stopped
# A peer is lost after this time and this many failed checks, so a process that ends normally is not reported.
_GRACE_SECS = 2.0
_MIN_FAILURES = 3


def wait_for(peers: Mapping[str, str], limit: float, answers: Callable[[str, str], Any],
             announce: bool = True) -> dict[str, str]:
    """Waits until all peers answer.

    Args:
      peers: {name: 'host:port'}.
      limit: seconds to wait, without time while this process is stopped; 0: each peer is asked once.
      answers: function (name, address) -> whether that peer answers now. Threads call it for all peers in parallel.
      announce: whether to print the missing peers.

    Returns:
      The peers that did not answer within the limit, {name: address}.
    """
    waited = 0.0
    missing = dict(peers)
    announced = None
    with ThreadPoolExecutor(len(peers) or 1) as pool:
        while True:
            began = time.monotonic()
            answered = pool.map(answers, missing, missing.values())
            missing = {peer: missing[peer] for peer, is_there in zip(missing, list(answered)) if not is_there}
            if not missing or waited >= limit:
                return missing
            if announce and missing != announced and waited > _GRACE_SECS:
                say('waiting', f'for {listed(missing)}, up to {limit} s')
                announced = missing
            time.sleep(_INTERVAL_SECS)
            waited += min(time.monotonic() - began, _CHECK_SECS)


def listed(peers: dict[str, str]) -> str:
    """Returns peers {name: address} as a phrase: 'worker 1 at host:port, ps 0 at host:port'."""
    return ', '.join(f'{name} at {address}' for name, address in peers.items())


class Watch:
    """Threads, one for each peer, that report a lost peer and end this process if the peer does not come back.

    A thread shuts down the connections to a lost peer, because calls to a machine without power would wait forever. A
    peer's name is resolved once, and again only when the peer is lost, so the watch tolerates an outage of the name
    service.

    Args:
      peers: {name: 'host:port'}.
      limit: seconds to wait for a lost peer to come back; 0: a lost peer ends this process immediately.
      has_ended: function that returns whether the training has ended, so peers may end.
    """

    def __init__(self, peers: dict[str, str], limit: float, has_ended: Callable[[], Any] = lambda: False):
        self._limit = limit
        self._has_ended = has_ended
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=peer, daemon=True) for peer in peers.items()]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends the watch and its threads, so peers may end."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, name, address):
        peer = f'{name} at {address}'
        resolved, last_seen, failures, is_lost = None, time.monotonic(), 0, False
        while not self._stop.wait(_INTERVAL_SECS):
            try:
                resolved = peer_of(resolved or address)
            except OSError:
                failures += 1
            else:
                if is_lost:
                    _say('back', peer)
                last_seen, failures, is_lost = time.monotonic(), 0, False
            away = time.monotonic() - last_seen
            if away <= _GRACE_SECS or failures < _MIN_FAILURES or self._stop.is_set():
                continue
            if self._has_ended():
                return
            if self._limit and not is_lost:
                _say('lost', f'{peer}; waiting up to {self._limit} s for it')
            is_lost = True
            if resolved:
                shut_down(resolved)
                resolved = None  # the peer may come back with a new address
            if away > self._limit:
                after = f' after {self._limit} s' if self._limit else ''
                end_process(f'{peer} cannot be reached{after}; start all processes again to continue from the newest '
                            'checkpoint')


def _say(word, text):
    """Prints a line and ignores errors, because the watch continues if the reader has left."""
    with contextlib.suppress(Exception):
        say(word, text)

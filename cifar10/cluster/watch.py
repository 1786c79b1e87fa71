"""Watching the other processes of a cluster: which cannot be reached, for how long, and when to give up.

TensorFlow's session waits for a lost process without limit and in silence, and its errors name no address.
"""
import os
import socket
import sys
import threading
import time
from collections.abc import Callable

from cifar10.cluster.membership import split_address

_EVERY = 0.5  # seconds between two checks
# A peer counts as lost after so many seconds and failed checks: a process that ends in order is not lost.
_GRACE_SECS, _MIN_FAILURES = 2.0, 3


def reachable(address: str, timeout: float = 1.0) -> bool:
    """Returns whether something listens at 'host:port'; a process that is merely stopped does."""
    try:
        with socket.create_connection(split_address(address), timeout):
            return True
    except OSError:
        return False


def wait_for(peers: dict[str, str], limit: float, answers: Callable[[str, str], bool],
             announce: bool = True) -> dict[str, str]:
    """Waits until all peers answer.

    Args:
      peers: {name: 'host:port'}.
      limit: seconds.
      answers: function (name, address) -> whether that peer answers now.
      announce: whether to print the names of those that are waited for.

    Returns:
      {name: address} of those that did not answer within the limit.
    """
    begin, missing, told = time.monotonic(), dict(peers), None
    while True:
        missing = {name: address for name, address in missing.items() if not answers(name, address)}
        if not missing or time.monotonic() - begin > limit:
            return missing
        if announce and missing != told and time.monotonic() - begin > _GRACE_SECS:
            print(f'waiting    for {listed(missing)}, up to {limit} s')
            told = dict(missing)
        time.sleep(_EVERY)


def listed(peers: dict[str, str]) -> str:
    """Returns {name: address} as text."""
    return ', '.join(f'{name} at {address}' for name, address in peers.items())


class Watch:
    """A thread that names peers that are lost, and ends this process if they stay away.

    Args:
      peers: {name: 'host:port'}.
      limit: seconds that a lost peer may take to come back; 0: none may.
    """

    def __init__(self, peers: dict[str, str], limit: float):
        self._peers, self._limit = peers, limit
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the watch; from here on, peers may go."""
        self._stop.set()

    def _run(self):
        seen, missed = dict.fromkeys(self._peers, time.monotonic()), dict.fromkeys(self._peers, 0)
        lost = set()
        while not self._stop.wait(_EVERY):
            for name, address in self._peers.items():
                if reachable(address):
                    seen[name], missed[name] = time.monotonic(), 0
                    if name in lost:
                        lost.remove(name)
                        print(f'back       {name} at {address}', flush=True)
                else:
                    missed[name] += 1
                away = time.monotonic() - seen[name]
                if (away > _GRACE_SECS and missed[name] >= _MIN_FAILURES and name not in lost
                        and not self._stop.is_set()):
                    lost.add(name)
                    if self._limit:
                        print(f'lost       {name} at {address}; waiting up to {self._limit} s for it',
                              flush=True)
                if name in lost and away > self._limit and not self._stop.is_set():
                    self._give_up(name, address)

    def _give_up(self, name, address):
        """Ends the process: its main thread may be blocked in the session."""
        sys.stdout.flush()
        after = f' after {self._limit} s' if self._limit else ''
        print(f'{os.path.basename(sys.argv[0])}: error: {name} at {address} cannot be reached{after}; start all '
              'processes again to continue from the newest checkpoint', file=sys.stderr, flush=True)
        os._exit(1)

"""Watching the other processes of a cluster: which cannot be reached, for how long, and when to give up.

TensorFlow's session waits for a lost process for ever and in silence, and its errors name no address.
Knows sockets and clocks; nothing of TensorFlow.
"""
import os
import socket
import sys
import threading
import time

from cifar10.membership import split_address

_EVERY = 0.5  # seconds between two looks
# A peer counts as lost after so many seconds and looks in vain: a process that ends in order is not lost.
_DOUBT, _LOOKS = 2.0, 3


def reachable(address, timeout=1.0):
    """Returns whether something listens at 'host:port'; a process that is merely stopped does."""
    try:
        with socket.create_connection(split_address(address), timeout):
            return True
    except OSError:
        return False


def wait_for(peers, limit, answers, announce=True):
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
        if announce and missing != told and time.monotonic() - begin > _DOUBT:
            print('waiting    for %s, up to %d s' % (listed(missing), limit))
            told = dict(missing)
        time.sleep(_EVERY)


def listed(peers):
    """Returns {name: address} as text."""
    return ', '.join('%s at %s' % item for item in peers.items())


class Watch:
    """A thread that names peers that are lost, and ends this process if they stay away.

    Args:
      peers: {name: 'host:port'}.
      limit: seconds that a lost peer may take to come back; 0: none may.
    """

    def __init__(self, peers, limit):
        self._peers, self._limit = peers, limit
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self):
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
                        print('back       %s at %s' % (name, address), flush=True)
                else:
                    missed[name] += 1
                away = time.monotonic() - seen[name]
                if away > _DOUBT and missed[name] >= _LOOKS and name not in lost and not self._stop.is_set():
                    lost.add(name)
                    if self._limit:
                        print('lost       %s at %s; waiting up to %d s for it' % (name, address, self._limit),
                              flush=True)
                if name in lost and away > self._limit and not self._stop.is_set():
                    self._give_up(name, address)

    def _give_up(self, name, address):
        """Ends the process: its main thread may be held by the session for ever."""
        sys.stdout.flush()
        after = ' after %d s' % self._limit if self._limit else ''
        print('%s: error: %s at %s cannot be reached%s; start all processes again to go on from the newest checkpoint'
              % (os.path.basename(sys.argv[0]), name, address, after), file=sys.stderr, flush=True)
        os._exit(1)

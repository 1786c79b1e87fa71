"""Watches the other processes of a cluster: which of them cannot be reached, for how long, and when to give up.

TensorFlow's session waits for a lost process silently and without a limit, and its errors name no address.
"""
import contextlib
import threading
import time
from collections.abc import Callable

from cifar10.base.console import say
from cifar10.base.ending import end_process
from cifar10.cluster.address import is_own, peer_of, shut_down

_INTERVAL_SECS = 0.5  # between two checks
# A peer is lost after this time and this many failed checks; a process that ends normally is not reported.
_GRACE_SECS = 2.0
_MIN_FAILURES = 3


def wait_for(peers: dict[str, str], limit: float, answers: Callable[[str, str], bool],
             announce: bool = True) -> dict[str, str]:
    """Waits until all peers answer.

    Args:
      peers: {name: 'host:port'}.
      limit: seconds to wait.
      answers: function (name, address) -> whether that peer answers now.
      announce: whether to print which peers do not answer yet.

    Returns:
      The peers that did not answer within the limit, {name: address}.
    """
    begin = time.monotonic()
    missing = dict(peers)
    announced = None
    while True:
        missing = {name: address for name, address in missing.items() if not answers(name, address)}
        if not missing or time.monotonic() - begin > limit:
            return missing
        if announce and missing != announced and time.monotonic() - begin > _GRACE_SECS:
            say(f'waiting    for {listed(missing)}, up to {limit} s')
            announced = dict(missing)
        time.sleep(_INTERVAL_SECS)


def listed(peers: dict[str, str]) -> str:
    """Returns peers {name: address} as a phrase: 'worker 1 at host:port, ps 0 at host:port'."""
    return ', '.join(f'{name} at {address}' for name, address in peers.items())


class Watch:
    """A thread that reports lost peers, and ends this process if one does not come back.

    When one is back as another process, the connections with the earlier one are ended: if its machine lost power, what
    waits for an answer there would wait for ever. A peer's name is resolved once, and again only when it is lost, so an
    outage of the name service costs nothing; nor does any other error that is this machine's own, which is said once.

    Args:
      peers: {name: 'host:port'}.
      limit: seconds that a lost peer may take to come back; 0 if a lost peer ends this process immediately.
      is_same: function (name) -> whether a peer that is back is the process that it was.
    """

    def __init__(self, peers: dict[str, str], limit: float, is_same: Callable[[str], bool] = lambda name: False):
        self._peers = peers
        self._limit = limit
        self._is_same = is_same
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops the watch: from now on, peers may end."""
        self._stop.set()

    def _run(self):
        last_seen = dict.fromkeys(self._peers, time.monotonic())
        failures = dict.fromkeys(self._peers, 0)
        lost = set()
        has_said = False  # that this machine itself has a trouble
        found = {}  # IP addresses and ports
        while not self._stop.wait(_INTERVAL_SECS):
            for name, address in self._peers.items():
                try:
                    now = peer_of(address if name in lost else found.get(name, address))
                except OSError as error:
                    if name not in lost and is_own(error):
                        if not has_said:
                            has_said = True
                            _say(f'warning: this machine cannot ask for {name} at {address} ({error.strerror or error})'
                                 ', so its loss would not be noticed')
                        continue
                    failures[name] += 1
                else:
                    last_seen[name] = time.monotonic()
                    failures[name] = 0
                    if name in lost:
                        lost.remove(name)
                        _say(f'back       {name} at {address}')
                        if not self._is_same(name):
                            shut_down(found.get(name, now))
                    found[name] = now
                away = time.monotonic() - last_seen[name]
                is_lost = away > _GRACE_SECS and failures[name] >= _MIN_FAILURES
                if is_lost and name not in lost and not self._stop.is_set():
                    lost.add(name)
                    if self._limit:
                        _say(f'lost       {name} at {address}; waiting up to {self._limit} s for it')
                if name in lost and away > self._limit and not self._stop.is_set():
                    self._give_up(name, address)

    def _give_up(self, name, address):
        after = f' after {self._limit} s' if self._limit else ''
        end_process(f'{name} at {address} cannot be reached{after}; start all processes again to continue from the '
                    'newest checkpoint')


def _say(line):
    """Says a line, whatever becomes of it: the watch goes on where nobody reads the lines any more."""
    with contextlib.suppress(Exception):
        say(line)
